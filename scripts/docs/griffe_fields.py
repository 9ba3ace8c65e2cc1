"""Shapes the Python classes for the pages of the reference.

Most classes are values, and a reader wants to know their constructor and their fields. A comment
behind a field, or above it, becomes its description, and the fields that have one become a list
below the constructor. Special methods are left out, and so are constructors that only this package
calls. Names in backticks become links.
"""

import ast
import re

import griffe

SHOWN = ("__init__", "__call__")
MADE_BY = "Made by"  # in the docstring of a class that users do not construct


class Fields(griffe.Extension):
    def on_attribute_instance(self, *, node, attr, agent, **kwargs):
        if attr.docstring is None and isinstance(node, (ast.Assign, ast.AnnAssign)):
            lines = attr.lines_collection[attr.filepath]
            comment = comment_behind(lines, node) or comment_above(lines, node)
            if comment:
                attr.docstring = griffe.Docstring(comment, lineno=node.lineno, parent=attr)

    def on_package(self, *, pkg, **kwargs):
        for module in [pkg, *pkg.modules.values()]:
            for found in module.members.values():
                if found.is_alias:
                    continue
                if found.is_class:
                    shape(found)
                    for member in found.members.values():
                        link_names(member, pkg, found)
                link_names(found, pkg, found if found.is_class else None)


def link_names(described, package, around):
    """Makes links of the names of this package that a docstring has in backticks."""
    if described.is_alias or described.docstring is None:
        return

    def linked(match):
        name = match.group(1)
        first = name.partition(".")[0]
        target = ""
        if around is not None and name in around.members:
            target = f"{around.path}.{name}"
        elif first in package.exports:
            target = f"{package.name}.{name}"
        itself = not target or name == described.name
        return match.group() if itself else f"[`{match.group()[1:-1]}`][{target}]"

    described.docstring.value = re.sub(r"`([\w.]+)(?:\(\))?`", linked, described.docstring.value)


def comment_behind(lines, node):
    rest = lines[node.end_lineno - 1][node.end_col_offset :].strip()
    return rest.removeprefix("#").strip() if rest.startswith("#") else ""


def comment_above(lines, node):
    found, line = [], node.lineno - 2
    while line >= 0 and lines[line].strip().startswith("#"):
        found.insert(0, lines[line].strip().removeprefix("#").strip())
        line -= 1
    return " ".join(found)


def shape(found):
    """Expects the constructors that griffe's own extension gives to dataclasses."""
    rows = []
    docstring = found.docstring.value if found.docstring else ""
    if MADE_BY in docstring and "__init__" in found.members:
        found.del_member("__init__")
    elif any("NamedTuple" in str(base) for base in found.bases):
        found.set_member("__init__", constructor(found))
    for member in list(found.members.values()):
        field = member.is_attribute and "property" not in member.labels
        special = member.is_function and member.is_special and member.name not in SHOWN
        if field or special:
            found.del_member(member.name)
        if field and member.docstring and not member.is_private:
            text = sentence(member.docstring.value)
            rows.append(f"    {member.name} ({member.annotation}): {text}")
    if rows:
        text = "\n".join([docstring, "", "Attributes:", *rows]).strip()
        found.docstring = griffe.Docstring(text, lineno=found.lineno, parent=found)


def constructor(found):
    """The constructor of a NamedTuple, as the one of a dataclass."""
    kind = griffe.ParameterKind.positional_or_keyword
    parameters = [griffe.Parameter("self", kind=kind)]
    for field in found.members.values():
        if field.is_attribute and field.annotation is not None and "property" not in field.labels:
            parameters.append(
                griffe.Parameter(
                    field.name, annotation=field.annotation, kind=kind, default=field.value
                )
            )
    return griffe.Function("__init__", parameters=griffe.Parameters(*parameters), parent=found)


def sentence(comment):
    """Comments begin small and end without a full stop; a text does not."""
    text = comment[0].upper() + comment[1:] if comment.split()[0].isalpha() else comment
    return text if text[-1] in ".:;!?" else text + "."
