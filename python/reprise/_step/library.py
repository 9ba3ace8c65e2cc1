"""Tells the user's code from that of Python, PyTorch and installed libraries."""

from __future__ import annotations

import os
import sys
import sysconfig
import types

import torch

_LIBRARIES = tuple(
    os.path.realpath(path) + os.sep
    for path in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
)
# The folders of PyTorch and of this package, as they stand in the names of code objects.
_HERE = os.path.dirname(os.path.dirname(__file__))
OUR_CODE = (os.path.dirname(torch.__file__) + os.sep, _HERE + os.sep)


def _folder(module: types.ModuleType) -> str:
    return os.path.dirname(os.path.realpath(module.__file__ or "")) + os.sep


_REPRISE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
_PACKAGES: tuple[str, ...] = (_folder(torch), _REPRISE + os.sep)
if "numpy" in sys.modules:
    _PACKAGES += (_folder(sys.modules["numpy"]),)


def is_library(file: str | None) -> bool:
    """Says whether a file belongs to Python, PyTorch, NumPy or this package."""
    if not file or file.startswith("<frozen"):
        return True
    path = os.path.realpath(file)
    if "site-packages" not in path and path.startswith(_LIBRARIES):
        return True
    return path.startswith(_PACKAGES)


def is_installed(file: str | None) -> bool:
    """Says whether a file belongs to a library, an installed one included."""
    return is_library(file) or "site-packages" in str(file) or "dist-packages" in str(file)


def file_of(kind: type) -> str | None:
    module = sys.modules.get(kind.__module__)
    return None if module is None else getattr(module, "__file__", None)
