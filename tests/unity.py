#!/usr/bin/env python3
"""Fails on names that clash where files are compiled together (REPRISE_UNITY); a default build does not see them.

Files that match one expression of a reprise_unity() call are one translation unit, so that their unnamed namespaces
are one. The script reads Google style, in which nothing at namespace level is indented. These names clash:
- a type, alias, constant or enumerator of an unnamed namespace that another file has in the same namespace, too,
  or that another file brings in with a using-declaration;
- a function that another file has with the same parameters;
- a type or alias that a public header, or a header of the tests, has in a namespace around it, so that the files
  after it mean another type.
`make demo` finds the clashes that only a compiler sees.

Usage: unity.py ROOT | --self-test
"""

import pathlib
import re
import sys

import checking

CALL = re.compile(r"^\s*reprise_unity\(\s*[\w-]+((?:\s+\"[^\"]*\")+)\s*\)", re.M)
NAMESPACE = re.compile(r"^(?:inline )?namespace([\w: ]*)\{")
TYPE = re.compile(r"^(?:template <[^;{]*>\s*)?(?:struct|class|enum(?: class| struct)?)\s+(\w+)[^;(]*\{")
ALIAS = re.compile(r"^using (\w+) = ([^;]*);")
USING = re.compile(r"^using (?:\w+::)+(\w+);")
ALONE = re.compile(r"set_source_files_properties\((\S+)\s+PROPERTIES\s+COMPILE_OPTIONS")
CONSTANT = re.compile(r"^(?:static |inline |thread_local )*(?:constexpr|const)\b[^()]*?[\s*&](\w+)(?:\[\w*\])?(?: =|\{|;)")
MORE_CONSTANTS = re.compile(r"(k[A-Z]\w*) = ")
ENUM = re.compile(r"^enum (?!class|struct)\w*[^{;]*\{([^}]*)\}", re.M)
FUNCTION = re.compile(r"^(?! |using |namespace )[\w:<>,&* \[\]]+?\b(\w+)\(([^;{}]*?)\)(?: noexcept)? \{", re.M)


def without_comments(text):
    return re.sub(r"//[^\n]*", "", text)


def blocks(text):
    """Yields (namespace, is unnamed, text) directly in each namespace, with whole lines."""
    inside, pieces = [], {}
    for line in text.splitlines():
        opened = NAMESPACE.match(line)
        if opened and "}" not in line:
            inside.append(opened.group(1).strip())
        elif re.match(r"^\}\s*(//\s*namespace.*)?$", line) and inside and line.startswith("}  // namespace"):
            inside.pop()
        else:
            key = ("::".join(name for name in inside if name), "" in inside)
            pieces.setdefault(key, []).append(line)
    return [(name, unnamed, without_comments("\n".join(lines))) for (name, unnamed), lines in pieces.items()]


def parameters(text):
    """Returns the types of a parameter list: names and defaults do not tell functions apart."""
    text = re.sub(r"\s+", " ", re.sub(r"=[^,]*", "", text)).strip()
    return re.sub(r"(?<=[\w>&*\]]) ?\b[a-z_]\w*(?=,|$)(?<!int)(?<!bool)(?<!double)", "", text)


def definitions(text):
    """Returns by (namespace, name) what unnamed namespaces define and two files may say alike."""
    found = {}
    for namespace, unnamed, body in blocks(text):
        if not unnamed:
            continue
        for line in body.splitlines():
            names = [match.group(1) for pattern in (TYPE, CONSTANT) if (match := pattern.match(line))]
            if CONSTANT.match(line):
                names += MORE_CONSTANTS.findall(line)
            found |= {(namespace, name): None for name in names}
            if alias := ALIAS.match(line):
                found[namespace, alias.group(1)] = alias.group(2)
        for match in ENUM.finditer(body):
            names = [word.split("=")[0].strip() for word in match.group(1).split(",")]
            found |= {(namespace, name): None for name in names if name}
        for match in FUNCTION.finditer(body):
            found[namespace, f"{match.group(1)}({parameters(match.group(2))})"] = None
    return found


def brought_in(text):
    """Returns the names that using-declarations bring into a namespace."""
    found = set()
    for namespace, unnamed, body in blocks(text):
        found |= {(namespace, match.group(1)) for line in body.splitlines() if (match := USING.match(line))}
    return found


def clashes(files):
    """Returns faults among files that are compiled together. files: (path, text)."""
    faults, owner, users = [], {}, {}
    for path, text in files:
        for name in brought_in(text):
            users.setdefault(name, path)
    for path, text in files:
        for name, meaning in sorted(definitions(text).items()):
            other, known = owner.setdefault(name, (path, meaning))
            if other != path and meaning is not None and meaning == known:
                continue
            if other == path:
                other = users.get(name, path)
            if other != path:
                faults.append(f"{path}: {'::'.join(part for part in name if part)} is in {other}, too, and the two "
                              "are compiled together by make demo: give one of them another name")
    return faults


