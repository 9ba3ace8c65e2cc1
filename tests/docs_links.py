#!/usr/bin/env python3
"""Fails with file:line where a document is wrong about this project.

In README.md, CONTRIBUTING.md, CHANGELOG.md, SECURITY.md and all .md files under docs/ and examples/:
- relative links must lead to a file or folder, and their #anchors to a heading;
- every `reprise COMMAND` in code must be a command, and with --program PATH answer to --help;
- code after <!-- snippet: FILE NAME --> must equal the lines between // [NAME] and // [/NAME] of FILE.
  (Snippets of Python are run by tests/python/test_docs.py.)
Every planner of src/plan/registry.cc must have a page in docs/planners, a row in the index of that folder, and
a line in the navigation of mkdocs.yml.

Usage: docs_links.py SOURCE_DIR [--program build/release/reprise] | docs_links.py --self-test
"""

import pathlib
import re
import subprocess
import sys

import checking

COMMANDS = {"train", "profile", "plan", "frontier", "check", "explain", "report", "planners", "models",
            "alternatives", "doctor", "pipeline"}
# The commands of the Python package: python -m reprise COMMAND.
PYTHON_COMMANDS = {"fit", "judge"}
RUNTIME_COMMANDS = {"train", "profile", "models", "alternatives"}
TOP = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
LINK = re.compile(r"\[[^\]]*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
SPAN = re.compile(r"`([^`]+)`")
COMMAND = re.compile(r"(?:^|[\s/$(|])(-m )?reprise ([a-z][a-z-]*)(?=[\s`.,;:|)\]]|$)")
SNIPPET = re.compile(r"<!-- snippet: (\S+) (\S+) -->")
PLANNER = re.compile(r'\{\.name = "(\w+)"')
SHELL = {"", "sh", "bash", "shell", "console", "text"}


def documents(root):
    found = [root / name for name in TOP if (root / name).is_file()]
    for folder in ("docs", "examples"):
        found += sorted((root / folder).rglob("*.md"))
    return found


def fences(lines):
    """Returns for each line the language of its code block: None outside, "```" for the marks."""
    language = None
    for line in lines:
        if line.lstrip().startswith("```"):
            language = line.strip()[3:].strip() if language is None else None
            yield "```"
        else:
            yield language


def anchors(path):
    """Returns the anchors of the headings of a document, as code hosts make them, with their lines."""
    lines = path.read_text(encoding="utf-8").splitlines()
    seen, result = {}, {}
    for number, (line, fence) in enumerate(zip(lines, fences(lines))):
        heading = re.match(r"#{1,6} +(.*?)\s*#*$", line)
        if fence is not None or not heading:
            continue
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.group(1)).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        count = seen.get(slug, 0)
        seen[slug] = count + 1
        result[slug if count == 0 else f"{slug}-{count}"] = number
    return result


def check_link(path, target):
    if re.match(r"[a-z][a-z0-9+.-]*:", target):
        return None  # elsewhere
    name, _, anchor = target.partition("#")
    file = (path.parent / name).resolve() if name else path
    if not file.exists():
        return f"{target} leads nowhere"
    if anchor and file.suffix == ".md" and anchor not in anchors(file):
        return f"{target}: no such heading"
    return None


def check_snippet(root, lines, number, match):
    """Compares the code block behind the marker in lines[number] with the example."""
    file, name = match.groups()
    if not (root / file).is_file():
        return f"snippet of {file}, which is not there"
    source = (root / file).read_text(encoding="utf-8").splitlines()
    try:
        wanted = source[source.index(f"// [{name}]") + 1:source.index(f"// [/{name}]")]
    except ValueError:
        return f"{file} has no part '{name}'"
    end = number + 2
    while end < len(lines) and lines[end] != "```":
        end += 1
    return None if lines[number + 2:end] == wanted else f"differs from part '{name}' of {file}"


def check_document(root, path, used):
    faults = []
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, (line, fence) in enumerate(zip(lines, fences(lines))):
        found = []
        if fence is None:
            prose = SPAN.sub("", line)
            found += [check_link(path, target) for target in LINK.findall(prose)]
            code = SPAN.findall(line)
            if line.startswith("    "):
                code.append(line)
        else:
            code = [line] if fence in SHELL else []
        for module, command in (c for piece in code for c in COMMAND.findall(piece)):
            if module and command not in PYTHON_COMMANDS:
                found.append(f"there is no command `python -m reprise {command}`")
            if not module:
                used.add(command)
            if not module and command not in COMMANDS:
                found.append(f"there is no command `reprise {command}`")
        match = SNIPPET.search(line)
        if match:
            found.append(check_snippet(root, lines, number, match))
        place = f"{path.relative_to(root)}:{number + 1}"
        faults += [f"{place}: {fault}" for fault in found if fault]
    return faults


