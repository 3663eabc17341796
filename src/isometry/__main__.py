"""`python -m isometry`: the command line, also for torchrun."""

import sys

from isometry.lab._cli import main

if __name__ == "__main__":
    sys.exit(main())
