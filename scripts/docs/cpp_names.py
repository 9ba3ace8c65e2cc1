"""Knows where each C++ name is explained, and links signatures and comments to there."""

import html
import pathlib
import re
from dataclasses import dataclass

from pygments import lex
from pygments.lexers import CppLexer
from pygments.token import STANDARD_TYPES, Name, Text

NAMESPACES = ("reprise", "runtime")


@dataclass(frozen=True)
class Target:
    """Where a name is explained."""

    page: str  # its room
    anchor: str
    namespace: str
    header: str


@dataclass(frozen=True)
class Place:
    """Where a name is used."""

    header: str
    namespace: str = ""
    record: str = ""


class Index:
    """Knows every name that the pages explain."""

    def __init__(self, headers):
        self.headers = {header.path: room_of(header.path) for header in headers}
        self.types, self.functions, self.members = {}, {}, {}
        for header in headers:
            for declaration in header.declarations:
                self._add(header.path, declaration)

    def _add(self, path, declaration):
        names = self.functions if declaration.kind in ("function", "variable") else self.types
        for name in names_of(declaration):
            self._put(names, name, path, declaration)
            for member in declaration.members:
                for inner in names_of(member):
                    self._put(self.members, f"{name}::{inner}", path, declaration)

    @staticmethod
    def _put(names, name, path, declaration):
        target = Target(room_of(path), anchor_of(path, name), declaration.namespace, path)
        known = names.setdefault(name, [])
        if target not in known:
            known.append(target)

    def find(self, name, place):
        """Says what a name in a comment means: a type, a member (Plan::peak), a function."""
        name, call = name.removesuffix("()"), name.endswith("()")
        *qualifiers, last = name.split("::")
        qualifiers = [part for part in qualifiers if part not in NAMESPACES]
        if qualifiers:
            return visible(self.members.get(f"{qualifiers[-1]}::{last}", []), place)
        if not call:
            return visible(self.types.get(last, []), place)
        return (
            visible(self.members.get(f"{place.record}::{last}", []), place)
            or visible(self.functions.get(last, []), place)
            or self._member_in_header(last, place)
        )

    def _member_in_header(self, name, place):
        found = [
            target
            for whole, targets in self.members.items()
            if whole.endswith(f"::{name}")
            for target in targets
            if target.header == place.header
        ]
        return found[0] if len(found) == 1 else None


def visible(targets, place):
    """Returns the name that C++ finds, going outwards through the namespaces, or the only one."""
    namespace = place.namespace
    while namespace:
        here = [target for target in targets if target.namespace == namespace]
        if here:
            return next((target for target in here if target.header == place.header), here[0])
        namespace = namespace.rpartition("::")[0]
    return targets[0] if len(targets) == 1 else None


def room_of(path):
    """Returns the folder of a header: "model" for "reprise/model/units.h", "" for the umbrella."""
    parts = pathlib.PurePosixPath(path).parts
    return parts[1] if len(parts) > 2 else ""


def header_anchor(path):
    return pathlib.PurePosixPath(path).name


def anchor_of(path, name):
    """Headers of one page may declare the same name, so the header is in the anchor."""
    letters = (letter if re.match(r"\w", letter) else f"-{ord(letter):x}" for letter in name)
    plain = name.replace("::", ".") if re.fullmatch(r"[\w:~]+", name) else "".join(letters)
    return f"{pathlib.PurePosixPath(path).stem}.{plain}"


def names_of(declaration):
    return [] if declaration.kind == "remark" else declaration.name.split(", ")


# --- Signatures -----------------------------------------------------------------------------------


def signature(code, place, index):
    """Returns code in colours, its types with links, as a block of HTML."""
    spans, before = [], ["", ""]
    for kind, text in lex(code, CppLexer(stripnl=False, ensurenl=False)):
        shown = html.escape(text)
        foreign = before[1] == "::" and before[0] not in NAMESPACES
        target = visible(index.types.get(text, []), place) if kind in Name and not foreign else None
        if target is not None:
            shown = f'<a href="{target.page}.html#{target.anchor}">{shown}</a>'
        style = "" if kind in Text else STANDARD_TYPES.get(kind, "")
        spans.append(f'<span class="{style}">{shown}</span>' if style else shown)
        if before[1] + text == "::":
            before[1] = "::"
        elif text.strip():
            before = [before[1], text]
    return f'<div class="highlight signature"><pre><code>{"".join(spans)}</code></pre></div>'


