"""Reads the public C++ headers: which declarations there are, and which comments belong to them.

The headers keep one style (Google's, formatted by clang-format, comments with //). So a scanner
that knows comments, literals and brackets is enough, and nothing has to be included or compiled.
The scanner raises HeaderError with file and line where it does not understand a declaration; it
never leaves one out in silence.

A comment belongs to the declaration that it stands directly above, or behind on the same line.
Declarations without a blank line between them share the comment of the first one, unless they have
their own. A comment with a blank line below is a remark of its own.
"""

import bisect
import re
from dataclasses import dataclass, field


class HeaderError(Exception):
    """A header that the scanner does not understand."""


@dataclass
class Declaration:
    """One declaration, or a remark: a comment that belongs to none."""

    kind: str  # "record", "enum", "enumerator", "alias", "function", "variable", "remark"
    name: str  # several variables of one declaration: "min, max"
    code: str  # without body, comments and the final semicolon
    namespace: str
    comment: list[str] = field(default_factory=list)  # lines above it, without //
    trailing: list[str] = field(default_factory=list)  # of the comment behind it
    members: list["Declaration"] = field(default_factory=list)  # the public ones
    joined: bool = False  # shares the comment of the declaration before


@dataclass
class Header:
    path: str  # as it is included: "reprise/model/units.h"
    intro: list[str]  # lines of the comment at its top
    declarations: list[Declaration]


TOKEN = re.compile(
    r"""(?P<space>\s+)
      | (?P<comment>//[^\n]*)
      | (?P<preprocessor>^[ \t]*\#(?:\\\n|[^\n])*)
      | (?P<literal>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
      | (?P<word>\w+(?:'\w+)*)
      | (?P<punctuation>::|.)""",
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)
# These marks are for other programs, and of no use to readers.
MARKS = re.compile(r"\s*(?:NOLINT\w*(?:\([^)]*\))?:?|IWYU pragma:.*|clang-format (?:on|off))\s*")

TEMPLATE = r"(?:template\s*<[^;{]*?>\s*)?"
TYPE = re.compile(
    TEMPLATE + r"(struct|class|union|enum)\b(?:\s+(?:class|struct)\b)?"
    r"(?:\s*\[\[.*?\]\])?(?:\s*alignas\(.*?\))?\s*(\w*)",
    re.DOTALL,
)
OPERATOR = re.compile(r"\boperator\s*(\(\)|\[\]|[^\s\w(]+|\w+)\s*\(")
FUNCTION = re.compile(r"[^=(]*?(~?\w+)\s*\((?!\*)", re.DOTALL)
BODY_FOLLOWS = re.compile(
    r"\)\s*(?:(?:const|noexcept|override|final|&&?)\s*)*(?:->[^=]*|:[^:].*)?$", re.DOTALL
)
# In the initializers of a constructor, the brace belongs to a member.
MEMBER_FOLLOWS = re.compile(r"\)\s*:[^:].*\w$", re.DOTALL)
# These are forward declarations, inherited constructors and checks.
NOT_SHOWN = re.compile(
    TEMPLATE + r"(?:using\b[^=]*$|static_assert\b"
    r"|(?:friend\s+)?(?:struct|class|union|enum(?:\s+class)?)\s+[\w:]+$)",
    re.DOTALL,
)


def parse(path, text):
    """Reads the header `path` (as it is included) with this text."""
    scanner = Scanner(path, text)
    intro = []
    while scanner.at("comment"):
        intro.append(plain(scanner.take()))
    declarations = scope(scanner, "", "")
    if scanner.token is not None:
        scanner.fail("a closing brace too many")
    return Header(path, intro, declarations)


def plain(comment):
    """Returns the text of a // comment."""
    text = comment.removeprefix("//").rstrip()
    return MARKS.sub("", text, count=1).removeprefix(" ")


