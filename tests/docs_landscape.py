#!/usr/bin/env python3
"""Fails where docs/landscape.toml, the data of docs/landscape.md, is wrong about this project.

- The page must be what scripts/landscape.py writes from the data.
- A row has the fields that the data describe, with those that its status asks for, in short texts.
- Files, tests and planners that a row names must exist.
- Each number of a figure must stand in the part of the file that stores it.
- Each planner of src/plan/registry.cc must have a row. A row that says "not here" must not be the method
  of a planner, by its name or by its first author and year.

Usage: docs_landscape.py SOURCE_DIR | docs_landscape.py --self-test
Without tomllib (Python before 3.11) the test is skipped: it exits with 77.
"""

import pathlib
import re
import sys
import tempfile

import checking

from docs_links import anchors

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "scripts"))
import landscape

FIELDS = {"name": str, "source": str, "does": str, "status": str, "here": str, "try": str, "planners": list,
          "figure": str, "stored": str, "missing": str, "code": list, "tests": list}
NEEDED = {"works": {"code", "tests"}, "in part": {"code", "tests", "missing"}, "not here": set()}
EXCLUDED = {"works": set(), "in part": set(), "not here": {"here", "try", "planners", "figure", "code", "tests"}}
LONGEST = 160  # characters of a text, without the targets of its links
NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?")
CASE = re.compile(r"\b(?:TEST|TEST_F|TEST_P|RC_GTEST_PROP)\(\s*(\w+),\s*(\w+)")
PLANNER = re.compile(r'\{\.name = "(\w+)"(.*?)\}', re.DOTALL)
SOURCE = re.compile(r'\.source = ((?:"[^"]*"\s*)+)')


def numbers(text):
    return {number.replace(",", "") for number in NUMBER.findall(text)}


def stored_text(root, stored):
    """Returns the file, or the part of it under the heading of the anchor; None if one is not there."""
    name, _, anchor = stored.partition("#")
    path = root / name
    if not name.startswith("docs/") or not path.is_file():
        return None
    lines = path.read_text(encoding="utf-8").splitlines()
    if not anchor:
        return "\n".join(lines)
    if anchor not in (found := anchors(path)):
        return None
    begin = found[anchor]
    level = len(lines[begin]) - len(lines[begin].lstrip("#"))
    ends = (n for n in found.values() if n > begin and not lines[n].startswith("#" * (level + 1)))
    return "\n".join(lines[begin:min(ends, default=len(lines))])


def is_there(root, cases, test):
    file, _, function = test.partition("::")
    if "/" not in file:
        return test in cases
    path = root / file
    return path.exists() and (not function or f"def {function}(" in path.read_text(encoding="utf-8"))


def is_method_of(row, planner, source):
    for name in row["name"].split(", "):
        if re.sub(r"\W", "_", name.lower()).startswith(planner):
            return True
    years = set(re.findall(r"\b(?:19|20)\d\d\b", source))
    years |= {f"20{year}" for year in re.findall(r"arXiv (\d\d)", source)}
    for work in row.get("source", "").split("; "):
        author = re.match(r"(.+?)(?: et al\.|,| \d)", work)
        if author and author.group(1) in source and years & set(re.findall(r"\d{4}", work)):
            return True
    return False


def check_fields(row):
    for field in row.keys() - FIELDS.keys():
        yield f"there is no field '{field}'"
    for field, kind in FIELDS.items():
        if field in row and (not isinstance(row[field], kind) or not row[field]):
            yield f"'{field}' is empty or no {kind.__name__}"
        if field in row and len(re.sub(r"\]\([^)]*\)", "", str(row[field]))) > LONGEST and kind is str:
            yield f"'{field}' is longer than {LONGEST} characters"
    status = row.get("status")
    if status not in NEEDED:
        yield f"the status is none of {', '.join(NEEDED)}"
        return
    for field in sorted(NEEDED[status] - row.keys()):
        yield f"'{field}' is not there, which '{status}' asks for"
    for field in sorted(EXCLUDED[status] & row.keys()):
        yield f"'{field}' does not go with '{status}'"
    if ("figure" in row) != ("stored" in row):
        yield "'figure' and 'stored' go together"


def check_row(root, row, cases, planners):
    yield from check_fields(row)
    for file in row.get("code", []):
        if not (root / file).exists():
            yield f"{file} does not exist"
    for test in row.get("tests", []):
        if not is_there(root, cases, test):
            yield f"there is no test {test}"
    for planner in row.get("planners", []):
        if planner not in planners:
            yield f"there is no planner {planner}"
    if row.get("status") == "not here":
        for planner, source in planners.items():
            if is_method_of(row, planner, source):
                yield f"it is not 'not here': planner {planner} is of {source}"
    if "figure" in row and "stored" in row:
        text = stored_text(root, row["stored"])
        if text is None:
            yield f"there is no {row['stored']}"
        else:
            for number in sorted(numbers(re.sub(r"`[^`]*`", "", row["figure"])) - numbers(text)):
                yield f"{row['stored']} has no {number}"


