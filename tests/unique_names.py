"""Check that every function and every struct tag is defined once, and that names are long enough.

A search for a name, or an index of tags, then leads to one place. The names of the product's static
functions are unique, too, so that a reader of a backtrace or a profile need not know the file. The
parser relies on the format of the code: a definition starts in column 0, and the brace that opens
the body of a function is alone in column 0. Static functions of tests, anonymous structs and nested
structs do not count. Variants of a function in one file, of which the preprocessor chooses one, are
one definition.
"""

import collections
import pathlib
import re
import statistics
import sys

# Names that are defined more than once on purpose.
EXCEPTIONS = {
    "main": "each program has one",
    "LLVMFuzzerTestOneInput": "libFuzzer's entry point, which each target has",
    "bps_output": "tests/cluster/wrong_sum.c is preloaded to replace the library's function",
    "copy_nontemporal": "each processor architecture has one",
    "trainer_send_message": "test_roster.c is linked with a function of its own",
}
# tests/scale/stub.c is linked instead of the sources that define these functions.
EXCEPTIONS |= dict.fromkeys(("crc32c", "crc32c_portable", "reduce_all", "reduce_finish"), "stub")
EXCEPTIONS |= dict.fromkeys(("reduce_fold", "reduce_means_all", "reduce_means_fold"), "stub")
PRODUCT = ["common", "bps-agent", "bps-server", "bps-scheduler", "libbpsclient"]
LENGTH_MIN = 14  # smallest median of the lengths of the product's function names
FUNCTION = re.compile(r"^([A-Za-z_][\w \t*]*?\b)(\w+)\([^;{}]*?\)[^;{}()=]*\n\{", re.MULTILINE)
LOCAL = re.compile(r"\b(?:static|INLINE)\b")
STRUCT = re.compile(r"^(?:typedef )?(?:struct|union) (\w+) *\{", re.MULTILINE)
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


def main() -> int:
    places: dict[str, dict[str, str]] = collections.defaultdict(dict)
    lengths = []
    for folder in [*PRODUCT, "tests"]:
        for path in sorted(pathlib.Path(folder).rglob("*.[ch]")):
            # Replace each comment by its newlines, so that line numbers stay the same.
            text = COMMENT.sub(lambda m: "\n" * m[0].count("\n"), path.read_text())
            found = [("struct", match, match[1]) for match in STRUCT.finditer(text)]
            for match in FUNCTION.finditer(text):
                if folder != "tests" or not LOCAL.search(match[1]):
                    found.append(("function", match, match[2]))
                if folder != "tests":
                    lengths.append(len(match[2]))
            for kind, match, name in found:
                line = text.count("\n", 0, match.start()) + 1
                places[f"{kind} {name}"][str(path)] = f"{path}:{line}"
    bad = 0
    for name, where in sorted(places.items()):
        if len(where) > 1 and name.split()[1] not in EXCEPTIONS:
            bad += 1
            print(f"{name}: {', '.join(where.values())}")
    if statistics.median(lengths) < LENGTH_MIN:
        bad += 1
        print(f"the median name of a function has {statistics.median(lengths)} letters")
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
