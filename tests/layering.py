#!/usr/bin/env python3
"""Fails with file:line when an #include goes against the arrows of the design.

model <- io, check, pack, run <- plan <- report <- runtime <- cli, python, bench, examples, tests.
io, check, pack and run may see each other but never a planner. Headers of LibTorch stand only under
runtime folders and where the runtime's users stand (python, bench, examples); torch/torch.h, which takes
20 s to compile, only in the model zoo and in tests, bench and examples. No header of ours has the
name of a system header: src's folders are searched first, so LibTorch would get ours.

Usage: layering.py SOURCE_DIR | layering.py --self-test
"""

import pathlib
import re
import sys
import tempfile

LEVELS = {
    "model": 0,
    "io": 1, "check": 1, "pack": 1, "run": 1,
    "plan": 2,
    "report": 3,
    "runtime": 4,
}
UMBRELLAS = {"reprise/reprise.h": 3, "reprise/runtime.h": 4}
USERS = ("cli", "python", "bench", "examples", "tests")
USER_LEVEL = 5
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
TORCH = re.compile(r"^(torch|ATen|c10)/")
SYSTEM_HEADERS = {
    f"{name}.h" for name in (
        "assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal stdalign "
        "stdarg stdatomic stdbool stddef stdint stdio stdlib string tgmath threads time uchar wchar wctype "
        "aio dirent dlfcn fcntl glob grp memory netdb poll pthread pwd regex sched search semaphore spawn "
        "strings syslog termios unistd utime values wordexp").split()}
SUFFIXES = {".h", ".hpp", ".cc", ".cpp", ".inc"}


def level_of_file(path):
    """The level of a source file, by its path inside the project; None: not ours to judge."""
    parts = path.parts
    if parts[:2] == ("include", "reprise"):
        inside = "/".join(parts[1:])
        return UMBRELLAS.get(inside, LEVELS.get(parts[2]) if len(parts) > 3 else None)
    if parts[0] == "src" and len(parts) > 2:
        return LEVELS.get(parts[1])
    return USER_LEVEL if parts[0] in USERS else None


def level_of_include(name):
    """The level of what is included; None: no header of this project."""
    if name in UMBRELLAS:
        return UMBRELLAS[name]
    parts = name.split("/")
    if parts[0] == "reprise":
        parts = parts[1:]
    return LEVELS.get(parts[0]) if len(parts) > 1 else None


def may_include_torch(path):
    in_runtime = "runtime" in path.parts or path.stem.startswith("runtime")
    return in_runtime or path.parts[0] in ("python", "bench", "examples")


def may_include_all_of_torch(path):
    return "zoo" in path.parts or path.parts[0] in ("tests", "bench", "examples")


def check_line(path, name):
    """What is wrong with this include, or None."""
    if TORCH.match(name):
        if not may_include_torch(path):
            return f"{name}: LibTorch is for the runtime only"
        if name == "torch/torch.h" and not may_include_all_of_torch(path):
            return f"{name} takes 20 s to compile: include what is used"
        return None
    mine, theirs = level_of_file(path), level_of_include(name)
    if mine is None:
        return f"{path} is in no folder of the design"
    if theirs is not None and theirs > mine:
        return f"{name} is above this file: the arrow goes the other way"
    return None


def check(root):
    faults = []
    for folder in ("include", "src", *USERS):
        for file in sorted((root / folder).rglob("*")):
            if file.suffix not in SUFFIXES or not file.is_file():
                continue
            path = file.relative_to(root)
            if file.name in SYSTEM_HEADERS:
                faults.append(f"{path}:1: <{file.name}> is a system header: it would be hidden")
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
            for number, line in enumerate(lines, 1):
                match = INCLUDE.match(line)
                fault = check_line(path, match.group(1)) if match else None
                if fault:
                    faults.append(f"{path}:{number}: {fault}")
    return faults


def self_test():
    """Every rule is broken once; the script must name exactly those lines."""
    tree = {
        "include/reprise/model/a.h": '#include "reprise/check/simulate.h"\n',
        "include/reprise/reprise.h": '#include "reprise/plan/plan.h"\n',
        "src/check/b.cc": '#include "reprise/model/graph.h"\n#include "reprise/plan/plan.h"\n',
        "src/check/c.cc": '#include "reprise/run/interpreter.h"\n#include "plan/chain/step_function.h"\n',
        "src/io/d.cc": "#include <vector>\n\n  # include <c10/core/Device.h>\n",
        "src/plan/e.cc": "#include <reprise/reprise.h>\n",
        "src/report/f.cc": '#include "reprise/plan/plan.h"\n#include <reprise/runtime/remat.h>\n',
        "src/runtime/g.cc": '#include <torch/torch.h>\n#include "reprise/report/text.h"\n',
        "src/runtime/zoo/h.cc": "#include <torch/torch.h>\n",
        "src/elsewhere/i.cc": "#include <vector>\n",
        "src/runtime/limits.h": "#include <vector>\n",
        "cli/j.cc": "#include <ATen/core/Tensor.h>\n#include <reprise/reprise.h>\n",
        "tests/unit/k.cc": "#include <torch/torch.h>\n",
        "tests/runtime/l.cc": "#include <torch/torch.h>\n",
        "python/m.cc": "#include <torch/extension.h>\n",
    }
    wrong = {
        "include/reprise/model/a.h:1", "src/check/b.cc:2", "src/check/c.cc:2", "src/io/d.cc:3",
        "src/plan/e.cc:1", "src/report/f.cc:2", "src/runtime/g.cc:1", "src/elsewhere/i.cc:1", "src/runtime/limits.h:1",
        "cli/j.cc:1", "tests/unit/k.cc:1",
    }
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in tree.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        found = {":".join(fault.split(":")[:2]) for fault in check(root)}
    for line in sorted(found ^ wrong):
        print(f"{line}: {'not found' if line in wrong else 'found, but nothing is wrong there'}")
    return 1 if found != wrong else 0


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    if sys.argv[1] == "--self-test":
        return self_test()
    faults = check(pathlib.Path(sys.argv[1]))
    print("\n".join(faults) or "every include goes the right way")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
