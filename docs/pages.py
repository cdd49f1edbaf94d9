#!/usr/bin/env python3
"""Write the pages that are made from sources into FOLDER, and print their paths.

    docs/pages.py BPSCTL FOLDER [--errors]

errors.md has every problem and every error of `bpsctl explain`: what it means, its effect, and what
to do. python/MODULE.md is the reference of a module of the Python package, from its docstrings.
With --errors, only errors.md is written. The other pages need the packages of docs/docs.txt. No
framework is needed, because the sources are read and not imported.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / "libbpsclient" / "python"
HEAD = """# Problems and errors

Written by `make docs` from the table of `bpsctl explain`. A problem is a state of the cluster,
which `bpsctl status` reports. An error is what a call of a worker returns; bps-errors(7) says more
about it.
"""


def one_line(text: str) -> str:
    """Return a sentence of the table, with a capital letter and a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def errors(bpsctl: Path) -> str:
    """Return the page of problems and errors."""
    command = [str(bpsctl), "--json", "explain"]
    out = subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout
    rows = json.loads(out)["codes"]
    parts = [HEAD]
    for title, is_error in (("Problems", False), ("Errors", True)):
        parts.append(f"## {title}\n")
        for row in rows:
            if ("number" in row) is not is_error:
                continue
            number = f" ({row['number']})" if is_error else ""
            parts.append(f"### {row['code']}{number}\n")
            parts.append(
                f"- *Meaning.* {one_line(row['what'])}\n"
                f"- *Effect.* {one_line(row['effect'])}\n"
                f"- *To do.* {one_line(row['action'])}\n"
            )
    return "\n".join(parts)


def modules() -> list[str]:
    """Return the public modules of the package that list their names, such as bps.torch."""
    found = []
    for path in sorted((PYTHON / "bps").rglob("*.py")):
        parts = path.relative_to(PYTHON).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if not any(p.startswith("_") for p in parts) and "__all__ = [" in path.read_text():
            found.append(".".join(parts))
    return found


def reference(module: str) -> str:
    """Return the reference of a module, from the docstrings of the names in its __all__."""
    from griffe2md import ConfigDict, render_package_docs

    # Members of sub-modules have pages of their own.
    config = ConfigDict(
        docstring_style="google",
        show_submodules=False,
        heading_level=1,
        filters=["!^_[^_]", "!^__(?!init__)"],
        merge_init_into_class=True,
        show_signature_annotations=True,
    )
    return render_package_docs(module, config)


def main() -> int:
    """Write the pages."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("bpsctl", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--errors", action="store_true", help="write errors.md alone")
    args = parser.parse_args()
    pages = {"errors.md": errors(args.bpsctl)}
    if not args.errors:
        sys.path.insert(0, str(PYTHON))
        logging.basicConfig(level=logging.ERROR)  # no warnings about joint rows of arguments
        pages |= {f"python/{module}.md": reference(module) for module in modules()}
    for name, text in pages.items():
        path = args.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
