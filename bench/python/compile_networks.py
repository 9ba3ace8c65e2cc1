"""Compares what the backend `reprise` of torch.compile predicts with what a step takes.

Ten networks, three of them Reprise's own, the others of Transformers, timm and torchvision, are
compiled with their loss by PyTorch's own partitioner, with its knob `activation_memory_budget`, and
by the backend `reprise` at shares of the first peak and at the peak of the knob. A peak is the
memory that one step needs above parameters, buffers and batch, with gradients, counted by Reprise's
allocator. Times are those of the processor, the least of some steps. Gradients are compared with
those of plain eager training, bit by bit. Each network has a process of its own.

    OMP_NUM_THREADS=1 python compile_networks.py [NETWORK ...] [--compiler inductor] [-o FILE]

It needs the libraries of `make test-models`, in the environment that this command makes.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import reprise
import torch
from compiled_steps import Bench, Row, Trained, knob, own_network
from stored_page import Page, arguments, steady_memory
from torch._inductor import config as inductor

MODELS = pathlib.Path(__file__).parents[2] / "tests" / "models"
OWN = ("gpt", "unet", "resnet18")
OTHERS = (
    *("GPT-2", "Llama", "BERT"),
    *("convnext_atto", "efficientnet_b0", "xcit_nano_12_p16_224"),
    "densenet121",
)
SHARES = (1.0, 0.8, 0.65, 0.5)
KNOB = 0.5
TIMEOUT = 1800  # seconds for a network


def other_network(name: str) -> Trained:
    sys.path.insert(0, str(MODELS))
    from operators import name_torchvision_operators

    name_torchvision_operators()
    from zoo import MODELS as zoo
    from zoo import tensors_in

    case = zoo[name].make()
    names = list(case.inputs) if isinstance(case.inputs, dict) else None

    def loss(*tensors: torch.Tensor) -> torch.Tensor:
        if names is None:
            output = case.model(*tensors, **case.options)
        else:
            output = case.model(**dict(zip(names, tensors, strict=True)), **case.options)
        own = getattr(output, "loss", None)
        if own is not None:
            return own  # type: ignore[no-any-return]
        return torch.stack([one.float().square().mean() for one in tensors_in(output)]).sum()

    return Trained(case.model.train(), case.tensors(), loss)


def predicts(row: Row) -> Callable[[reprise.CompiledGraph], None]:
    """Returns an observer that notes the largest peak of all graphs of a step."""

    def note(graph: reprise.CompiledGraph) -> None:
        plan = graph.result.plan
        row.predicted = max(row.predicted, plan.peak_bytes if plan is not None else 0)

    return note


def rows_of(name: str, compiler: str, margin: str, repeats: int) -> list[Row]:
    """Returns the rows of a network: eager, PyTorch's own, and the backend at its budgets."""
    steady_memory()
    inductor.fallback_random = True  # Inductor then draws the random numbers of eager training.
    bench = Bench(lambda: own_network(name) if name in OWN else other_network(name), repeats)
    rows = [bench.eager()]
    rows.append(bench.compiled(Row("PyTorch's partitioner", ""), compiler))
    rows.append(
        bench.compiled(
            Row("`activation_memory_budget`", str(KNOB)), compiler, inside=knob(KNOB, "dp")
        )
    )
    asked = {f"{share:.2f}": int(share * rows[1].peak) for share in SHARES}
    asked["that of the knob"] = rows[2].peak
    for text, budget in asked.items():
        row = Row("backend `reprise`", text)
        options: dict[str, Any] = {
            "budget": budget, "compiler": compiler, "observer": predicts(row), "time_limit": 4.0,
            "threads": 1, "margin": margin if margin == "measured" else 0,
        }  # fmt: skip
        rows.append(bench.compiled(row, reprise.backend, options))
    return rows


def in_own_process(name: str, options: argparse.Namespace) -> list[Row]:
    command = [sys.executable, __file__, name, "--one", "--compiler", options.compiler]
    command += ["--margin", options.margin, "--repeats", str(options.repeats)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    if run.returncode:
        sys.exit(f"{name}: {run.stderr[-2000:]}")
    return [Row(**row) for row in json.loads(run.stdout.splitlines()[-1])]


def table(name: str, rows: list[Row]) -> list[str]:
    eager, base = rows[0], rows[1].peak
    lines = [
        f"\n## {name}\n",
        f"Plain eager training needs {eager.peak / 1e6:.1f} MB and takes {eager.seconds:.2f} s. "
        f"Compiled with PyTorch's partitioner it needs {base / 1e6:.1f} MB, to which the shares "
        "refer.\n",
        "| tool | asked | peak predicted | peak | time | first step | gradients |",
        "|---|---|--:|--:|--:|--:|---|",
    ]
    for row in rows[1:]:
        if row.failed:
            lines.append(f"| {row.tool} | {row.asked} | - | - | - | - | {row.failed} |")
            continue
        predicted = f"{row.predicted / base:.4f}" if row.predicted else ""
        lines.append(
            f"| {row.tool} | {row.asked} | {predicted} | {row.peak / base:.4f} | "
            f"{row.seconds / eager.seconds:.2f} | {row.compiling:.1f} s | {row.same} |"
        )
    return lines


def main() -> None:
    parser = arguments(__doc__, OWN + OTHERS, repeats=3)
    parser.add_argument("--compiler", default="aot_eager", choices=["aot_eager", "inductor"])
    parser.add_argument("--margin", default="none", choices=["none", "measured"])
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        rows = rows_of(options.networks[0], options.compiler, options.margin, options.repeats)
        print(json.dumps([asdict(row) for row in rows]))
        return
    title = "Ten networks by the backend of torch.compile"
    link = "[torch.compile](../torch_compile.md#measured) says how to read it."
    say = Page(options.output, title, link, ".venv-models/bin/python {}")
    say(f"- Compiler: {options.compiler}, margin: {options.margin}")
    for name in options.networks:
        say("\n".join(table(name, in_own_process(name, options))))


if __name__ == "__main__":
    main()
