#!/usr/bin/env python3
"""Fails with file:line where a document or a comment names something that this project does not have.

It reads README.md, CONTRIBUTING.md, CHANGELOG.md, SECURITY.md, every .md file of the folders below, and the
comments and docstrings of the sources. These names must exist:
- files and folders (`src/plan/registry.cc`, `graph/lower.h`, `flow.h`): a file of the project ends with that path,
  and where the text says that a name is in a file, the file has that word;
- tests (`SUITE.TEST`, `test_NAME`, `--gtest_filter=`, `ctest -R`), and the `killed_by` of every mutant;
- options (`reprise plan --budget`, `bench/python/layers.py --repeats`, `--quiet`): the sources of the program have
  the option where the text says which program it is, and some source has it where the text does not;
- planners (`--planner NAME`, planner `NAME`) and alternatives (`only=["NAME"]`, alternative `NAME`): registry.cc;
- functions of the package and their arguments in code of documents (`reprise.plan(..., budget=...)`);
- members (`PlanOptions::stop`): the type has that word in its body.
Words in capitals, such as NAME, and `*` stand for any name.

Usage: docs_names.py SOURCE_DIR | docs_names.py --self-test
"""

import ast
import fnmatch
import io
import pathlib
import re
import sys
import textwrap
import tokenize

import checking
from docs_links import fences
from docs_project import FOLDERS, Project

CODE = (".h", ".cc", ".cpp", ".py", ".pyi", ".cmake", ".sh", ".awk", "CMakeLists.txt", "Makefile")
# Files of users, of other programs, and those that a command of a document writes.
NOT_OURS = set("""
    train.py loop.py a.py pickletools.py plan.html report.html fit.html
    curve.svg curves.svg frontier.svg corpus.txt cuda_check.txt machine.json MemoryViz.js
    plan.json problem.json profile.json chain.json graph.json frontier.json frugal.json moving.json pipeline.json
    pipeline_plan.json pipeline_plan2.json plan_of_join.json trace.json state.json reprise.json
    rankR.state.json suite.json suite.md gpu.json gpu.md measured.md
    densenet121.json gpt.json gpt2.json gpt4.json lstm.json mlp.json mobilenet.json mobilenet_v2.json
    resnet.json resnet18.json resnet50.json resnet101.json segnet.json unet.json unet_attention.json vgg16.json
    vgg16_bn.json RepriseConfig.cmake TorchConfig.cmake cuda_runtime_api.h room/subroom/x.h""".split())
# Names that begin so lie outside of the sources: build outputs, packages of others, the folder of make gpu-kit.
NOT_OURS_UNDER = ("build/", "torch/", "gpu-kit/", "first/", "second/")
OTHER_SCOPES = set("at aten c10 torch std nlohmann pybind11 gloo nn Module Event Tensor ProcessGroup Reprise".split())
OTHER_NAMES = {"CheckpointPolicy.MUST_SAVE"}  # names of other libraries that look like tests
GONE = {"Program::Step"}  # CHANGELOG.md says that it has another name now

PATH = re.compile(r"(?<![\w./<>{}$%@\\+*:=-])((?:\.\.?/)*(?:[\w.*-]+/)*[\w*-][\w.*+-]*\."
                  r"(?:h|cc|cpp|pyi?|cmake|md|sh|ya?ml|toml|awk|js|css|html|json|txt|svg))(?![\w(/*]|\.\w)")
FOLDER = re.compile(rf"(?<![\w./<>{{}}$%@+-])((?:{'|'.join(FOLDERS)})/[\w/-]+)(?![\w.*(<{{$-])")
TEST = re.compile(r"(?<![\w.:/*])([A-Z]\w*\.(?:[A-Z]\w*(?:\*|…|\.\.\.)?|\*))(?![\w(])")
FILTER = re.compile(r"--gtest_filter=['\"]?([\w*.:/?-]+)")
CTEST = re.compile(r"\bctest\b[^`]*? -[RE] '?\"?([^\s'\"`]+)")
OPTION = re.compile(r"(?<![\w(-])--([a-z][\w-]*)")
PROGRAM = re.compile(r"(-m )?\breprise ([a-z]+)\b|\b(reprise_bench_\w+)|((?:[\w.-]+/)*[\w-]+\.(?:py|sh))|([`;|&])")
PLACEHOLDER = re.compile(r"(?<![A-Z])(?:NAME|ROOM|TARGET|FILE|SUITE|TEST)(?![A-Z])")
LISTED = r"((?:(?:, | and | or |, and )?\[?`[\w-]+`(?:\]\([^)]*\))?)+)"
PLANNERS = re.compile(rf"--planners?[ =]([\w,]+)|\bplanner ?= ?[\"'](\w+)[\"']|\bplanners? {LISTED}")
ALTERNATIVES = re.compile(rf"alternatives .*--(?:only|without) ([\w,-]+)|\balternatives? {LISTED}"
                          r"|\b(?:only|without|alternatives) ?= ?[\[({]([^\])}]*)")
