#!/usr/bin/env python3
"""Fails with file:line when an #include or an import of the Python package goes against the arrows of the
design, when a type has two definitions, or when modules of the Python package import each other in a circle.

The floors of the house, from the ground up (src/README.md has a paragraph for each room):

    model <- io, check, pack, run <- plan <- report <- runtime <- training <- cli, python, bench, examples, tests

io, check, pack and run may see each other but never a planner. Inside a floor, ROOMS says which rooms a room
may use; the table itself may have no circle. LibTorch's headers stand only in the runtime, in the training
application, and where their users stand; torch/torch.h, which takes 20 s to compile, only in tests, bench and
examples. A path inside src is spelled whole, "room/subroom/x.h". Two headers of one namespace may not define a
type of the same name: the linker would merge two classes of different layout.

PYTHON_ROOMS does for the folders of the Python package what ROOMS does for those of src. Modules that stand
directly in the package, as the gate to PyTorch does, may be used from everywhere.

An import of a Python module counts wherever it stands: at the top, inside a function, for types only, or as the
text in importlib.import_module(".name", ...).

Usage: layering.py SOURCE_DIR | layering.py --self-test
"""

import ast
import pathlib
import re
import sys

import checking

FLOORS = {
    "model": 0,
    "io": 1, "check": 1, "pack": 1, "run": 1,
    "plan": 2,
    "report": 3,
    "runtime": 4,
    "training": 5,
}
UMBRELLAS = {"reprise/reprise.h": 3, "reprise/runtime.h": 4}
USERS = ("cli", "python", "bench", "examples", "tests")
USER_FLOOR = 6

# These are the rooms of a floor that has several. Each has the rooms of that floor that its files
# may include.
ROOMS = {
    "plan/common": (),
    "plan/baselines": ("plan/common",),
    "plan/chain": ("plan/common", "plan/baselines"),
    "plan/chain_slots": ("plan/common", "plan/baselines", "plan/chain"),
    "plan/graph/schedule": ("plan/common",),
    "plan/graph/bound": ("plan/common", "plan/graph/schedule"),
    "plan/graph/starts": ("plan/common", "plan/baselines", "plan/graph/schedule", "plan/graph/bound"),
    "plan/graph/search": ("plan/common", "plan/graph/schedule", "plan/graph/bound"),
    "plan/graph": ("plan/common", "plan/baselines", "plan/graph/schedule", "plan/graph/bound",
                   "plan/graph/starts", "plan/graph/search"),
    "plan/place": ("plan/common", "plan/graph/schedule"),
    "plan/place/levels": ("plan/common", "plan/baselines", "plan/chain", "plan/graph/schedule", "plan/graph/bound",
                          "plan/place"),
    "plan/place/graph_levels": ("plan/common", "plan/graph", "plan/graph/schedule", "plan/graph/bound",
                                "plan/graph/starts", "plan/graph/search", "plan/place"),
    "plan/place/devices": ("plan/common", "plan/graph", "plan/place", "plan/place/graph_levels"),
    "plan/literature": ("plan/common", "plan/baselines", "plan/chain", "plan/graph/bound", "plan/place",
                        "plan/place/levels"),
    "plan/join": ("plan/common", "plan/chain"),
    "plan/pipeline": ("plan/common", "plan/chain"),
    "plan": ("plan/common", "plan/baselines", "plan/chain", "plan/chain_slots", "plan/graph", "plan/place",
             "plan/place/levels", "plan/place/graph_levels", "plan/place/devices", "plan/literature", "plan/join",
             "plan/pipeline"),
    "runtime/device": (),
    "runtime/state": ("runtime/device",),
    "runtime/step": ("runtime/device", "runtime/state"),
    "runtime/modules": ("runtime/step",),
    "runtime/arena": ("runtime/device",),
    "runtime/codec": ("runtime/device",),
    "runtime/rewrite": ("runtime/device", "runtime/state", "runtime/step", "runtime/codec"),
    "runtime/lockstep": ("runtime/device", "runtime/state", "runtime/step"),
    "runtime/distributed": (),
    "runtime/graph": ("runtime/device", "runtime/state", "runtime/step", "runtime/modules", "runtime/arena",
                      "runtime/rewrite", "runtime/lockstep", "runtime/online", "runtime/distributed",
                      "runtime/transfer", "runtime/session"),
    "runtime/transfer": ("runtime/device",),
    "runtime/session": ("runtime/device", "runtime/distributed", "runtime/transfer"),
    "runtime/chain": ("runtime/device", "runtime/state", "runtime/step", "runtime/modules", "runtime/lockstep",
                      "runtime/distributed", "runtime/transfer", "runtime/session"),
    "runtime/parts": ("runtime/device", "runtime/distributed", "runtime/chain", "runtime/session"),
    "runtime/online": ("runtime/device", "runtime/state", "runtime/step"),
    "runtime/modes": ("runtime/device",),
    "runtime/saved": (),
    "runtime/nn": ("runtime/device", "runtime/state", "runtime/step", "runtime/modules", "runtime/codec",
                   "runtime/chain"),
}