def check_planners(root):
    """Finds what a planner of the registry lacks in the documents."""
    registry = root / "src/plan/registry.cc"
    if not registry.is_file():
        return []
    folder = root / "docs/planners"
    index = (folder / "index.md").read_text(encoding="utf-8")
    navigation = (root / "mkdocs.yml").read_text(encoding="utf-8")
    faults = []
    for number, line in enumerate(registry.read_text(encoding="utf-8").splitlines()):
        for name in PLANNER.findall(line):
            place = f"{registry.relative_to(root)}:{number + 1}: planner {name}"
            if not (folder / f"{name}.md").is_file():
                faults.append(f"{place} has no page docs/planners/{name}.md")
            if f"| [{name}]({name}.md)" not in index:
                faults.append(f"{place} has no row in docs/planners/index.md")
            if f": planners/{name}.md\n" not in navigation:
                faults.append(f"{place} is not in the navigation of mkdocs.yml")
    return faults


def check_program(program, used):
    faults = []
    has_runtime = (program.parent / "reprise-runtime").is_file()
    for command in sorted(used & COMMANDS):
        if command in RUNTIME_COMMANDS and not has_runtime:
            continue
        done = subprocess.run([program, command, "--help"], stdin=subprocess.DEVNULL,
                              capture_output=True, timeout=60, check=False)
        if done.returncode != 0 or not done.stdout:
            faults.append(f"`reprise {command} --help` exits with {done.returncode}")
    return faults


def check(root, program=None):
    root = root.resolve()
    faults, used = [], set()
    for path in documents(root):
        faults += check_document(root, path, used)
    faults += check_planners(root)
    return faults + (check_program(program.resolve(), used) if program else [])


def self_test():
    """Breaks every rule once; the script must name exactly those lines."""
    tree = {
        "README.md": "# One `two`\n[a](docs/a.md) [b](docs/b.md)\n[c](#one-two) [d](#three)\n"
                     "[e](https://example.org/x) `[f](nowhere)`\n[`g`](docs/h.md)\n"
                     "`python -m reprise fit`\n`python -m reprise fly`\n",
        "docs/a.md": "## Same\n## Same\n[s](#same-1) [t](#same-2)\n`reprise plan x`, `reprise fly`\n"
                     "```sh\nbuild/release/reprise run\n```\n```cpp\nreprise nothing\n```\n"
                     "We reprise everything.\n",
        "docs/c.md": "<!-- snippet: x.cc good -->\n```cpp\nint a;\n```\n"
                     "<!-- snippet: x.cc bad -->\n```cpp\nint a;\n```\n<!-- snippet: x.cc no -->\n",
        "docs/planners/index.md": "| [good](good.md) | |\n| [far](far.md) | |\n",
        "docs/planners/good.md": "", "docs/planners/far.md": "", "docs/planners/hidden.md": "",
        "mkdocs.yml": "- good: planners/good.md\n- hidden: planners/hidden.md\n- page: planners/page.md\n",
        "src/plan/registry.cc": '{.name = "good",\n{.name = "far",\n{.name = "hidden",\n{.name = "page",\n',
        "x.cc": "// [good]\nint a;\n// [/good]\n// [bad]\nint b;\n// [/bad]\n",
    }
    wrong = {"README.md:2", "README.md:3", "README.md:5", "README.md:7", "docs/a.md:3", "docs/a.md:4", "docs/a.md:6",
             "docs/c.md:5", "docs/c.md:9", "src/plan/registry.cc:2",
             "src/plan/registry.cc:3", "src/plan/registry.cc:4"}
    return checking.differences(check, tree, wrong)


def main():
    program = None
    if len(sys.argv) == 4 and sys.argv[2] == "--program":
        program = pathlib.Path(sys.argv[3])
        del sys.argv[2:]
    return checking.main(__doc__, lambda root: check(root, program), self_test,
                         "the documents agree with the project")


if __name__ == "__main__":
    sys.exit(main())
