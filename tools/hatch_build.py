"""The build hook that puts compiled kernels into a wheel; `make wheel` enables it.

Without this hook, hatchling makes a pure wheel, whose kernels are built on first use.
"""

import importlib
import platform
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# The oldest glibc that the wheel promises to run with. `make wheel` fails if the
# libraries call a function of a newer glibc.
GLIBC = "2_17"


class KernelsHook(BuildHookInterface):
    """A hook that compiles the sources once for each kind of processor."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the libraries to the files of a wheel."""
        if version == "editable":
            return
        build = _build_module(Path(self.root))
        machine = platform.machine()
        if sys.platform != "linux" or machine not in build.VARIANTS:
            raise RuntimeError(
                f"there is no wheel with kernels for {sys.platform} on {machine}. "
                f"Build a pure wheel, without HATCH_BUILD_HOOK_ENABLE_CUSTOM."
            )
        self.folder = tempfile.TemporaryDirectory()
        for variant in build.VARIANTS[machine]:
            library = Path(self.folder.name) / variant.name
            # -s removes the symbol table, which nothing uses at run time
            build.compile_sources(build.compiler(), [*variant.options, "-s"], library)
            name = build.file_name(variant.key(), library.read_bytes())
            place = f"isometry/_backend/bundled/{name}"
            build_data["force_include"][str(library)] = place
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_{GLIBC}_{machine}"

    def finalize(self, *_: object) -> None:
        """Remove the compiled files."""
        if hasattr(self, "folder"):
            self.folder.cleanup()


def _build_module(root: Path) -> Any:
    """Import `isometry._backend.build` alone, since its package would import torch."""
    sys.path.insert(0, str(root / "src"))
    package = types.ModuleType("isometry._backend")
    package.__path__ = [str(root / "src" / "isometry" / "_backend")]
    sys.modules[package.__name__] = package
    return importlib.import_module("isometry._backend.build")