# These are the folders of the Python package. Each has the folders whose modules it may import.
PYTHON_ROOMS = {
    "_planning": (),
    "_step": ("_planning",),
    "_capture": ("_planning", "_step"),
    "_chain": ("_planning", "_step"),
    "_compile": ("_planning", "_step"),
    "_pipeline": ("_planning", "_step"),
    "_saved": ("_planning", "_step"),
    "nn": ("_step",),
    "_modes": ("_planning", "_step", "_capture", "_chain"),
    "_doctor": ("_planning", "_step", "_capture", "_chain", "_compile"),
    "_fit": ("_planning", "_step", "_capture", "_compile"),
    "integrations": ("_planning", "_step", "_modes"),
}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
TORCH = re.compile(r"^(torch|ATen|c10)/")
SUFFIXES = {".h", ".hpp", ".cc", ".cpp", ".inc"}


def floor_of_file(path):
    """Returns the floor of a source file by its path, or None outside the folders of the design."""
    parts = path.parts
    if parts[:2] == ("include", "reprise"):
        inside = "/".join(parts[1:])
        return UMBRELLAS.get(inside, FLOORS.get(parts[2]) if len(parts) > 3 else None)
    if parts[0] == "src" and len(parts) > 2:
        return FLOORS.get(parts[1])
    return USER_FLOOR if parts[0] in USERS else None


def floor_of_include(name):
    """Returns the floor of an included header, or None for a header of another project."""
    if name in UMBRELLAS:
        return UMBRELLAS[name]
    parts = name.split("/")
    if parts[0] == "reprise":
        parts = parts[1:]
    return FLOORS.get(parts[0]) if len(parts) > 1 else None


def room_of(path):
    """Returns the room of a path below src: the longest row of ROOMS that it lies in, or None."""
    parts = path.split("/")[:-1]
    for length in range(len(parts), 0, -1):
        room = "/".join(parts[:length])
        if room in ROOMS:
            return room
    return None


def may_include_torch(path):
    in_runtime = "runtime" in path.parts or path.stem.startswith("runtime") or path.parts[:2] == ("src", "training")
    in_runtime = in_runtime or path.parts[:3] == ("tests", "support", "accelerator")
    in_runtime = in_runtime or path.parts[:2] == ("tests", "cuda")
    return in_runtime or path.parts[0] in ("python", "bench", "examples")


def may_include_all_of_torch(path):
    return path.parts[0] in ("tests", "bench", "examples")


def wrong_room(path, name):
    """Says why a file of a room may not include a header of another room, or returns None."""
    if path.parts[0] != "src" or name.startswith("reprise/"):
        return None
    mine, theirs = room_of("/".join(path.parts[1:])), room_of(name)
    if mine is None or theirs is None or mine == theirs:
        return None
    same_floor = mine.split("/")[0] == theirs.split("/")[0]
    if same_floor and theirs not in ROOMS[mine]:
        return f"{name}: the room {mine} does not use {theirs} (ROOMS in tests/layering.py)"
    return None


