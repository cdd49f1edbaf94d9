"""Every public name of the Python package has a docstring, which names all its arguments.

A public name is in the ``__all__`` of a module. An argument may also be in the docstring of a
function that the first one refers to. The arguments of a method that replaces one of a framework
are those of the framework. The test reads the sources, so it needs no framework. `make docs` writes
the docstrings as pages.
"""

import ast
import functools
import re

import pytest

from cluster import ROOT

PYTHON = ROOT / "libbpsclient" / "python"
# Classes whose objects users get from calls and do not make themselves.
MADE_BY_CALLS = {"Job", "Tensor", "GpuTensor"}
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


@functools.cache
def parse(module):
    """Return the syntax tree of a module, by its name such as bps.torch. None: no such module."""
    path = PYTHON.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(path.read_text()) if path.exists() else None


def module_of(path):
    parts = path.relative_to(PYTHON).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def names_in_all(tree):
    """Return the strings in __all__ of a module, or None if it has no __all__."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return [e.value for e in node.value.elts if isinstance(e, ast.Constant)]
    return None


def definition(module, name):
    """Find the class or function that a name of a module stands for.

    Returns its module and its syntax tree, or None if the name stands for something else.
    """
    if parse(f"{module}.{name}") or not parse(module):
        return None
    for node in parse(module).body:
        if isinstance(node, (*FUNCTION, ast.ClassDef)) and node.name == name:
            return module, node
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bps"):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return definition(node.module, alias.name)
    return None


def public():
    for path in sorted((PYTHON / "bps").rglob("*.py")):
        module = module_of(path)
        if any(part.startswith("_") for part in module.split(".")):
            continue
        for name in names_in_all(parse(module)) or []:
            found = definition(module, name)
            if found:
                yield pytest.param(*found, id=f"{module}.{name}")


def arguments(function):
    a = function.args
    names = [x.arg for x in (*a.posonlyargs, *a.args, *a.kwonlyargs)]
    names += [x.arg for x in (a.vararg, a.kwarg) if x]
    return {n for n in names if n not in ("self", "cls") and not n.startswith("_")}


def decorators(function):
    return [ast.unparse(d) for d in function.decorator_list]


def described(module, node, seen=()):
    """Return the words of a docstring, and of those that it refers to as :func:`NAME`."""
    text = ast.get_docstring(node) or ""
    if isinstance(node, ast.ClassDef):
        text += "".join(ast.get_docstring(f) or "" for f in methods(node) if f.name == "__init__")
    words = set(re.findall(r"\w+", text))
    for name in re.findall(r":(?:func|class):`[~.\w]*?(\w+)`", text):
        found = definition(module, name)
        if found and found[1] not in seen:
            words |= described(*found, (*seen, node))
    return words


def methods(node):
    return [f for f in node.body if isinstance(f, FUNCTION)]


def overrides_a_framework(module, node):
    """Return whether a class is derived from a class of a framework, which documents methods."""
    bases = [ast.unparse(b) for b in node.bases]
    found = [definition(module, b) for b in bases if b not in ("object", "NamedTuple")]
    return any(f is None or overrides_a_framework(*f) for f in found)


def missing(module, node):
    """Return what the docstrings of a class or a function lack."""
    if not ast.get_docstring(node):
        return [f"{node.name}: no docstring"]
    if isinstance(node, FUNCTION):
        lacks = arguments(node) - described(module, node)
        return [f"{node.name}: {a}" for a in sorted(lacks)]
    found = []
    for method in methods(node):
        lacks = arguments(method)
        if method.name == "__init__" and node.name not in MADE_BY_CALLS:
            lacks -= described(module, node)
        elif method.name.startswith("_") or {"overload", "typing.overload"} & {*decorators(method)}:
            continue
        elif not ast.get_docstring(method):
            found.append(f"{node.name}.{method.name}: no docstring")
            continue
        elif overrides_a_framework(module, node):
            continue
        else:
            siblings = {f.name: f for f in methods(node)}
            text = ast.get_docstring(method)
            lacks -= described(module, method)
            for name in re.findall(r":meth:`[~.\w]*?(\w+)`", text):
                lacks -= described(module, siblings[name]) if name in siblings else set()
        found += [f"{node.name}.{method.name}: {a}" for a in sorted(lacks)]
    return found


def test_all_packages_have_public_names():
    modules = {p.id.rpartition(".")[0] for p in public()}
    assert {"bps", "bps.torch", "bps.jax", "bps.keras", "bps.tensorflow", "bps.mxnet"} <= modules


@pytest.mark.parametrize(("module", "node"), public())
def test_a_public_name_has_a_docstring_that_names_its_arguments(module, node):
    assert not missing(module, node)