def check(root):
    sections = landscape.load(root)
    rows = [row for section in sections for row in section["method"]]
    sources = root.glob("tests/**/*.cc")
    cases = {".".join(case) for path in sources for case in CASE.findall(path.read_text(encoding="utf-8"))}
    registry = (root / "src/plan/registry.cc").read_text(encoding="utf-8")
    planners = {name: "".join(re.findall(r'"([^"]*)"', SOURCE.search(rest).group(1)))
                for name, rest in PLANNER.findall(registry)}
    faults = [f"{landscape.DATA}: {row.get('name', 'a row without a name')}: {fault}"
              for row in rows for fault in check_row(root, row, cases, planners)]
    for planner in planners.keys() - {name for row in rows for name in row.get("planners", [])}:
        faults.append(f"{landscape.DATA}: planner {planner} has no row")
    if not faults and (root / landscape.PAGE).read_text(encoding="utf-8") != landscape.page(sections):
        faults.append(f"{landscape.PAGE}: is not what the data say: run scripts/landscape.py")
    return faults


GOOD = {"name": "'Good'", "source": "'Able et al. 2001'", "status": "'in part'",
        "planners": "['good', 'double_checkpoint']", "figure": "'1,000 in 0.5 of `x 7`'",
        "stored": "'docs/stored.md#good-1'", "missing": "'the rest'",
        "code": "['src']", "tests": "['Suite.Case', 'tests/a.py::test_a', 'tests/a.py']"}
RIGHT = {"name": "'Other'", "source": "'Able et al. 2002'", "status": "'not here'"}
# Each changes or adds fields of the good row, and names what the script must say.
WRONG = [
    ({"colour": "'red'"}, "no field 'colour'"),
    ({"missing": "''"}, "'missing' is empty"),
    ({"code": "'src'"}, "'code' is empty or no list"),
    ({"does": f"'{'x' * (LONGEST + 1)}'"}, "'does' is longer"),
    ({"status": "'fine'"}, "the status is none"),
    ({"missing": None}, "'missing' is not there"),
    ({"status": "'works'", "tests": None}, "'tests' is not there"),
    ({"status": "'not here'"}, "'planners' does not go with"),
    ({"stored": None}, "go together"),
    ({"figure": None}, "go together"),
    ({"code": "['src/none.cc']"}, "src/none.cc does not exist"),
    ({"tests": "['Suite.Other']"}, "no test Suite.Other"),
    ({"tests": "['tests/a.py::test_b']"}, "no test tests/a.py::test_b"),
    ({"tests": "['tests/b.py']"}, "no test tests/b.py"),
    ({"planners": "['other']"}, "no planner other"),
    ({"stored": "'docs/stored.md#none'"}, "no docs/stored.md#none"),
    ({"stored": "'docs/none.md'"}, "no docs/none.md"),
    ({"figure": "'3 in 0.5'"}, "has no 3"),
    ({"figure": "'0.51'"}, "has no 0.51"),
    ({"status": "'not here'", "name": "'X, double checkpointing'"}, "planner double_checkpoint is of"),
    ({"status": "'not here'"}, "planner good is of"),
    ({"status": "'not here'", "name": "'X'", "source": "'Cold 2019'"}, "planner double_checkpoint is of"),
]
TREE = {
    "src/plan/registry.cc": '{.name = "good",\n .source = "Able et al., "\n "2001"},\n'
                            '{.name = "double_checkpoint",\n .source = "Cold, arXiv 1901.00001"},\n',
    "docs/stored.md": "# Good\n## Good\n0.5 and 1000, 0.511\n### Part\n## Next\n3\n",
    "tests/a.cc": "TEST_F(Suite,\n       Case) {}\n", "tests/a.py": "def test_a(x):\n",
}


def self_test():
    """Breaks every rule once; the script must name that fault, and must accept the rows that are right."""
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        checking.write(root, TREE)

        def faults(*rows):
            text = "[[section]]\ntitle = 'Methods'\n"
            for row in rows:
                lines = [f"{key} = {value}\n" for key, value in row.items() if value is not None]
                text += "[[section.method]]\n" + "".join(lines)
            (root / landscape.DATA).write_text(text, encoding="utf-8")
            return check(root)

        def expect(wanted, found):
            if not any(wanted in fault for fault in found):
                missed.append(f"not found: {wanted}")

        (root / landscape.PAGE).write_text("", encoding="utf-8")
        expect("is not what the data say", faults(GOOD, RIGHT))
        (root / landscape.PAGE).write_text(landscape.page(landscape.load(root)), encoding="utf-8")
        missed += faults(GOOD, RIGHT)
        expect("planner double_checkpoint has no row", faults(GOOD | {"planners": "['good']"}))
        for change, wanted in WRONG:
            expect(wanted, faults(GOOD | change))
    return missed


def main():
    return checking.main(__doc__, check, self_test, "the landscape agrees with the project")


if __name__ == "__main__":
    sys.exit(main())
