"""The command line as a module, for `python -m isometry` and `torchrun -m isometry`."""

import sys

from isometry.lab._cli import main

if __name__ == "__main__":
    sys.exit(main())
