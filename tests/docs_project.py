"""What this project has: files, tests, options, planners, alternatives, functions of Python, types of C++.

tests/docs_names.py compares with it what documents and comments name. Everything is found in the sources, so that
no build is needed.
"""

import ast
import functools
import os
import pathlib
import re

FOLDERS = ("src", "include", "cli", "python", "bench", "tests", "scripts", "examples", "cmake", "packaging", "docs",
           "data", ".github")
# Options of cmake, ctest, GoogleTest, torchrun, pip, docker, conda's builder and mkdocs.
OTHER_OPTIONS = set("""help version build preset install prefix target test-dir output-on-failure gtest_filter
    gtest_output no-python nproc-per-node no-build-isolation rm build-arg recipe context strict""".split())


class Project:
    """Each property is read once, when a name is first looked up."""

    def __init__(self, root):
        self.root = root
        self.files = [name for name in os.listdir(root) if (root / name).is_file()]
        for folder in FOLDERS:
            for where, folders, names in os.walk(root / folder):
                folders[:] = [name for name in folders if name not in ("__pycache__", "build")]
                self.files += [(pathlib.Path(where) / name).relative_to(root).as_posix() for name in names]
        self.ends, self.folders = set(), set()
        for file in self.files:
            parts = file.split("/")
            for first in range(len(parts)):
                self.ends.add("/".join(parts[first:]))
                self.folders.update("/".join(parts[first:last]) for last in range(first + 1, len(parts)))

    @functools.cache
    def text(self, file):
        return (self.root / file).read_text(encoding="utf-8", errors="replace")

    def texts(self, folders, endings):
        return [self.text(file) for file in self.files if file.startswith(folders) and file.endswith(endings)]

    @functools.cached_property
    def tests(self):
        found = set()
        for text in self.texts("tests/", (".cc", ".h")):
            found.update(map(".".join, re.findall(
                r"\b(?:TEST|TEST_F|TEST_P|TYPED_TEST|TYPED_TEST_P|RC_GTEST\w*PROP)\(\s*(\w+),\s*(\w+)", text)))
        return found

    @functools.cached_property
    def python_tests(self):
        stems = {pathlib.Path(file).stem for file in self.files if file.endswith(".py")}
        return stems.union(*(re.findall(r"def (test_\w+)", text) for text in self.texts("tests/", ".py")))

    @functools.cached_property
    def ctests(self):
        found = set(self.tests)
        for text in self.texts(FOLDERS, "CMakeLists.txt"):
            for name in re.findall(r"add_test\(NAME (\S+)", text):
                head = name.split("${")[0]
                found.update([name] if head == name else [head + word for word in re.findall(r"\w+", text)])
        return found

    @functools.cached_property
    def planners(self):
        return set(re.findall(r'\{\.name = "(\w+)"', self.text("src/plan/registry.cc")))

    @functools.cached_property
    def alternatives(self):
        return set(re.findall(r'Row\{\s*"([\w-]+)"', self.text("src/runtime/rewrite/registry.cc")))

    @functools.cache
    def options_of(self, file):
        text = self.text(file)
        if file.endswith(".sh"):
            return set(re.findall(r"--([a-z][\w-]*)", re.sub(r"(?m)^\s*#.*", "", text)))
        found = set(re.findall(r"--([a-z][\w-]*)", " ".join(
            re.findall(r"[\"']((?:-\w,|--[\w-]+,)*--[a-z][\w-]*(?:,-\w)?)[\"']", text))))
        for sibling in re.findall(r"(?m)^\s*(?:from|import) (\w+)", text) if file.endswith(".py") else []:
            other = f"{os.path.dirname(file)}/{sibling}.py"
            if other in self.files and other != file:
                found |= self.options_of(other)
        return found

    @functools.cached_property
    def all_options(self):
        places = ("cli/", "python/", "bench/", "scripts/", "tests/", "examples/", "packaging/")
        return OTHER_OPTIONS.union(*(self.options_of(file) for file in self.files
                                if file.startswith(places) and file.endswith((".cc", ".h", ".py", ".sh"))))

    @functools.cached_property
    def commands(self):
        return {command for text in self.texts("cli/", ".cc")
                for command in re.findall(r'add_subcommand\(\s*"(\w+)"', text)}

    @functools.cache
    def options(self, module, command, bench, script):
        """Returns the options of a program; None if it is not known."""
        if module:
            files = [file for file in self.files if file.startswith("python/reprise/") and file.endswith(".py")]
        elif command in self.commands:
            # Options of no command are used by several. So are the options of models.cc, which describe a model.
            others = self.commands - {command, "models"}
            files = [file for file in self.files if re.match(r"cli/.*\.(cc|h)$", file)
                     and pathlib.Path(file).stem not in others]
        elif bench:
            folder = bench.removeprefix("reprise_bench_")
            folder = f"bench/{folder}/" if f"bench/{folder}" in self.folders else "bench/runtime/"
            files = [file for file in self.files if file.startswith(folder)]
        else:
            files = [file for file in self.files if script and f"/{file}".endswith(f"/{script}")]
        return {"help", "version"}.union(*map(self.options_of, files)) if files else None

    @functools.cached_property
    def signatures(self):
        """Returns for each function and class of the package the arguments of all that have its name."""
        found, bases = {}, {}
        for file in self.files:
            if not (file.startswith("python/reprise/") and file.endswith((".py", ".pyi"))):
                continue
            for node in ast.walk(ast.parse(self.text(file))):
                if isinstance(node, ast.FunctionDef):
                    a = node.args
                    found.setdefault(node.name, set()).update(
                        one.arg for one in [*a.posonlyargs, *a.args, *a.kwonlyargs])
                    if a.kwarg:
                        found[node.name].add("**")
                elif isinstance(node, ast.ClassDef):
                    names = found.setdefault(node.name, set())
                    bases.setdefault(node.name, set()).update(ast.unparse(b).split(".")[-1] for b in node.bases)
                    for part in node.body:
                        if isinstance(part, ast.AnnAssign):
                            names.add(ast.unparse(part.target))
                        elif isinstance(part, ast.FunctionDef) and part.name in ("__init__", "__new__"):
                            a = part.args
                            names.update(one.arg for one in [*a.posonlyargs, *a.args, *a.kwonlyargs])
                            names.update(["**"] if a.kwarg else [])
        for _ in range(3):
            for name, others in bases.items():
                found[name].update(*(found.get(other, ()) for other in others))
        return found

    @functools.cached_property
    def bodies(self):
        """Returns for each type and namespace of C++ the words of its body."""
        found, bases = {}, {}
        head = re.compile(r"(?m)^( *)(?:template <[^\n]*> )?(?:struct|class|enum class|enum)\s+(?:\w+::)*(\w+)"
                          r"(?: final)?(\s*: [^{;]*)? \{(.*)")
        for text in self.texts(FOLDERS, (".h", ".cc")):
            text = re.sub(r"//.*", "", text)
            for found_head in head.finditer(text):
                indent, name, base, rest = found_head.groups()
                end = found_head.end() if "}" in rest else text.find(f"\n{indent}}}", found_head.end())
                found.setdefault(name, set()).update(re.findall(r"\w+", text[found_head.start(4):end]))
                bases.setdefault(name, set()).update(re.findall(r"\w+", base or ""))
            for names in re.findall(r"(?m)^namespace ([\w:]+) \{", text):
                for name in names.split("::"):
                    found.setdefault(name, set()).update(re.findall(r"\w+", text))
        for name, others in bases.items():
            found[name].update(*(found.get(other, ()) for other in others))
        found["rt"] = found.get("runtime", set())  # the examples call it so
        return found
