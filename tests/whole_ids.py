#!/usr/bin/env python3
"""Fails if code takes an id apart: ids name values, ops and choices, and mean nothing else.

Usage: whole_ids.py SOURCE | --self-test

Readers of files (src/io) and the report's table, which puts ids together that differ in numbers only,
may look into an id. Whatever a program needs to know about an op or a value is a field of it.
"""

from __future__ import annotations

import pathlib
import re
import sys

import checking

ID = r"\b(?:\w+(?:\.|->))?id"
TAKES_APART = [
    re.compile(ID + r"\.(?:substr|find\w*|rfind|starts_with|ends_with|compare|front|back|data)\("),
    re.compile(ID + r"\.(?:split|rsplit|startswith|endswith|partition|removeprefix|removesuffix)\("),
    re.compile(r"\b(?:from_chars|sto[a-z]+|int)\([^;\n]*" + ID + r"\b[^_]"),
    re.compile(ID + r"\[[-0-9]"),
]
MAY = ("src/io/", "src/report/table.cc")
FOLDERS = ("include", "src", "cli", "python")


def code_of(line: str) -> str:
    return line.split("//", 1)[0].split("#", 1)[0]


def faults(name: str, text: str) -> list[str]:
    return [
        f"{name}:{number}: takes an id apart: {line.strip()}"
        for number, line in enumerate(text.splitlines(), 1)
        if any(pattern.search(code_of(line)) for pattern in TAKES_APART)
    ]


def check(root: pathlib.Path) -> list[str]:
    found: list[str] = []
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            name = path.relative_to(root).as_posix()
            if path.suffix in (".cc", ".h", ".py") and not name.startswith(MAY):
                found += faults(name, path.read_text(encoding="utf-8"))
    return found


def self_test() -> list[str]:
    apart = [
        "if (op.id.starts_with(\"loss\")) return;",
        "std::from_chars(id.data(), id.data() + id.size(), serial);",
        "const int stage = std::stoi(action.id);",
        "kind = op.id.split(':')[1]",
        "if (value.id[0] == 'a') return;",
    ]
    whole = [
        "if (op.id == other.id) return;  // id.substr(1) is not for us",
        "ops.find(action.id);",
        "text += value.id;",
        "grid.find(place);",
    ]
    return [line for line in apart if not faults("a", line)] + [
        line for line in whole if faults("a", line)
    ]


if __name__ == "__main__":
    sys.exit(checking.main(__doc__, check, self_test, "no code takes an id apart"))
