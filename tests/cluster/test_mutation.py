"""`make mutation` changes C code as its operators say, and judges its results and its list."""

import sys

import pytest

from cluster import ROOT

sys.path.insert(0, str(ROOT / "tests" / "mutation"))
import mutants
import mutation

CODE = r"""#define LIMIT (1 < 2)
static const int limits[] = {1 < 2, true};

/* a < b */
static bool count(struct x *x, int n)
{
	static const char *const names[] = {"a && b"};
	int rest = n + 1;

	assert(n > 0 && names[0]);
	log_info("true + 1: n=%d", n + 1);
	if (FAILPOINT(COUNTED))
		return false;
	if (!x || x->n == n) /* n < 1 */
		return -EINVAL;
	if (x->is_open)
		count_more(x,
			rest);
	x->n -= 2;
	x->calls++;
	return 0;
}
"""
# {the code without the change: the same code after each of its changes}
CHANGES = {
    "int rest = n + 1;": {"int rest = n;"},
    "return false;": {"return true;"},
    "if (!x || x->n == n)": {
        *("if (!(!x || x->n == n))", "if (x || x->n == n)"),
        *("if (!x && x->n == n)", "if (!x || x->n != n)"),
    },
    "return -EINVAL;": {"return 0;"},
    "if (x->is_open)": {"if (!(x->is_open))"},
    "count_more(x, rest);": {";"},
    "x->n -= 2;": {"x->n += 2;", ";"},
    "x->calls++;": {";"},
    "return 0;": {"return 1;"},
}


def changes():
    found = {}
    for mutant in mutants.mutants_of("a.c", CODE):
        found.setdefault(mutant.before, set()).add(mutant.after)
    return found


def test_operators_change_code_and_nothing_else():
    assert changes() == CHANGES


def test_change_keeps_the_numbers_of_all_lines():
    for mutant in mutants.mutants_of("a.c", CODE):
        text = mutant.text(CODE)
        assert text != CODE and text.count("\n") == CODE.count("\n")
        assert mutant.function == "count"


def test_draw_does_not_depend_on_other_functions():
    below = [m.after for m in mutants.ranked(mutants.mutants_of("a.c", CODE), 1)]
    longer = CODE.replace("static bool", "void first(void)\n{\n\tone(2);\n}\n\nstatic bool")
    more = mutants.ranked(mutants.mutants_of("a.c", longer), 1)
    assert [m.after for m in more if m.function == "count"] == below
    assert below != [m.after for m in mutants.ranked(mutants.mutants_of("a.c", CODE), 2)]


def test_files_get_mutants_in_proportion_to_their_lines():
    assert mutants.shares({"a": 10, "b": 26, "c": 64}, 10) == {"a": 1, "b": 3, "c": 6}
    assert sum(mutants.shares({"a": 1, "b": 1, "c": 1}, 200).values()) == 200


def entry(after="x->n += 2;", kind="accepted"):
    return mutants.Entry("a.c", "count", "x->n -= 2;", after, kind, "why")


FOUND = mutants.mutants_of("a.c", CODE)
SUBTRACTION = next(m for m in FOUND if m.after == "x->n += 2;")
NINE = [(m, "test_a") for m in FOUND if m is not SUBTRACTION][:9]


@pytest.mark.parametrize(
    ("results", "entries", "is_good", "says"),
    [
        (NINE, [], True, "9 mutants, 9 caught"),
        ([], [], False, "0 mutants"),
        ([*NINE, (SUBTRACTION, "")], [], False, "survived, not on the list: a.c:19 count"),
        ([*NINE, (SUBTRACTION, "")], [entry()], True, "1 survived, of these 0"),
        ([*NINE[:8], (SUBTRACTION, "")], [entry()], False, "88.9% caught"),
        ([*NINE[:8], (SUBTRACTION, "")], [entry(kind="equivalent")], True, "1 equivalent"),
        ([*NINE, (SUBTRACTION, "sim")], [entry()], False, "sim catches the mutant"),
        (NINE, [entry("x->n *= 2;")], False, "today's code has no such mutant"),
    ],
)
def test_verdict(results, entries, is_good, says):
    good, text = mutation.verdict(results, entries, FOUND)
    assert good == is_good and says in text, text


def test_list_is_read_and_each_entry_is_a_mutant_of_the_code():
    entries = mutants.read_entries(ROOT / "tests/mutation/accepted.txt")
    texts = {e.path: (ROOT / e.path).read_text() for e in entries}
    found = [m for path, text in texts.items() for m in mutants.mutants_of(path, text)]
    assert not mutation.stale(entries, found, [])


def test_paragraph_that_is_not_an_entry_is_refused(tmp_path):
    path = tmp_path / "accepted.txt"
    path.write_text("# about\n\na.c count\n- x->n -= 2;\n+ x->n += 2;\naccepted: why\n")
    assert mutants.read_entries(path) == [entry()]
    path.write_text("a.c count\n- x->n -= 2;\n+ x->n += 2;\n")
    with pytest.raises(ValueError, match="not an entry"):
        mutants.read_entries(path)