PLACE = re.compile(r"(?:`(\w+)(?:\(\))?`|\b(\w+)\(\)|\b([A-Z][a-z]+[A-Z]\w+|[a-z]+_\w+))(?: (?:is|are|lives?))? "
                   r"(?:in|of|from) `?((?:[\w-]+/)*[\w-]+\.(?:h|cc|py|cmake|sh))\b")
MEMBER = re.compile(r"(?<![\w:.])(\w+)::(~?\w+)")


def comments(name, text):
    """Yields the numbers and texts of the lines of documents, and of the comments of sources."""
    lines = text.splitlines()
    if name.endswith(".md"):
        yield from enumerate(lines, 1)
    elif name.endswith((".py", ".pyi")):
        before = tokenize.NEWLINE
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            begins = before in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
            docstring = token.type == tokenize.STRING and begins
            if token.type == tokenize.COMMENT or docstring:
                yield from enumerate(token.string.splitlines(), token.start[0])
            if token.type not in (tokenize.NL, tokenize.COMMENT):
                before = token.type
    else:
        mark = re.compile(r"(?:^|\s)//(.*)" if name.endswith((".h", ".cc", ".cpp")) else r"(?:^|\s)#(?!!)(.*)")
        yield from ((number, found[1]) for number, line in enumerate(lines, 1) if (found := mark.search(line)))


def has(names, wanted):
    """Returns if a name is there; words for any name, and dots where a name was cut off, are `*`."""
    if wanted in names:
        return True
    pattern = PLACEHOLDER.sub("*", re.sub(r"…|\.\.\.", "*", wanted))
    return re.search(r"[*?]", pattern) is not None and bool(fnmatch.filter(names, pattern))


def check_files(project, line):
    for name in {name.rstrip(".") for name in PATH.findall(line)}:
        clean = re.sub(r"^(\.\.?/)+", "", name)
        if not (clean in NOT_OURS or name.startswith(NOT_OURS_UNDER) or has(project.ends, clean)):
            yield f"there is no file {name}; correct the name, or add a file that is not ours to NOT_OURS"
    for *names, file in PLACE.findall(line):
        places = [project.text(place) for place in project.files if f"/{place}".endswith(f"/{file}")]
        if places and not any(re.search(rf"\b{''.join(names)}\b", text) for text in places):
            yield f"{file} has no {''.join(names)}"
    for name in FOLDER.findall(line):
        if not (has(project.folders, name.rstrip("/")) or name in project.ends):
            yield f"there is no folder {name}"


def check_tests(project, line, code):
    for text in code:
        for name in TEST.findall(text):
            if not has(project.tests, name) and name not in OTHER_NAMES:
                yield f"no test is called {name}"
    for names in FILTER.findall(line):
        for name in re.split(r"[:-]", names):
            if name and not has(project.tests, name):
                yield f"the filter {name} fits no test"
    for name in CTEST.findall(line):
        if not any(re.search(name, test) for test in project.ctests):
            yield f"ctest has no test whose name fits {name}"
    for name in re.findall(r"(?<![\w/.-])test_\w+", line):
        if not has(project.python_tests, name):
            yield f"no test or file is called {name}"


def check_options(project, piece, program):
    """Checks the options of a line. Returns their faults, and the program to which the next line may belong."""
    faults = []
    marks = sorted([*PROGRAM.finditer(piece), *OPTION.finditer(piece)], key=lambda mark: mark.start())
    for mark in marks:
        if mark.re is PROGRAM:
            is_input = mark[4] and program and program[0]  # python -m reprise fit FILE
            program = None if mark[5] else program if is_input else mark.groups()[:4]
            continue
        known = project.options(*program) if program else None
        if mark[1] not in (project.all_options if known is None else known):
            name = next(filter(None, program[1:])) if program and known is not None else "any program here"
            faults.append(f"--{mark[1]} is not an option of {name}")
    return faults, program if piece.rstrip().endswith("\\") else None