def check_line(path, name, quoted, headers):
    """Says what is wrong with this include, or returns None."""
    if TORCH.match(name):
        if not may_include_torch(path):
            return f"{name}: LibTorch is for the runtime only"
        if name == "torch/torch.h" and not may_include_all_of_torch(path):
            return f"{name} takes 20 s to compile: include what is used"
        return None
    mine, theirs = floor_of_file(path), floor_of_include(name)
    if mine is None:
        return f"{path} is in no folder of the design"
    if theirs is not None and theirs > mine:
        return f"{name} is above this file: the arrow goes the other way"
    own = path.parts[0] == "src" or theirs is not None
    if own and quoted and not name.startswith("reprise/") and name not in headers:
        return f"{name} is no header below src: spell the path whole"
    return wrong_room(path, name)


def circle(uses):
    """Returns a circle in the table of rooms as a list of rooms, or an empty list."""
    done = set()

    def visit(room, way):
        if room in way:
            return way[way.index(room):] + [room]
        if room in done:
            return []
        for other in uses[room]:
            found = visit(other, way + [room])
            if found:
                return found
        done.add(room)
        return []

    for room in uses:
        found = visit(room, [])
        if found:
            return found
    return []


NAMESPACE = re.compile(r"^(?:inline )?namespace([\w: ]*)\{")
TYPE = re.compile(r"^(?:template <[^;{]*>\s*)?(?:struct|class|enum(?: class)?)\s+(?:\[\[\w+\]\]\s*)?((?:\w+::)*\w+)[^;(]*\{")


def types_of(text):
    """Finds definitions at namespace level, which is not indented: (namespace, type, line)."""
    found, inside = [], []
    for number, line in enumerate(text.splitlines(), 1):
        opened = NAMESPACE.match(line)
        if opened and "}" not in line:
            inside.append(opened.group(1).strip() or "(anonymous)")
        elif re.match(r"^\}\s*//\s*namespace", line) and inside:
            inside.pop()
        else:
            defined = TYPE.match(line)
            if defined:
                found.append(("::".join(inside), defined.group(1), number))
    return found


def check_types(files):
    """Returns faults: types that two headers of one namespace define. files: (path, text)."""
    faults, first = [], {}
    for path, text in files:
        if path.suffix not in (".h", ".hpp") or path.parts[0] not in ("include", "src", "cli", "python", "tests"):
            continue
        for namespace, name, number in types_of(text):
            known = first.setdefault((namespace, name), path)
            if known != path:
                faults.append(f"{path}:{number}: {namespace}::{name} is defined in {known}, too: two layouts, one name")
    return faults


PYTHON_PACKAGE = "python/reprise"


