"""Modules that can be imported under the names of another package's modules, such as
horovod.torch."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import bps
from bps import _compression

Names = Callable[[], Mapping[str, Any]]


class _Alias(MetaPathFinder, Loader):
    """Import hook for one replaced package: creates its modules when they are imported.

    Args:
        package (str): name of the replaced package.
        modules (dict): full name of each module -> function that returns the module's contents.
        lacking (dict): name that bps does not have -> text that says what to use instead.
    """

    def __init__(
        self, package: str, modules: Mapping[str, Names], lacking: Mapping[str, str]
    ) -> None:
        self.package, self._modules, self._lacking = package, modules, lacking

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module of the replaced package; None for a module of another
        package."""
        if fullname.split(".")[0] != self.package:
            return None
        if fullname not in self._modules:
            raise ModuleNotFoundError(
                f"bps does not replace {fullname}; it replaces {', '.join(self._modules)}",
                name=fullname,
            )
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> None:
        """Return None, so that Python creates an empty module."""

    def exec_module(self, module: ModuleType) -> None:
        """Fill the new, empty module with the names that bps provides for it."""
        name = module.__name__
        vars(module).update(self._modules[name]())

        def lack(attribute: str) -> Any:
            remedy = self._lacking.get(attribute)
            if remedy is None:
                raise AttributeError(
                    f"module '{name}' of bps.compat has no attribute '{attribute}'"
                )
            raise NotImplementedError(f"bps has no {name}.{attribute}: {remedy}")

        vars(module)["__getattr__"] = lack


def install(package: str, modules: Mapping[str, Names], lacking: Mapping[str, str]) -> None:
    """Install an import hook that replaces a package with the given modules.

    Further calls for the same package do nothing.

    Raises:
        ImportError: the script has already imported the real package.
    """
    if any(isinstance(f, _Alias) and f.package == package for f in sys.meta_path):
        return
    if package in sys.modules:
        raise ImportError(
            f"{package} is imported already: import bps.compat.{package} before it, or run the "
            "script with python -m bps.compat"
        )
    sys.meta_path.insert(0, _Alias(package, modules, lacking))


def names_of(module: str) -> dict[str, Any]:
    """Return the public names of a module of bps, with their objects."""
    one = importlib.import_module(module)
    return {name: getattr(one, name) for name in one.__all__}


def compressors() -> dict[str, Any]:
    """Return the compressors, from which scripts derive their own."""
    return {
        "Compression": _compression.Compression,
        "Compressor": _compression.Compressor,
        "FP16Compressor": _compression.FP16Compressor,
        "NoneCompressor": _compression.Compressor,
    }


def version() -> dict[str, Any]:
    """Return the contents of the module with which bps replaces a package's top module."""
    return {"__version__": bps.version()}
