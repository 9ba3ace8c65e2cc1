"""The commands of the Python package: `python -m reprise fit ...`."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import Any

from . import _core
from ._arguments import Progress
from ._fit import fake_tensors, fit
from ._fit_answer import Fit
from .errors import BudgetError, Error, InputError

_FIT = """\
Say which memories hold a training step, what to switch on, and which batch is fastest.

WHAT is MODULE:FUNCTION or FILE.py:FUNCTION. The function takes no arguments. It makes the step and
its sample, and returns them: `return step, x, y`; or a dict of the arguments of reprise.fit(), for
example `{"step": step, "sample": (x, y), "optimizer": optimizer}`. It is called where new tensors
are fake: they take no memory, so the model may have any size. WHAT may also be the file of a
problem that was measured (reprise profile -o FILE, or captured.profile().save(FILE))."""

_EXAMPLES = """\
examples:
  python -m reprise fit train.py:make --memory 80GB,24GB,8GB --flops 400T --bandwidth 2TB
  python -m reprise fit models.llama:make_7b --memory 80GB --batch 1,2,4 --html fit.html
  python -m reprise fit profile.json --memory 2GB,1GB"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m reprise", description=__doc__)
    parser.add_argument("--version", action="version", version=f"reprise {_core.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_fit(commands)
    chosen = parser.parse_args(arguments)
    try:
        print(_run_fit(chosen))
    except BrokenPipeError:
        # Whoever read the output has gone, as `head` does. Nothing more can be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except BudgetError as error:
        print(f"reprise: {error}", file=sys.stderr)
        return 3
    except Error as error:
        print(f"reprise: {error}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 70
    return 0


def _add_fit(commands: Any) -> None:
    parser = commands.add_parser(
        "fit",
        help="which memories hold a training step, and how fast it is there",
        description=_FIT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", metavar="WHAT", help="MODULE:FUNCTION, FILE.py:FUNCTION or a file")
    parser.add_argument(
        "--memory",
        required=True,
        metavar="SIZES",
        help="the sizes of memories, for example 80GB,24GB,8GB",
    )
    parser.add_argument("--batch", metavar="ROWS", help="the sizes of batches, for example 1,2,4")
    parser.add_argument(
        "--parts", default="2,4,8,16", metavar="N", help="parts along the batch (2,4,8,16)"
    )
    parser.add_argument(
        "--times",
        choices=("estimated", "measured"),
        default="estimated",
        help="estimated from --flops and --bandwidth, or measured on this machine",
    )
    parser.add_argument("--flops", metavar="RATE", help="the device's operations a second (100T)")
    parser.add_argument("--bandwidth", metavar="RATE", help="its bytes a second (1TB)")
    parser.add_argument(
        "--overhead", default="0s", metavar="TIME", help="the launch of a call, for example 5us"
    )
    parser.add_argument("--link", metavar="RATE", help="bytes a second to the host, as in 25GB")
    parser.add_argument(
        "--fixed", default="0", metavar="SIZE", help="bytes that something else holds all the time"
    )
    parser.add_argument(
        "--time-limit", default="2s", metavar="TIME", help="the time of each search (2s)"
    )
    parser.add_argument("--threads", type=int, default=0, help="threads of a search (0: all cores)")
    parser.add_argument("--html", metavar="FILE", help="write the page to this file")
    parser.add_argument("--json", metavar="FILE", help="write all numbers to this file")
    parser.add_argument("--quiet", action="store_true", help="do not say what is being done")


def _run_fit(chosen: argparse.Namespace) -> Fit:
    options: dict[str, Any] = {
        "memory": [one for one in chosen.memory.split(",") if one.strip()],
        "batches": None if chosen.batch is None else _numbers(chosen.batch, "--batch"),
        "parts": _numbers(chosen.parts, "--parts"),
        "times": chosen.times,
        "operations": chosen.flops,
        "bandwidth": chosen.bandwidth,
        "overhead": chosen.overhead,
        "link": chosen.link,
        "fixed_bytes": chosen.fixed,
        "time_limit": chosen.time_limit,
        "threads": chosen.threads,
        "observer": None if chosen.quiet else _say,
    }
    module, colon, function = chosen.what.rpartition(":")
    if not colon:
        if not os.path.exists(chosen.what):
            raise InputError(
                f'"{chosen.what}" is no file; a step is named as MODULE:FUNCTION or '
                "FILE.py:FUNCTION"
            )
        found = fit(chosen.what, **options)
    else:
        with _scope(chosen.times):
            arguments = _made(module, function)
        found = fit(
            arguments.pop("step"),
            *arguments.pop("sample"),
            **({"name": function} | options | arguments),
        )
    for file in (chosen.html, chosen.json):
        if file is not None:
            found.save(file if file is chosen.html else _json_name(file))
    return found


def _json_name(file: str) -> str:
    if not file.endswith(".json"):
        raise InputError(f'--json takes a name that ends with .json, not "{file}"')
    return file


def _say(progress: Progress) -> None:
    print(f"reprise: {progress.message}", file=sys.stderr)


def _numbers(text: str, option: str) -> list[int]:
    try:
        return [int(one) for one in text.split(",") if one.strip()]
    except ValueError:
        raise InputError(f'{option} takes whole numbers such as 1,2,4, not "{text}"') from None


def _scope(times: str) -> contextlib.AbstractContextManager[None]:
    if times == "measured":
        return contextlib.nullcontext()
    return fake_tensors()


def _made(module: str, function: str) -> dict[str, Any]:
    """Calls the user's function, and returns the arguments of fit() that it made."""
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


if __name__ == "__main__":
    sys.exit(main())