def python_imports(text, package, modules, module):
    """Finds each import of one of the package's modules in the source text of a module: (module, line)."""
    found = []
    for node in ast.walk(ast.parse(text)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[:-node.level] if module != package else [package]
            base = ".".join(filter(None, [".".join(above) if node.level else "", node.module or ""]))
            names = [f"{base}.{alias.name}" for alias in node.names]
            names = [name if name in modules else base for name in names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            texts = [a.value for a in node.args[:1] if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            names = [package + name if name.startswith(".") else name for name in texts]
        found += [(name, node.lineno) for name in names if name in modules]
    return found


def wrong_python_room(module, other):
    """Says why a module may not import another room's module, or returns None. Both are dotted names."""
    mine, theirs = module.split(".")[1:2], other.split(".")[1:2]
    if mine == theirs or not mine or not theirs or mine[0] not in PYTHON_ROOMS or theirs[0] not in PYTHON_ROOMS:
        return None
    if theirs[0] in PYTHON_ROOMS[mine[0]]:
        return None
    return f"{other}: the room {mine[0]} does not use {theirs[0]} (PYTHON_ROOMS in tests/layering.py)"


def check_python(root):
    """Returns faults: imports against PYTHON_ROOMS, and circles between modules of the package. A stub stands
    for its extension."""
    package = pathlib.PurePosixPath(PYTHON_PACKAGE).name
    files = {".".join(file.relative_to((root / PYTHON_PACKAGE).parent).with_suffix("").parts).removesuffix(".__init__"):
             file for file in sorted((root / PYTHON_PACKAGE).rglob("*.py*")) if file.suffix in (".py", ".pyi")}
    imports = {module: dict(reversed(python_imports(file.read_text(encoding="utf-8"), package, files, module)))
               for module, file in files.items()}
    faults = [f"{files[module].relative_to(root)}:{line}: {fault}" for module, names in imports.items()
              for name, line in names.items() if (fault := wrong_python_room(module, name))]
    while found := circle(imports):
        last, first = found[-2:]
        line = imports[last].pop(first)
        faults.append(f"{files[last].relative_to(root)}:{line}: modules import each other: {' -> '.join(found)}")
    return faults


def check(root):
    files = []
    for folder in ("include", "src", *USERS):
        for file in sorted((root / folder).rglob("*")):
            if file.suffix in SUFFIXES and file.is_file():
                files.append((file.relative_to(root), file.read_text(encoding="utf-8", errors="replace")))
    headers = {"/".join(path.parts[1:]) for path, _ in files if path.parts[0] == "src"}
    faults = []
    for path, text in files:
        for number, line in enumerate(text.splitlines(), 1):
            match = INCLUDE.match(line)
            fault = check_line(path, match.group(2), match.group(1) == '"', headers) if match else None
            if fault:
                faults.append(f"{path}:{number}: {fault}")
    return faults + check_types(files) + check_python(root)


def self_test():
    """Breaks every rule once; the script must name exactly those lines."""
    tree = {
        "include/reprise/model/a.h": '#include "reprise/check/simulate.h"\n',
        "include/reprise/reprise.h": '#include "reprise/plan/plan.h"\n',
        "src/check/b.cc": '#include "reprise/model/graph.h"\n#include "reprise/plan/plan.h"\n',
        "src/plan/chain/cost_curve.h": "#include <vector>\n",
        "src/check/c.cc": '#include "reprise/run/interpreter.h"\n#include "plan/chain/cost_curve.h"\n',
        "src/io/d.cc": "#include <vector>\n\n  # include <c10/core/Device.h>\n",
        "src/plan/e.cc": "#include <reprise/reprise.h>\n",
        "src/report/f.cc": '#include "reprise/plan/plan.h"\n#include <reprise/runtime/remat.h>\n',
        "src/runtime/graph/g.cc": '#include <torch/torch.h>\n#include "reprise/report/text.h"\n',
        "src/training/h.cc": '#include <ATen/ATen.h>\n#include "runtime/graph/gone.h"\n',
        "src/elsewhere/i.cc": "#include <vector>\n",
        "cli/j.cc": "#include <ATen/core/Tensor.h>\n#include <reprise/reprise.h>\n",
        "tests/unit/k.cc": "#include <torch/torch.h>\n",
        "tests/runtime/l.cc": "#include <torch/torch.h>\n",
        "python/m.cc": "#include <torch/extension.h>\n",
        "src/plan/graph/search/n.h": "namespace a {\nstruct Same {\n  int x;\n};\nstruct Declared;\n}  // namespace a\n",
        "src/plan/graph/o.cc": '#include "plan/graph/search/n.h"\n#include "plan/chain/cost_curve.h"\n',
        "src/plan/graph/bound/p.h": '#include "plan/graph/search/n.h"\nnamespace a {\nclass Same final {\n};\n'
                                    "}  // namespace a\nnamespace b {\nclass Same {\n};\n}  // namespace b\n",
        "src/runtime/step/q.h": '#include <vector>\n#include "rewrite/norm/t.h"\n',
        "src/runtime/rewrite/norm/r.cc": '#include "runtime/step/q.h"\n',
        "src/runtime/step/s.cc": '#include "runtime/rewrite/norm/t.h"\n',
        "src/runtime/rewrite/norm/t.h": "#include <vector>\n",
        "src/runtime/arena/u.h": "namespace a {\nstruct Outer {\n};\n}  // namespace a\n",
        "src/runtime/arena/v.h": "namespace a {\nstruct Outer::Inner {\n};\n}  // namespace a\n",
        # In Python, b and c, d and e, f and g, and i and j import each other. The imports of a, h
        # and k are in order.
        "python/reprise/__init__.py": "from ._a import x\nimport os\n",
        "python/reprise/_a.py": "from ._b import x\nfrom . import _h, _d\nimport reprise._f\n",
        "python/reprise/_b.py": "import os\nfrom ._c import x\n",
        "python/reprise/_c.py": "def f():\n    from . import _b\n",
        "python/reprise/_d.py": "from reprise import _e\n",
        "python/reprise/_e.py": "import typing\n\nif typing.TYPE_CHECKING:\n    from reprise._d import x\n",
        "python/reprise/_f.py": "import reprise._g\n",
        "python/reprise/_g.py": "import importlib\nimportlib.import_module('._f', 'reprise')\n",
        "python/reprise/_h.py": "from .elsewhere import x\nfrom os import path\n",
        "python/reprise/_i.py": "def f():\n    from . import _j\n",
        "python/reprise/_j.py": "from . import x, _i\n",
        "python/reprise/_k.py": "from ._a import x\nfrom ._b import x\nfrom . import _extension\n",
        "python/reprise/_extension.pyi": "x: int\n",
        # A folder: library.py imports a library of its own name, and loop.py stands in a circle.
        "python/reprise/folder/__init__.py": "",
        "python/reprise/folder/library.py": "import library\nfrom .._a import x\nfrom . import other\n",
        "python/reprise/folder/other.py": "from .elsewhere import x\n",
        "python/reprise/folder/loop.py": "from .. import _l\n",
        "python/reprise/_l.py": "import os\nfrom .folder import loop\n",
        # _saved may not use _fit. _fit may use _planning.
        "python/reprise/_fit/m.py": "from .._planning import n\n",
        "python/reprise/_planning/n.py": "import os\n",
        "python/reprise/_saved/o.py": "import os\nfrom .._fit.m import x\n",
        "python/reprise/py.typed": "",
    }
    wrong = {
        "include/reprise/model/a.h:1", "src/check/b.cc:2", "src/check/c.cc:2", "src/io/d.cc:3", "src/plan/e.cc:1",
        "src/report/f.cc:2", "src/runtime/graph/g.cc:1", "src/training/h.cc:2", "src/elsewhere/i.cc:1", "cli/j.cc:1",
        "tests/unit/k.cc:1", "src/plan/graph/o.cc:2", "src/plan/graph/bound/p.h:1", "src/plan/graph/search/n.h:2",
        "src/runtime/step/s.cc:1", "src/runtime/step/q.h:2",
        "python/reprise/_c.py:2", "python/reprise/_e.py:4", "python/reprise/_g.py:2", "python/reprise/_j.py:1",
        "python/reprise/folder/loop.py:1", "python/reprise/_saved/o.py:2",
    }
    faults = checking.differences(check, tree, wrong)
    if circle({"a": ("b",), "b": ("c",), "c": ("a",)}) != ["a", "b", "c", "a"]:
        faults.append("a circle in the table of rooms is not found")
    return faults


def main():
    def all_faults(root):
        circles = (circle(ROOMS), circle(PYTHON_ROOMS))
        return [f"tests/layering.py: the rooms use each other in a circle: {' -> '.join(found)}"
                for found in circles if found] + check(root)

    return checking.main(__doc__, all_faults, self_test,
                         "every include and import goes the right way, and every type has one definition")


if __name__ == "__main__":
    sys.exit(main())
