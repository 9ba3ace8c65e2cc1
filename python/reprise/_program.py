"""A step that is named on the command line, as MODULE:FUNCTION or FILE.py:FUNCTION."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import Any

from .errors import InputError


def name_of(what: str) -> tuple[str, str] | None:
    """Returns the module and the function of a name, or None if it is the name of a file.

    Raises:
        InputError: The name has no function, and there is no such file.
    """
    module, colon, function = what.rpartition(":")
    if colon and module and function:
        return module, function
    if os.path.exists(what):
        return None
    raise InputError(f'"{what}" is no file; a step is named as MODULE:FUNCTION or FILE.py:FUNCTION')


def made_by(module: str, function: str) -> dict[str, Any]:
    """Calls the user's function, and returns the arguments that it made.

    Args:
        module: The name of a module, or of a file that ends with .py.
        function: The name of the function. It takes no arguments.

    Returns:
        The arguments, among them "step", the step, and "sample", a tuple of its arguments.

    Raises:
        InputError: There is no such function, or it returns no step with a sample.
    """
    make = getattr(_module(module), function, None)
    if not callable(make):
        names = [n for n, v in vars(_module(module)).items() if callable(v) and n[:1] != "_"]
        have = f"; it has {', '.join(sorted(names)[:12])}" if names else ""
        raise InputError(f'{module} has no function "{function}"{have}')
    made = make()
    if isinstance(made, dict):
        arguments = dict(made)
    elif isinstance(made, tuple) and made and callable(made[0]):
        arguments = {"step": made[0], "sample": made[1:]}
    else:
        arguments = {"step": made, "sample": ()}
    step, sample = arguments.get("step"), arguments.get("sample", ())
    if not callable(step):
        raise InputError(
            f"{module}:{function} returns a {type(made).__name__}; it has to return the step and "
            "its sample, `return step, x, y`, or a dict with both"
        )
    arguments["sample"] = sample if isinstance(sample, tuple) else (sample,)
    if not arguments["sample"]:
        raise InputError(
            f"{module}:{function} returns a step without a sample of its inputs: "
            "`return step, x, y`"
        )
    return arguments


def _module(name: str) -> Any:
    if name.endswith(".py"):
        if not os.path.isfile(name):
            raise InputError(f'there is no file "{name}"')
        sys.path.insert(0, os.path.dirname(os.path.abspath(name)))
        known = os.path.basename(name).removesuffix(".py")
        specification = importlib.util.spec_from_file_location(known, name)
        assert specification is not None and specification.loader is not None
        module = sys.modules.get(known)
        if module is None or getattr(module, "__file__", None) != name:
            module = importlib.util.module_from_spec(specification)
            sys.modules[known] = module
            specification.loader.exec_module(module)
        return module
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise
        raise InputError(f'there is no module "{name}" here or among the installed ones') from error
