"""The commands of the Python package: `python -m reprise fit ...` and `judge`."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from . import _core
from ._fit.answer import Fit
from ._fit.fit import fake_tensors, fit
from ._fit.ranks import fit_ranks
from ._fit.ranks_answer import RanksFit
from ._planning.arguments import Progress
from ._program import made_by, name_of
from .errors import BudgetError, Error, InputError

_FIT = """\
Say which memories hold a training step, what to switch on, and which batch is fastest.

WHAT is MODULE:FUNCTION or FILE.py:FUNCTION. The function takes no arguments. It makes the step and
its sample, and returns them: `return step, x, y`; or a dict of the arguments of reprise.fit(), for
example `{"step": step, "sample": (x, y), "optimizer": optimizer}`. It is called where new tensors
are fake: they take no memory, so the model may have any size. WHAT may also be the file of a
problem that was measured (reprise profile -o FILE, or captured.profile().save(FILE)).

With --ranks, WHAT is the file of a chain: how long does a step take on so many devices of this
memory, as replicas of pipelines?"""

_FIT_EXAMPLES = """\
examples:
  python -m reprise fit train.py:make --memory 80GB,24GB,8GB --flops 400T --bandwidth 2TB
  python -m reprise fit models.llama:make_7b --memory 80GB --batch 1,2,4 --html fit.html
  python -m reprise fit profile.json --memory 2GB,1GB
  python -m reprise fit chain.json --memory 80GB --ranks 8,64,512,4096 --micro-batches 4096"""

_JUDGE = """\
Say what your checkpointing takes: its bits against plain training, its measured peak, and what it
computes again.

WHAT is MODULE:FUNCTION or FILE.py:FUNCTION. The function takes no arguments. It makes the step and
its sample, and returns them: `return step, x, y`; or a dict of the arguments of reprise.judge(),
for example `{"step": step, "sample": (x, y), "plain": plain_step}`. The step runs here, plain too,
so this machine has to hold plain training."""

_JUDGE_EXAMPLES = """\
examples:
  python -m reprise judge train.py:make
  python -m reprise judge models.llama:make --no-compare --repeats 1

The exit code is 0 if the step has the bits of plain training, 1 if it has not, and 2 if it raised
an exception or something cannot be used."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m reprise", description=__doc__)
    parser.add_argument("--version", action="version", version=f"reprise {_core.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_fit(commands)
    _add_judge(commands)
    chosen = parser.parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = chosen.run
    try:
        json_file = getattr(chosen, "json", None)
        if json_file is not None and not json_file.endswith(".json"):
            raise InputError(f'--json takes a name that ends with .json, not "{json_file}"')
        return run(chosen)
    except BudgetError as error:
        print(f"reprise: {error}", file=sys.stderr)
        return 3
    except Error as error:
        print(f"reprise: {error}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 70
    except OSError as error:
        print(f"reprise: {error}", file=sys.stderr)
        return 2


def _show(answer: Any) -> None:
    try:
        print(answer, flush=True)
    except BrokenPipeError:
        # Whoever read the output has gone, as `head` does. Nothing more can be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _add_fit(commands: Any) -> None:
    parser = commands.add_parser(
        "fit",
        help="which memories hold a training step, and how fast it is there",
        description=_FIT,
        epilog=_FIT_EXAMPLES,
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
    parser.add_argument(
        "--ranks", metavar="N", help="of a chain: numbers of devices, for example 8,64,512"
    )
    parser.add_argument(
        "--micro-batches", type=int, metavar="N", help="with --ranks: of a step, over all replicas"
    )
    parser.add_argument(
        "--depths", metavar="N", help="with --ranks: parts of a pipeline (powers of two up to 64)"
    )
    parser.add_argument(
        "--network", metavar="RATE", help="with --ranks: bytes a second between replicas (--link)"
    )
    parser.add_argument(
        "--latency", default="10us", metavar="TIME", help="with --ranks: of a message (10us)"
    )
    parser.add_argument(
        "--bucket", default="25MiB", metavar="BYTES", help="with --ranks: of one sum (25MiB)"
    )
    parser.add_argument("--quiet", action="store_true", help="do not say what is being done")
    parser.set_defaults(run=_run_fit)


def _add_judge(commands: Any) -> None:
    parser = commands.add_parser(
        "judge",
        help="what a step with checkpoints of its own takes, beside plain training",
        description=_JUDGE,
        epilog=_JUDGE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", metavar="WHAT", help="MODULE:FUNCTION or FILE.py:FUNCTION")
    parser.add_argument(
        "--no-compare", action="store_true", help="do not try Reprise within the same memory"
    )
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="timed runs (3)")
    parser.set_defaults(run=_run_judge)


def _run_judge(chosen: argparse.Namespace) -> int:
    named = name_of(chosen.what)
    if named is None:
        raise InputError(
            f'"{chosen.what}" is a file, and a file has no step to run; name a function in it, as '
            "in FILE.py:FUNCTION"
        )
    from ._doctor.judge import judge  # It needs PyTorch, and fit() of a file does not.

    arguments = made_by(*named)
    options = {"compare": not chosen.no_compare, "repeats": chosen.repeats}
    try:
        found = judge(arguments.pop("step"), *arguments.pop("sample"), **(options | arguments))
    except Error:
        raise
    except Exception as error:  # Exit code 1 says that the bits differ, and this is no verdict.
        traceback.print_exc()
        raise InputError(f"the step raised {type(error).__name__}: {error}") from error
    _show(found)
    return 0 if found.well else 1


def _run_ranks(chosen: argparse.Namespace) -> int:
    if "," in chosen.memory:
        raise InputError(f'with --ranks all devices have one memory, not "{chosen.memory}"')
    if chosen.micro_batches is None:
        raise InputError("--ranks needs --micro-batches N, the micro-batches of a step")
    if name_of(chosen.what) is not None:
        raise InputError(
            "--ranks needs the file of a chain (reprise.profile(stages, sample)), not "
            f'"{chosen.what}"'
        )
    found = fit_ranks(
        chosen.what,
        ranks=_numbers(chosen.ranks, "--ranks"),
        memory=chosen.memory,
        micro_batches=chosen.micro_batches,
        depths=None if chosen.depths is None else _numbers(chosen.depths, "--depths"),
        link=chosen.link or "25GB",
        network=chosen.network,
        latency=chosen.latency,
        bucket=chosen.bucket,
        time_limit=chosen.time_limit,
        observer=None if chosen.quiet else _say,
    )
    return _give(found, chosen)


def _give(found: Fit | RanksFit, chosen: argparse.Namespace) -> int:
    if chosen.html is not None:
        found.save(chosen.html)
    if chosen.json is not None:
        found.save(chosen.json)
    _show(found)
    return 0


def _run_fit(chosen: argparse.Namespace) -> int:
    if chosen.ranks is not None:
        return _run_ranks(chosen)
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
    named = name_of(chosen.what)
    if named is None:
        found = fit(chosen.what, **options)
    else:
        with _scope(chosen.times):
            arguments = made_by(*named)
        found = fit(
            arguments.pop("step"),
            *arguments.pop("sample"),
            **({"name": named[1]} | options | arguments),
        )
    return _give(found, chosen)


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


if __name__ == "__main__":
    sys.exit(main())