def check_registries(project, line):
    for what, expression, names in (("planner", PLANNERS, project.planners),
                                    ("alternative", ALTERNATIVES, project.alternatives)):
        for found in expression.finditer(line):
            listed = next(filter(None, found.groups()), "")
            for name in re.findall(r"`([\w-]+)`", listed) or re.findall(r"[\"']([\w-]+)[\"']", listed) or (
                    listed.split(",") if re.fullmatch(r"[\w,-]+", listed) else []):
                if name and name not in names and not name.isupper():
                    yield f"there is no {what} {name}"


def check_members(project, line):
    for scope, name in MEMBER.findall(line):
        if scope in OTHER_SCOPES or f"{scope}::{name}" in GONE:
            continue
        if scope not in project.bodies:
            yield f"there is no type or namespace {scope}; add one that is not ours to OTHER_SCOPES"
        elif name.lstrip("~") not in project.bodies[scope]:
            yield f"{scope} has no {name}"


def check_python(project, code):
    """Checks the calls of the package in a piece of Python; yields pairs of a line and a fault."""
    try:
        tree = ast.parse(textwrap.dedent(code))
    except (SyntaxError, ValueError):
        return
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
                and (node.module or "").split(".")[0] == "reprise" for alias in node.names}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        if not (re.match(r"reprise\.[\w.]+$", name) or name in imported):
            continue
        known = project.signatures.get(name.split(".")[-1])
        if known is None:
            yield node.lineno, f"the package has no {name}"
        for keyword in node.keywords if known is not None and "**" not in known else []:
            if keyword.arg is not None and keyword.arg not in known:
                yield node.lineno, f"{name} has no argument {keyword.arg}"


def check_document(project, name, text):
    """Yields the faults of what only documents have: Python in blocks, and in spans, which may go over two lines."""
    lines = text.splitlines()
    kinds = list(fences(lines))
    for number, kind in enumerate(kinds):
        if kind == "python" and kinds[number - 1] == "```":
            end = number + next(i for i, other in enumerate(kinds[number:]) if other == "```")
            for line, fault in check_python(project, "\n".join(lines[number:end])):
                yield number + line, fault
    prose = "\n".join("" if kind is not None else line for line, kind in zip(lines, kinds))
    for span in re.finditer(r"(?s)`((?:(?!\n\n|\n[|-])[^`])+)`", prose):
        code = re.sub(r"(?<=\S), \.\.\.(?=\))", "", " ".join(span[1].split()))
        for _, fault in check_python(project, code):
            yield prose[:span.start()].count("\n") + 1, fault


def check(root):
    project = Project(root.resolve())
    faults = []
    for file in sorted(project.files):
        if not (file.endswith((".md", *CODE)) and not file.startswith(("data/", "tests/fuzz/corpus"))):
            continue
        text, found, program = project.text(file), [], None
        for number, line in comments(file, text):
            line = re.sub(r"https?://\S+", "", line)
            code = [line] if not file.endswith(".md") or line.startswith("    ") else re.findall(r"`([^`]+)`", line)
            unseen, program = check_options(project, line, program)
            found += [(number, fault) for fault in (*check_files(project, line), *check_tests(project, line, code),
                      *unseen, *check_registries(project, line), *check_members(project, line))]
        if file.endswith(".md"):
            found += check_document(project, file, text)
        faults += [f"{file}:{number}: {fault}" for number, fault in found]
    mutants = "tests/mutants/mutants.json"
    for number, line in enumerate(project.text(mutants).splitlines() if mutants in project.files else [], 1):
        for name in re.findall(r'"killed_by": "(?:\w+/)?([\w.*]+)', line):
            faults += [] if has(project.tests, name) else [f"{mutants}:{number}: no test is called {name}"]
    return faults


