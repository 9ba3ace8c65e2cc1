"""The base class of all values that have a file format."""

from __future__ import annotations

import json
import os
from typing import Any, ClassVar, TypeVar

from .. import _core
from ..errors import InputError
from .html import fields_html
from .records import decode, encode

D = TypeVar("D", bound="Document")
# A path names a file.
Path = str | os.PathLike[str]


class Document:
    """A value that has a file format: a problem, a plan, a frontier, a profile or a run log.

    Documents are immutable; `dataclasses.replace()` makes a changed one. The fields have the names
    of the keys in the file. Sizes are bytes, and times are nanoseconds.
    """

    FORMAT: ClassVar[str] = ""
    # The version of the format that to_dict() writes.
    VERSION: ClassVar[int] = 1
    # The text that the document was read from, or an empty text. A plan names its problem by the
    # hash of the problem's text, so a document that was read keeps that text.
    _text: str = ""

    @classmethod
    def from_json(cls: type[D], text: str, name: str = "<text>") -> D:
        """Reads a document from its JSON form.

        Args:
            text: The JSON form.
            name: The name of the text in messages, for example the path of its file.

        Raises:
            InputError: The text is not a legal document of this kind. The exception has the name,
                the JSON pointer and the line.
        """
        value: D = decode(cls, json.loads(_core.normalize(cls.FORMAT, text, name)))
        object.__setattr__(value, "_text", text)
        return value

    @classmethod
    def from_dict(cls: type[D], value: dict[str, Any]) -> D:
        """Reads a document from its JSON form as a dict.

        Raises:
            InputError: The dict is not a legal document of this kind.
        """
        return cls.from_json(dumps(value), "<dict>")

    @classmethod
    def load(cls: type[D], path: Path) -> D:
        """Reads a document from a file.

        Raises:
            InputError: The file cannot be read, or it is not a legal document of this kind.
        """
        return cls.from_json(_core.read_file(os.fspath(path)), os.fspath(path))

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON form as a dict, without checking it."""
        result: dict[str, Any] = encode(self)
        return result

    def to_json(self) -> str:
        """Returns the JSON form after checking it.

        Raises:
            InputError: The document breaks a rule of its file format.
        """
        return _core.normalize(self.FORMAT, self.text(), "<object>")

    def save(self, path: Path) -> None:
        """Writes the document to a file. The file is written as a whole, or it stays as it is.

        Raises:
            InputError: The document breaks a rule of its format, or the file cannot be written.
        """
        _core.write_file(os.fspath(path), self.to_json())

    def text(self) -> str:
        """Returns the JSON text that the document was read from; else its JSON form, unchecked."""
        return self._text or dumps(self.to_dict())

    def _repr_html_(self) -> str:
        return fields_html(self)


def dumps(value: Any) -> str:
    """Returns a value as JSON text.

    Raises:
        InputError: The value has no JSON form.
    """
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"this is not a JSON value: {error}") from error
