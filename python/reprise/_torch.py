"""The gate to PyTorch: this module checks that the runtime fits the installed PyTorch and loads it.

All modules that train import `_runtime` from here. Importing this module raises InputError where
training is not possible.
"""

from __future__ import annotations

import os

from . import errors
from ._built_for import TORCH_VERSION
from .errors import InputError

REBUILD = (
    "with the PyTorch that you want installed, run `pip install --no-build-isolation .` in "
    "reprise's source folder"
)


def check(built: str, installed: str | None) -> None:
    """Checks that the runtime can be loaded.

    Args:
        built: The version of PyTorch that the runtime was built for. It is empty if there is no
            runtime.
        installed: The version of PyTorch that is installed, or None if there is none.

    Raises:
        InputError: The runtime cannot be loaded. The message says what to do.
    """
    if installed is None:
        raise InputError(
            "training needs PyTorch (torch), which is not installed here; planning and "
            "checking do not"
        )
    if not built:
        raise InputError(f"reprise was built without its PyTorch runtime; {REBUILD}")
    if installed.partition("+")[0] != built:
        raise InputError(
            f"reprise was built for PyTorch {built}, and {installed} is installed; {REBUILD}, or "
            f"install torch=={built}"
        )


try:
    import torch
except ImportError:
    check(TORCH_VERSION, None)
check(TORCH_VERSION, str(torch.__version__))

from . import _runtime as _runtime  # noqa: E402 - The check above comes first.

errors._last_refusal = _runtime.last_refusal
# Messages name the place in the user's program, not in these two packages.
_runtime.name_places([os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep])
