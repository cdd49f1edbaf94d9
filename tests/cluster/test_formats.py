"""A format that other releases read may change only together with the compatibility mark."""

import sys

import pytest

from cluster import ROOT

sys.path.insert(0, str(ROOT / "tests" / "upgrade"))

import formats  # noqa: E402
import mark  # noqa: E402

TODAY = mark.tree_at(ROOT)
CTLMSG, LEDGER = "common/wire/ctlmsg.c", "bps-agent/handover/ledger_records.h"
API, GPU, WIRE = "libbpsclient/bps.h", "common/local/local_gpu.h", "common/wire/wire.c"
FIRST = "FIELD_U16_(ctl_hello, proto),"
LAST = "FIELD_STR_(ctl_hello, http, CTL_HTTP_MAX),"


def test_versions_of_formats_are_those_beside_the_mark():
    today = {name: formats.version(TODAY, name) for name in formats.FORMATS}
    assert today == mark.read().versions, formats.TO_DO


def test_layouts_are_those_of_the_mark():
    commit = mark.read().commit
    if not mark.has(commit):
        pytest.skip("this clone lacks the compatibility mark")
    assert not list(formats.broken(mark.tree_of(commit), TODAY)), formats.TO_DO


def changed(path, old, new):
    """Return today's tree with a change in one file."""
    text = TODAY(path)
    assert text.count(old) == 1, (path, old)
    return lambda p: text.replace(old, new) if p == path else TODAY(p)


@pytest.mark.parametrize(
    "path, old, new, found",
    [
        (CTLMSG, FIRST, "", "the table hello_fields"),
        (CTLMSG, FIRST, FIRST.replace("U16", "U32"), "the table hello_fields"),
        (CTLMSG, LAST, f"{LAST} FIELD_U8_(ctl_hello, role),", ""),
        (CTLMSG, "hello_fields[] = {", "renamed_fields[] = {", "the table hello_fields"),
        (LEDGER, "uint32_t pid, unused;", "uint32_t pid;", "ledger_executor"),
        (LEDGER, "uint32_t pid, unused;", "uint32_t pid, more;", ""),
        (LEDGER, "uint8_t kind, is_gpu;", "uint8_t kind, is_gpu[1];", "ledger_arena"),
        (API, "uint32_t backup_grace_ms;", "uint64_t backup_grace_ms;", "bps_options"),
        (API, "\tuint32_t stale;\n", "\tuint64_t stale;\n", "bps_decl"),
        (API, "a later release */\n};", "a later release */\n\tint more;\n};", ""),
        (GPU, "uint16_t version, kind;", "uint16_t version;", "gpu_memory"),
        (WIRE, "tensor, 4, 32, 32)", "tensor, 4, 32, 24)", "WIRE_FIELDS"),
    ],
)
def test_a_changed_layout_is_found_unless_fields_are_appended(path, old, new, found):
    sentences = list(formats.broken(TODAY, changed(path, old, new)))
    assert len(sentences) == bool(found)
    assert all(found in s for s in sentences)


def test_a_layout_may_change_with_the_version():
    now = formats.version(TODAY, "LEDGER_VERSION")
    raised = changed(
        "bps-agent/handover/ledger.h", f"LEDGER_VERSION {now}", f"LEDGER_VERSION {now + 1}"
    )
    both = changed(LEDGER, "uint32_t pid, unused;", "uint32_t pid;")
    assert not list(formats.broken(TODAY, lambda p: both(p) if p == LEDGER else raised(p)))
    assert formats.version(raised, "LEDGER_VERSION") == now + 1