# --- Comments -------------------------------------------------------------------------------------

ITEM = re.compile(r"(?:-|\d+\.) ")
# CODE matches the names of code in a comment, with or without backticks, and the names of files.
CODE = re.compile(
    r"""`(?P<quoted>[^`]+)`
      | \b(?P<page>docs/[\w/]+\.md)\b
      | \b(?P<header>(?:reprise/)?\w+/\w+\.h)\b
      | \b(?P<file>(?:src|examples|tests|bench)/[\w/.*]*\w)
      | \b(?P<call>[A-Za-z_][\w:]*\(\))
      | \b(?P<qualified>[A-Za-z_]\w*(?:::\w+)+)\b
      | \b(?P<symbol>[a-z]_(?:\w+|\{[^}\s]*\}))
      | \b(?P<camel>[A-Z][a-z0-9]+[A-Z]\w*)\b
      | \b(?P<word>k[A-Z]\w*|[a-z]\w*_\w+)\b""",
    re.VERBOSE,
)
SPECIAL = re.compile(r"([\\`*_\[\]#|$~])")


def markdown(lines, place, index):
    """Returns a comment as Markdown. Lines that stand further to the right are code."""
    return "\n\n".join(
        "```cpp\n" + "\n".join(dedented(block)) + "\n```" if code else prose(block, place, index)
        for code, block in blocks(lines)
    )


def blocks(lines):
    """Yields the paragraphs and the blocks of code: for each whether it is code, and its lines."""
    result, in_list, fresh = [], False, True
    for line in lines:
        if not line.strip():
            in_list, fresh = False, True
            continue
        in_list = in_list or ITEM.match(line) is not None
        code = line.startswith("  ") and not in_list
        if fresh and code and result and result[-1][0]:
            result[-1][1].extend(["", line])  # an empty line inside code
        elif fresh or code != result[-1][0]:
            result.append((code, [line]))
        else:
            result[-1][1].append(line)
        fresh = False
    return result


def dedented(block):
    indent = min(len(line) - len(line.lstrip()) for line in block if line)
    return [line[indent:] for line in block]


def prose(block, place, index):
    """Writes a paragraph, a list, or one after the other."""
    items = [[]]
    for line in block:
        if ITEM.match(line):
            items.append([])
        items[-1].append(line.strip())
    text = inline(" ".join(items[0]), place, index)
    points = ["- " + inline(ITEM.sub("", " ".join(item), 1), place, index) for item in items[1:]]
    return "\n\n".join(part for part in (text, "\n".join(points)) if part)


def inline(text, place, index):
    """Returns text in which names are code, and links where they are explained."""
    result, at = [], 0
    for match in CODE.finditer(text):
        result += [escaped(text[at : match.start()]), name_in_text(match, place, index)]
        at = match.end()
    return "".join(result) + escaped(text[at:])


def escaped(text):
    return html.escape(SPECIAL.sub(r"\\\1", text), quote=False)


def name_in_text(match, place, index):
    kind = match.lastgroup
    text = match.group(kind)
    if kind == "page":
        return f"[{escaped(text)}](../../{text.removeprefix('docs/')})"
    if kind == "header":
        path = f"reprise/{text.removeprefix('reprise/')}"
        room = index.headers.get(path)
        return f"[`{text}`]({room}.md#{header_anchor(path)})" if room else f"`{text}`"
    target = index.find(text, place) if re.fullmatch(r"[\w:]+(\(\))?", text) else None
    if kind == "camel" and target is None:
        return text  # LibTorch, say
    return f"[`{text}`]({target.page}.md#{target.anchor})" if target else f"`{text}`"
