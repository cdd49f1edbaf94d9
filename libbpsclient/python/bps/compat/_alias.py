"""Modules under another package's names."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import bps

Names = Callable[[], Mapping[str, Any]]


class _Alias(MetaPathFinder, Loader):
    """Finds the modules of one package, and fills them when they are imported.

    Args:
        package (str): the package's name.
        modules (dict): for the name of each module a function that returns what it holds.
        lacking (dict): for names without a counterpart what to do instead.
    """

    def __init__(
        self, package: str, modules: Mapping[str, Names], lacking: Mapping[str, str]
    ) -> None:
        self.package, self._modules, self._lacking = package, modules, lacking

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how to make a module of the package; None for modules of others."""
        if fullname.split(".")[0] != self.package:
            return None
        if fullname not in self._modules:
            raise ModuleNotFoundError(
                f"bps has no counterpart of {fullname}, only of: {', '.join(self._modules)}",
                name=fullname,
            )
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python make an empty module."""

    def exec_module(self, module: ModuleType) -> None:
        """Fill a module."""
        name = module.__name__
        vars(module).update(self._modules[name]())

        def lack(attribute: str) -> Any:
            remedy = self._lacking.get(attribute)
            if remedy is None:
                raise AttributeError(f"module '{name}' of bps.compat has no name '{attribute}'")
            raise NotImplementedError(f"bps has no {name}.{attribute}: {remedy}")

        vars(module)["__getattr__"] = lack


def install(package: str, modules: Mapping[str, Names], lacking: Mapping[str, str]) -> None:
    """Let imports of a package find these modules; further calls do nothing.

    Raises:
        ImportError: the package itself is imported already.
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
    """Return the public names of a module of this package with their objects."""
    one = importlib.import_module(module)
    return {name: getattr(one, name) for name in one.__all__}


def version() -> dict[str, Any]:
    """Return the names of a package's own module with their objects."""
    return {"__version__": bps.version()}