class Scanner:
    """Goes through the tokens of a header, one after the other."""

    def __init__(self, path, text):
        self.path = path
        self.text = text
        self.line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
        found = TOKEN.finditer(text)
        self.tokens = [(m.lastgroup, m.group(), m.start()) for m in found if m.lastgroup != "space"]
        self.position = 0

    @property
    def token(self):
        return self.tokens[self.position] if self.position < len(self.tokens) else None

    @property
    def line(self):
        return self.line_of(self.token[2] if self.token else len(self.text))

    @property
    def line_before(self):
        """Returns the place of the token that was taken last."""
        return self.line_of(self.tokens[self.position - 1][2])

    def at(self, *expected):
        """Tells whether the next token is of one of these kinds, or has one of these texts."""
        return self.token is not None and (self.token[0] in expected or self.token[1] in expected)

    def take(self):
        if self.token is None:
            self.fail("the header ends in the middle of a declaration")
        self.position += 1
        return self.tokens[self.position - 1][1]

    def expect(self, text):
        if not self.at(text):
            self.fail(f"expected '{text}'")
        self.position += 1

    def fail(self, message, line=0):
        raise HeaderError(f"include/{self.path}:{line or self.line}: {message}")

    def line_of(self, offset):
        return bisect.bisect_right(self.line_starts, offset)

    def column_of(self, offset):
        return offset - self.line_starts[self.line_of(offset) - 1]

    def source(self, start):
        """Returns the text from token `start` to the next one, without comments and indent."""
        text, at = "", self.tokens[start][2]
        for kind, token, offset in self.tokens[start : self.position]:
            if kind == "comment":
                text = (text + self.text[at:offset]).rstrip()
            else:
                text += self.text[at:offset] + token
            at = offset + len(token)
        indent = " " * self.column_of(self.tokens[start][2])
        return "\n".join(line.removeprefix(indent).rstrip() for line in text.split("\n"))

    def skip_braces(self):
        """Goes behind the brace that closes the one that stands here."""
        depth = 0
        while True:
            depth += {"{": 1, "}": -1}.get(self.take(), 0)
            if depth == 0:
                return


class Comments:
    """Decides to which declaration of a scope a comment belongs."""

    def __init__(self, scanner):
        self.scanner = scanner
        self.waiting = []  # lines of the comment above what comes next
        self.waiting_line = 0  # where the last of them stands
        self.before = None  # the declaration before, if it is shown
        self.before_line = 0  # where it ends
        self.trailing = (0, 0)  # line and column of the last comment behind a declaration

    def add(self):
        """Notes a comment that stands here. Returns the waiting one, if it is now a remark."""
        line, column = self.scanner.line, self.scanner.column_of(self.scanner.token[2])
        text = plain(self.scanner.take())
        if line == self.before_line or self.trailing == (line - 1, column):
            self.trailing = (line, column)
            if self.before is not None:
                self.before.trailing.append(text)
            return []
        remark = self.remark(line)
        self.waiting.append(text)
        self.waiting_line = line
        return remark

    def remark(self, next_line):
        """Returns a list with the waiting comment as a remark, if it ends above this line."""
        if not self.waiting or self.waiting_line == next_line - 1:
            return []
        found, self.waiting = self.waiting, []
        return [Declaration("remark", "", "", "", found)] if any(found) else []

    def attach(self, declaration, line):
        """Gives the waiting comment to the declaration that began on its line and ends here."""
        if declaration is not None:
            declaration.comment = self.waiting
            near = self.before is not None and self.before_line >= line - 1
            declaration.joined = near and not self.waiting
        self.waiting = []
        self.ended(declaration)

    def ended(self, declaration=None):
        self.before, self.before_line = declaration, self.scanner.line_before
        self.trailing = (0, 0)


