#!/usr/bin/env python3
"""Writes docs/landscape.md from docs/landscape.toml, whose first lines describe its entries.

Usage: landscape.py [--check]

With --check nothing is written, and the exit code is 1 if the page is not what the data say. A Python
without tomllib (before 3.11) exits with 77, which CTest counts as skipped.
"""

import collections
import os
import pathlib
import sys

try:
    import tomllib
except ImportError:
    print("skipped: tomllib came with Python 3.11", file=sys.stderr)
    sys.exit(77)

DATA, PAGE = pathlib.Path("docs/landscape.toml"), pathlib.Path("docs/landscape.md")
STATUSES = ("works", "in part", "not here")
HEAD = """# Landscape

This page lists methods of the literature for training in less memory, and parts of two of them. For each it
says what the method does, what here does it, which figure was measured here, and what is not there. It has
{count} rows: {totals}.

| status | meaning |
|---|---|
| works | Code does it, and tests show it. The tests stand in the [last section](#code-and-tests). |
| in part | Code does some of it. The last column says what is not there. |
| **not here** | No code here does it. |

- "Overhead" is time over plain training's, less 1. "Peak" and "time" without a unit are shares of plain
  training's. All figures are of CPUs, and of this project alone; the papers' own are not repeated.
- A figure has a link to its stored run, or to a table of another page. [Benchmarks](benchmarks.md) says which
  stored run is older than a change of the code.
- The classes in which an answer is optimal differ; [planners](planners/index.md) names each.

A program writes this page from [landscape.toml](landscape.toml), so do not edit the page. A test compares the
two, and looks for each file, test, planner and figure that the data name:

    python3 scripts/landscape.py
"""


def load(root):
    return tomllib.loads((root / DATA).read_text(encoding="utf-8"))["section"]


def table(columns):
    """Returns the lines of a table; a column that is empty in every row is left out."""
    columns = [(title, cells) for title, cells in columns if any(cells)]
    lines = [[title for title, _ in columns], ["---"] * len(columns)]
    lines += zip(*(cells for _, cells in columns), strict=True)
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def here(row):
    names = [f"[`{name}`](planners/{name}.md)" for name in row.get("planners", [])]
    parts = [("planner " if len(names) == 1 else "planners ") + ", ".join(names)] if names else []
    parts += [row["here"]] if "here" in row else []
    return "; ".join(parts) + (f"<br>Try {row['try']}" if "try" in row else "")


def measured(row):
    if "figure" not in row:
        return ""
    text = "stored run" if row["stored"].startswith("docs/benchmarks/") else "table"
    return f"{row['figure']} ([{text}]({os.path.relpath(row['stored'], PAGE.parent)}))"


def name(row):
    return row["name"] + (f" ({row['source']})" if "source" in row else "")


def code(texts):
    return ", ".join(f"`{text}`" for text in texts)


def page(sections):
    rows = [row for section in sections for row in section["method"]]
    count = collections.Counter(row["status"] for row in rows)
    totals = ", ".join(f"{count[status]} {status}" for status in STATUSES)
    parts = [HEAD.format(count=len(rows), totals=totals)]
    for section in sections:
        rows = section["method"]
        parts.append(f"## {section['title']}\n" + (f"\n{section['text']}\n" if "text" in section else ""))
        parts.append(table([
            ("method", [name(row) for row in rows]),
            ("what it does", [row.get("does", "") for row in rows]),
            ("status", [row["status"].replace("not here", "**not here**") for row in rows]),
            ("here", [here(row) for row in rows]),
            ("measured here", [measured(row) for row in rows]),
            ("what is not there", [row.get("missing", "") for row in rows]),
        ]))
    parts.append("## Code and tests\n")
    for section in sections:
        rows = [row for row in section["method"] if "code" in row]
        if rows:
            parts.append(table([
                (section["title"], [row["name"] for row in rows]),
                ("code", [code(row["code"]) for row in rows]),
                ("tests", [code(row["tests"]) for row in rows]),
            ]))
    return "\n".join(parts)


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    root = pathlib.Path(__file__).resolve().parent.parent
    text = page(load(root))
    if not sys.argv[1:]:
        (root / PAGE).write_text(text, encoding="utf-8")
    elif (root / PAGE).read_text(encoding="utf-8") != text:
        print(f"{PAGE} is not what {DATA} says: run scripts/landscape.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
