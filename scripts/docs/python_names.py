"""Shapes what the pages about Python are made from.

Most classes are values, and a reader wants to know their constructor and their fields. So the list
of attributes in a docstring gets the types of the fields, and the fields are not shown once more.
Special methods are left out, and so are constructors that only this package calls. The comment
above an alias of a type describes it. Names in backticks become links.
"""

import ast
import re

import griffe

SHOWN = ("__init__", "__call__")
MADE_BY = "Made by"  # in the docstring of a class that users do not construct
NAME = re.compile(r"`([\w.]+)(?:\(\))?`")


class PythonNames(griffe.Extension):
    def on_attribute_instance(self, *, node, attr, agent, **kwargs):
        if isinstance(node, ast.Assign) and attr.docstring is None:
            comment = comment_above(attr.lines_collection[attr.filepath], node.lineno)
            if comment:
                attr.docstring = griffe.Docstring(comment, lineno=node.lineno, parent=attr)

    def on_package(self, *, pkg, **kwargs):
        modules = [pkg, *pkg.modules.values()]
        found = [one for module in modules for one in module.members.values() if not one.is_alias]
        for one in found:
            if one.is_class:
                shape(one)
        for one in found:
            link_names(one, pkg, one.members if one.is_class else {})
            for member in one.members.values() if one.is_class else []:
                link_names(member, pkg, one.members)


def comment_above(lines, line):
    found = []
    while line >= 2 and lines[line - 2].startswith("#"):
        line -= 1
        found.insert(0, lines[line - 1].removeprefix("#").strip())
    return " ".join(found)


def shape(found):
    """Expects the constructors that griffe's own extension gives to dataclasses."""
    if found.docstring and MADE_BY in found.docstring.value and "__init__" in found.members:
        found.del_member("__init__")
    elif any("NamedTuple" in str(base) for base in found.bases):
        found.set_member("__init__", constructor(found))
    types = {}
    for member in list(found.members.values()):
        field = member.is_attribute and "property" not in member.labels
        special = member.is_function and member.is_special and member.name not in SHOWN
        if field:
            types[member.name] = member.annotation
        if field or special:
            found.del_member(member.name)

    def with_type(match):
        kind = types.get(match.group(1))
        return match.group() if kind is None else f"    {match.group(1)} ({kind}): "

    if found.docstring:
        before, title, fields = found.docstring.value.partition("Attributes:\n")
        fields = re.sub(r"^    (\w+): ", with_type, fields, flags=re.MULTILINE)
        found.docstring.value = before + title + fields


def constructor(found):
    """Returns the constructor of a NamedTuple, in the form of a dataclass's."""
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


def link_names(described, package, around):
    """Makes links of the names of this package that a docstring has in backticks."""
    if described.is_alias or described.docstring is None:
        return

    def linked(match):
        name = match.group(1)
        first, _, rest = name.partition(".")
        if name == described.name:
            return match.group()
        if name in around:
            target = around[name].path
        elif first in package.exports:
            shown = rest in package[first].members
            target = f"{package.name}.{name if shown else first}"
        else:
            return match.group()
        return f"[`{match.group()[1:-1]}`][{target}]"

    described.docstring.value = NAME.sub(linked, described.docstring.value)