def scope(scanner, namespace, record):
    """Reads declarations up to the closing brace of a namespace or record, or the header's end.

    `record` is the keyword of the record ("class"), and empty in namespaces."""
    comments, result, shown = Comments(scanner), [], record != "class"

    def show(found):
        if shown:
            result.extend(found)

    while not (scanner.token is None or scanner.at("}")):
        if scanner.at("comment"):
            show(comments.add())
        elif scanner.at("preprocessor", ";", ","):
            scanner.take()
        elif record and scanner.at("public", "private", "protected"):
            show(comments.remark(0))
            shown = scanner.take() == "public"
            scanner.expect(":")
            comments.ended()
        else:
            line = scanner.line
            show(comments.remark(line))
            if scanner.at("namespace"):
                result += inner_namespace(scanner, namespace)
                comments.ended()
                continue
            found = enumerator(scanner) if record == "enum" else statement(scanner, namespace)
            comments.attach(found, line)
            show([found] if found is not None else [])
    show(comments.remark(0))
    return result


def inner_namespace(scanner, outer):
    scanner.take()
    name = ""
    while not scanner.at("{"):
        name += scanner.take()
    scanner.take()
    found = scope(scanner, f"{outer}::{name}".removeprefix("::"), "")
    scanner.expect("}")
    return [] if name in ("internal", "detail", "") else found


def enumerator(scanner):
    start = scanner.position
    name = scanner.take()
    while not scanner.at(",", "}", "comment"):
        scanner.take()
    code = scanner.source(start)
    if scanner.at(","):
        scanner.take()
    return Declaration("enumerator", name, code, "")


def statement(scanner, namespace):
    """Reads one declaration and goes behind it. Returns None for one that is not shown."""
    start, line, depth = scanner.position, scanner.line, 0
    while True:
        if depth == 0 and scanner.at(";"):
            head = scanner.source(start)
            scanner.take()
            return simple(scanner, head, namespace, line)
        if not scanner.at("{"):
            depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(scanner.take(), 0)
            continue
        head = scanner.source(start)
        if depth == 0 and TYPE.match(head):
            return with_members(scanner, head, namespace)
        scanner.skip_braces()
        if depth == 0 and BODY_FOLLOWS.search(head) and not MEMBER_FOLLOWS.search(head):
            return simple(scanner, head, namespace, line)


def with_members(scanner, head, namespace):
    """Reads a record or an enum with its body."""
    keyword, name = TYPE.match(head).groups()
    if not name:
        scanner.fail("a type without a name")
    scanner.expect("{")
    members = scope(scanner, namespace, keyword)
    scanner.expect("}")
    scanner.expect(";")
    kind = "enum" if keyword == "enum" else "record"
    return Declaration(kind, name, head, namespace, members=members)


def simple(scanner, head, namespace, line):
    """Reads a declaration without members."""
    if NOT_SHOWN.match(head):
        return None
    alias = re.match(TEMPLATE + r"using\s+(\w+)\s*=", head, re.DOTALL)
    if alias:
        return Declaration("alias", alias.group(1), head, namespace)
    outside = without_template_arguments(head)
    operator = OPERATOR.search(head)
    function = operator or FUNCTION.match(outside)
    if function:
        name = f"operator{function.group(1)}" if operator else function.group(1)
        return Declaration("function", name, without_initializers(head), namespace)
    pointer = re.search(r"\(\*\s*(\w+)\)", outside)
    declared = re.split(r"[={\[]", outside)[0].strip()
    names = [pointer.group(1)] if pointer else re.findall(r"(\w+)\s*(?=,|$)", declared)
    if not names:
        scanner.fail(f"this declares nothing that has a name: {head}", line)
    return Declaration("variable", ", ".join(names), head, namespace)


def without_template_arguments(code):
    before = None
    while before != code:
        before, code = code, re.sub(r"<[^<>]*>", "", code)
    return code


def without_initializers(head):
    """Returns the signature of a constructor without what it does with its members."""
    depth = 0
    for position, letter in enumerate(head):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == ")" and depth == 0:
            end = head[position + 1 :]
            return head[: position + 1] + re.sub(r"\s*(?<!:):(?!:).*", "", end, flags=re.DOTALL)
    return head
