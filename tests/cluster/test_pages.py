"""The pages of errors agree with the table of `bpsctl explain`, and README lists all pages."""

import json
import re
import subprocess
import sys

from cluster import BUILD, ROOT

DOCS = ROOT / "docs"
LINES_MAX = 400


def explained():
    """Return the rows of the table of explanations."""
    command = [str(BUILD / "bpsctl"), "--json", "explain"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    return json.loads(done.stdout)["codes"]


def test_the_index_of_errors_has_each_code_once_and_no_other():
    page = (DOCS / "reference" / "errors.md").read_text()
    errors, problems = page.split("## Problems of the cluster")
    listed = {
        True: re.findall(r"`([A-Z][A-Z_]+)`", errors.split("## Errors of calls")[1]),
        False: re.findall(r"`([A-Z][A-Z_]+)`", problems),
    }
    for is_error, codes in listed.items():
        known = [row["code"] for row in explained() if ("number" in row) is is_error]
        assert sorted(codes) == sorted(known)


def test_make_docs_writes_each_code_with_its_meaning_its_effect_and_its_action(tmp_path):
    command = [sys.executable, str(DOCS / "pages.py"), str(BUILD / "bpsctl"), str(tmp_path)]
    subprocess.run([*command, "--errors"], check=True, capture_output=True, timeout=20)
    page = (tmp_path / "errors.md").read_text()
    rows = explained()
    assert len(re.findall(r"(?m)^### ", page)) == len(rows) > 40
    for row in rows:
        part = re.search(rf"(?ms)^### {row['code']}\b.*?(?=^##|\Z)", page)[0]
        for word, key in (("Meaning", "what"), ("Effect", "effect"), ("To do", "action")):
            text = row[key][:1].upper() + row[key][1:]
            assert f"- *{word}.* {text}" in part
        if "number" in row:
            assert f"({row['number']})" in part


def test_readme_lists_every_page_and_no_page_is_too_long():
    index = (DOCS / "README.md").read_text()
    folders = [DOCS, *(DOCS / name for name in ("guides", "reference"))]
    pages = [p for folder in folders for p in folder.glob("*.md") if p.name != "README.md"]
    assert not [p.name for p in pages if f"]({p.relative_to(DOCS)})" not in index]
    long = [p.name for p in pages if len(p.read_text().splitlines()) > LINES_MAX]
    assert set(long) <= {"CONTRIBUTING.md"}