def public_types(headers):
    """Returns {name: {namespace: path}} of the types that public headers define. headers: (path, text)."""
    found = {}
    for path, text in headers:
        for namespace, _, body in blocks(text):
            for line in body.splitlines():
                if match := TYPE.match(line) or ALIAS.match(line):
                    found.setdefault(match.group(1), {}).setdefault(namespace, path)
    return found


def hidden(files, public):
    """Returns faults of types of unnamed namespaces that hide a public type. files: (path, text), as clashes() takes."""
    if len(files) < 2:
        return []
    faults = []
    for path, text in files:
        for namespace, unnamed, body in blocks(text):
            for line in body.splitlines() if unnamed else ():
                match = TYPE.match(line) or ALIAS.match(line)
                for outer, header in public.get(match.group(1), {}).items() if match else ():
                    if f"{namespace}::".startswith(f"{outer}::"):
                        faults.append(f"{path}: {match.group(1)} is a type of {header}, too, and the files that make "
                                      "demo compiles behind this one mean that type: give this one another name")
    return faults


def groups(root):
    """Returns the files of each expression, as reprise_unity() in RepriseCompile takes them."""
    for cmake in [root / "CMakeLists.txt", *sorted(root.glob("*/**/CMakeLists.txt"))]:
        if "build" in cmake.relative_to(root).parts:
            continue
        taken = set()  # by an expression before: a file is compiled once
        for call in CALL.finditer(cmake.read_text()):
            expressions = re.findall(r"\"([^\"]*)\"", call.group(1))
            alone = [cmake.parent / name for name in ALONE.findall(cmake.read_text())]
            paths = sorted(path.relative_to(root) for path in cmake.parent.glob("**/*.cc") if path not in alone)
            for expression in expressions:
                group = [path for path in paths if path not in taken and re.search(expression, str(path))]
                taken |= set(group)
                yield cmake.relative_to(root), expression, group


def check(root):
    faults, files = [], 0
    headers = sorted([*root.glob("include/**/*.h"), *root.glob("tests/**/*.h")])
    public = public_types([(path.relative_to(root), path.read_text()) for path in headers])
    for cmake, expression, paths in groups(root):
        if not paths:
            faults.append(f"{cmake}: no file matches \"{expression}\"")
        files += len(paths)
        texts = [(path, (root / path).read_text()) for path in paths]
        faults += clashes(texts) + hidden(texts, public)
    if files < 100:
        faults.append(f"{root}: only {files} files are compiled together: the calls of reprise_unity() were not found")
    return faults


def self_test():
    def text(body, namespace="reprise::a"):
        return f"namespace {namespace} {{\nnamespace {{\n{body}\n}}  // namespace\n}}  // namespace {namespace}\n"

    bad = [
        ("struct A {\n};", "class A final {\n};"),
        ("using B = int;", "struct B {\n};"),
        ("constexpr int kC = 1;", "constexpr size_t kD = 1, kC = 2;"),
        ("enum Operand : size_t { kE, kF };", "constexpr int kF = 1;"),
        ("int g(const X& x, int y = 1) {\n}", "int g(const X& other, int z) {\n}"),
        ("using I = int;", "using I = long;"),
        ("bool h(\n    int x,\n    bool y) {\n}", "void h(int a, bool b) {\n}"),
    ]
    good = [
        ("struct A {\n};", "struct B {\n};"),
        ("int g(const X& x) {\n}", "int g(const Y& x) {\n}"),
        ("struct A {\n  int kC = 1;\n};", "constexpr int kC = 1;"),
        ("int f() {\n  constexpr int kC = 1;\n}", "int h() {\n  constexpr int kC = 1;\n}"),
        ("using I = int;", "using I = int;"),
        ("// struct A {", "struct A {\n};"),
    ]
    for one, other in bad:
        assert clashes([("one", text(one)), ("other", text(other))]), (one, other)
        assert not clashes([("one", text(one)), ("other", text(other, "reprise::b"))]), (one, other)
    for one, other in good:
        assert not clashes([("one", text(one)), ("other", text(other))]), (one, other)
    used = "namespace reprise::a {\n\nusing starts::A;\n\n}  // namespace reprise::a\n"
    for files in ([("one", used), ("other", text("struct A {\n};"))], [("one", text("struct A {\n};")), ("other", used)]):
        assert clashes(files), files
    assert not clashes([("one", used), ("other", used)])
    header = "namespace reprise {\nstruct A {\n};\n}  // namespace reprise\n"
    public = public_types([("header", header)])
    one, other = ("one", text("struct A {\n};")), ("other", text("struct B {\n};"))
    assert hidden([one, other], public) and not hidden([one], public) and not hidden([other, other], public)
    assert not hidden([("one", text("struct A {\n};", "other::a")), other], public)
    return []


def main():
    return checking.main(__doc__, check, self_test, "unity.py: no names clash")


if __name__ == "__main__":
    sys.exit(main())
