"""Makes pages of Markdown from the public C++ headers: one for each folder of include/reprise.

A page has a chapter for each header with the header's opening comment as its introduction, and in
the chapter a section for each type and each function.
"""

import html
import itertools
import re

import headers
from cpp_names import (
    Index,
    Place,
    anchor_of,
    escaped,
    header_anchor,
    inline,
    markdown,
    names_of,
    room_of,
    signature,
)

FOLDER = "reference/cpp"
# Each room builds on those before it. Other rooms follow by name.
ROOMS = ["model", "io", "check", "pack", "run", "plan", "report", "runtime"]
# A reader knows what these mean: equality by value, no copies, destruction.
SELF_EVIDENT = re.compile(r"~\w+\(\)|=\s*(?:delete|default)$")


def pages(root):
    """Returns the Markdown of each page by its path in the site, and tables for the overview."""
    folder = root / "include"
    found = [
        headers.parse(path.relative_to(folder).as_posix(), path.read_text(encoding="utf-8"))
        for path in sorted((folder / "reprise").rglob("*.h"))
    ]
    index = Index(found)
    rooms = {}
    for header in found:
        rooms.setdefault(room_of(header.path), []).append(header)
    order = sorted(
        rooms, key=lambda room: (ROOMS.index(room) if room in ROOMS else len(ROOMS), room)
    )
    made = {
        f"{FOLDER}/{room}.md": f"# reprise/{room}\n\n"
        + "\n\n".join(chapter(h, index) for h in rooms[room])
        for room in order
        if room
    }
    return made, "\n\n".join(overview(room, rooms[room], index) for room in order if room)


def overview(room, found, index):
    """Lists the headers of a room with the first sentence of each."""
    rows = [f"### [{room}](cpp/{room}.md)", "", "| header | what it is |", "|---|---|"]
    for header in found:
        text = " ".join(itertools.takewhile(str.strip, header.intro))
        sentence = re.split(r"(?<=\.)\s", text, maxsplit=1)[0]
        shown = re.sub(r"\[(`[^`]*`|[^\]]*)\]\([^)]*\)", r"\1", inline(sentence, Place(""), index))
        name = header.path.removeprefix(f"reprise/{room}/")
        rows.append(f"| [`{name}`](cpp/{room}.md#{header_anchor(header.path)}) | {shown} |")
    return "\n".join(rows)


def chapter(header, index):
    spaces = dict.fromkeys(one.namespace for one in header.declarations if one.namespace)
    include = f"[`#include <{header.path}>`](../../../include/{header.path})"
    parts = [
        f"## {header_anchor(header.path)} {{#{header_anchor(header.path)}}}",
        " · ".join([include, *(f"`namespace {space}`" for space in spaces)]) + "\n{.include}",
        markdown(header.intro, Place(header.path, "reprise"), index),
    ]
    parts += [section(header.path, group, index) for group in groups(header.declarations)]
    return "\n\n".join(parts)


def groups(declarations):
    """Groups declarations into sections: functions that share a name or a comment are one."""
    result = []
    for declaration in declarations:
        before = result[-1][-1] if result else declaration
        alike = declaration.kind == before.kind and declaration.kind in (
            "function",
            "alias",
            "variable",
        )
        overload = declaration.kind == "function" and declaration.name == before.name
        if result and alike and (declaration.joined or overload):
            result[-1].append(declaration)
        else:
            result.append([declaration])
    return result


def section(path, group, index):
    """Writes a heading, and what there is to say about one type or some functions."""
    first = group[0]
    place = Place(path, first.namespace, first.name if first.kind == "record" else "")
    if first.kind == "remark":
        return markdown(first.comment, Place(path, "reprise"), index)
    names = list(dict.fromkeys(name for one in group for name in names_of(one)))
    title = ", ".join(name + "()" * (first.kind == "function") for name in names)
    keyword = re.search(r"struct|class|union|enum", first.code)
    label = f"{keyword.group()} {title}" if first.kind in ("record", "enum") else title
    anchors = [anchor_of(path, name) for name in names]
    attributes = f'#{anchors[0]} data-toc-label="{html.escape(title)}"'
    parts = [f"### {escaped(label)} {{{attributes}}}", *map(mark, anchors[1:])]
    if first.kind in ("record", "enum"):
        parts += type_parts(first, place, index)
    else:
        parts += entries(group, place, index)
    return "\n\n".join(part for part in parts if part)


def mark(anchor):
    return f'<a id="{anchor}"></a>'


def type_parts(declaration, place, index):
    """Describes a record or an enum with its members."""
    parts = []
    if re.search(r"template|:", declaration.code):
        parts.append(signature(declaration.code, place, index))
    parts.append(markdown(comment_of([declaration]), place, index))
    members = [member for member in declaration.members if not self_evident(member)]
    for _, group in itertools.groupby(members, key=lambda member: member.kind):
        parts += entries(list(group), place, index, record=declaration.name)
    return parts


def self_evident(member):
    return not (member.comment or member.trailing) and SELF_EVIDENT.search(member.code) is not None


def entries(group, place, index, record=""):
    """Writes signatures, each with its comment below."""
    parts, marked = [], set()
    for run in runs(group):
        anchors = []
        for name in (name for one in run for name in names_of(one)):
            anchor = anchor_of(place.header, f"{record}::{name}")
            if record and anchor not in marked:
                anchors.append(mark(anchor))
                marked.add(anchor)
        end = "" if run[0].kind == "enumerator" else ";"
        code = "\n".join(one.code + end for one in run)
        text = markdown(comment_of(run), place, index)
        style = "member" if record else "declaration"
        shown = [
            f'<div class="{style}" markdown="1">',
            "".join(anchors) + signature(code, place, index),
            text,
            "</div>",
        ]
        parts.append("\n\n".join(part for part in shown if part))
    return parts


def runs(group):
    """Yields what one block shows: functions that share a comment, and fields that have none."""
    result = []
    for one in group:
        before = result[-1][-1] if result else one
        bare = not (before.comment or before.trailing)
        shares = one.joined and not (one.trailing or before.trailing)
        if result and shares and (bare or one.kind == "function"):
            result[-1].append(one)
        else:
            result.append([one])
    return result


def comment_of(run):
    """Returns the comment above, then the comment behind."""
    lines = []
    for one in run:
        lines += [""] * bool(lines and one.comment) + one.comment
        lines += [""] * bool(lines and one.trailing) + as_sentence(one.trailing)
    return lines


def as_sentence(lines):
    """Makes a text of a comment behind a declaration, which begins small and has no full stop."""
    text = " ".join(lines)
    if re.match(r"[a-z]+\b(?!\s*[=<>]|[:(.]\w|::)", text):
        text = text[0].upper() + text[1:]
    return [text + "." * (re.search(r"[\w)\"`]$", text) is not None)] if text else []
