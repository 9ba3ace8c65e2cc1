"""Lets torchvision be imported where its compiled operators cannot be loaded.

The torchvision of PyPI is built for CUDA, so beside a PyTorch for the CPU it finds no operators and
stops when it is imported. Its classifiers use none of them: names without kernels are enough.
"""

from __future__ import annotations

import importlib.util
import pathlib
import re

import torch

_DEFINED: list[torch.library.Library] = []  # The names last as long as the library object.


def name_torchvision_operators() -> None:
    """Defines the names of torchvision's operators, if torchvision cannot load them itself."""
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None or _DEFINED:
        return
    folder = pathlib.Path(found.origin).parent
    for compiled in folder.glob("_C*.so"):
        try:
            torch.ops.load_library(compiled)
            return
        except OSError:
            pass
    text = (folder / "_meta_registrations.py").read_text(encoding="utf-8")
    library = torch.library.Library("torchvision", "DEF")
    names = re.findall(r'register_(?:meta|fake)\("(?:torchvision::)?(\w+)', text)
    for name in sorted(set(names)):
        library.define(f"{name}(Tensor x) -> Tensor")
    _DEFINED.append(library)