def self_test():
    """Breaks every rule; the script must name exactly those lines."""
    tree = {
        "README.md": "`src/plan/registry.cc`, `plan/registry.cc`, `tests/NAME_test.cc`, `train.py`, build/x.json\n"
                     "`plan/gone.cc`\n`tests/GONE_test.cc`\n`src/plan/nowhere` is beside `src/plan`\n"
                     "`kPlanners` in registry.cc\n`kGone` in registry.cc\n"
                     "`Good.Works`, `Good.Wor...`, `Good.*`, a Class.Name\n`Good.Gone`\n"
                     "    core --gtest_filter='*Works:Goo*'\n    core --gtest_filter='*Works:Gone*'\n"
                     "`ctest -R 'links|x'`\n`ctest -R gone`\ntest_good and test_NAME\ntest_gone\n",
        "docs/options.md": "`reprise plan --budget 5 --model x`\n`reprise check --budget 5`\n    reprise plan \\\n"
                           "      --rows\n`--budget`, `--output`, `cmake --build`\n`--gone`\n"
                           "`reprise check`, `--budget`\n"
                           "    bench/run.py --repeats 2 --shared\n    bench/run.py --budget\n"
                           "    reprise_bench_pack --blocks\n    reprise_bench_pack --rows\n"
                           "    python -m reprise fit bench/run.py:f --chain\n    python -m reprise fit --repeats\n",
        "docs/names.md": "`--planner good`, planner `good`, planners `good` and [`good`](good.md), `--planner NAME`\n"
                         "`--planner gone`\nplanners `good` and `gone`\n`planner=\"gone\"`\n"
                         "`reprise alternatives --only tiles`, alternative `tiles`, `only=[\"tiles\"]`\n"
                         "`reprise alternatives --only tiles,gone`\nalternative `gone`\n`only=[\"gone\"]`\n"
                         "`Options::stop`, `Options::base`, `std::gone`, `rt::run`\n`Options::other`\n`Gone::stop`\n",
        "docs/python.md": "`reprise.plan(x, budget=1, ...)`, `reprise.Limits(most=1, least=2)`, `f(gone=1)`\n"
                          "`reprise.plan(x,\nbudget=1, gone=1)`\n`reprise.gone(1)`\n`reprise.Limits(gone=1)`\n"
                          "```python\nfrom reprise import plan\nplan(1,\n  budget=1)\nplan(gone=1)\n```\n",
        "docs/good.md": "",
        "src/plan/registry.cc": "// Test: tests/a_test.cc\n// Test: tests/gone_test.cc\n"
                                'kPlanners {\n{.name = "good",\n',
        "src/runtime/rewrite/registry.cc": 'namespace runtime {\nvoid run();\nRow{"tiles",\n',
        "include/o.h": "enum class E { kOne };\nstruct Base {\n  int base;\n};\n"
                       "struct Options : Base {\n  int stop;\n};\nstruct Next {\n  int other;\n};\n",
        "tests/a_test.cc": "TEST(Good, Works) {}\n", "tests/CMakeLists.txt": "add_test(NAME docs_links\n",
        "tests/a.py": "def test_good(): pass\n# test_gone\n'As b.py does.'\nx = 'c.py'\n",
        "tests/mutants/mutants.json": '{"killed_by": "All/Good.Works/1"}\n{"killed_by": "Good.Gone"}\n',
        "cli/plan.cc": 'add_subcommand("plan"); "--budget"; "-o,--output"; "--planner"; "--budget is needed"\n',
        "cli/check.cc": 'add_subcommand(\n  "check"); "--rows"\n',
        "cli/models.cc": 'add_subcommand("models"); "--model"\n',
        "cli/alternatives.cc": 'add_subcommand("alternatives"); "--only"\n', "bench/pack/pack.cc": '"--blocks"\n',
        "bench/run.py": "import shared\n'--repeats'\n", "bench/shared.py": "x = '--shared'\n",
        "python/reprise/a.py": "def plan(x, *, budget): '--chain'\nclass Base:\n  least: int\n"
                               "class Limits(Base):\n  most: int\n",
    }
    wrong = {"README.md": {2, 3, 4, 6, 8, 10, 12, 14}, "docs/options.md": {2, 4, 6, 9, 11, 13},
             "docs/names.md": {2, 3, 4, 6, 7, 8, 10, 11}, "docs/python.md": {2, 4, 5, 10},
             "src/plan/registry.cc": {2}, "tests/a.py": {2, 3}, "tests/mutants/mutants.json": {2}}
    lines = {f"{file}:{line}" for file, lines in wrong.items() for line in lines}
    return checking.differences(check, tree, lines)


def main():
    return checking.main(__doc__, check, self_test, "documents and comments name what there is")


if __name__ == "__main__":
    sys.exit(main())
