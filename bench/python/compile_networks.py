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
import gc
import json
import pathlib
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import reprise
import torch
from compile_advice import Row, knob, whole_blocks
from side_by_side import keep_freed_pages, through
from torch.nn import functional as F

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


@dataclass
class Trained:
    """A network with its batch and the loss of a step."""

    module: torch.nn.Module
    batch: list[torch.Tensor]
    loss: Callable[..., torch.Tensor]

    def held(self) -> int:
        """Returns the bytes that are there before a step."""
        return whole_blocks([*self.module.parameters(), *self.module.buffers(), *self.batch])


def own_network(name: str) -> Trained:
    from networks import NETWORKS, Network

    network = NETWORKS[name](False)
    module, stages = network.module, network.stages

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        same = Network(module, stages, x, y)
        return F.cross_entropy(through(same, lambda stage, *values: stage(*values)), y)

    return Trained(module, [network.x, network.y], loss)


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


class Bench:
    """Measures the rows of one network. Each trains a network of its own, from the same seed."""

    def __init__(self, name: str, repeats: int) -> None:
        self.name, self.repeats = name, repeats
        self.gradients: list[torch.Tensor] = []

    def network(self) -> Trained:
        gc.collect()
        torch._dynamo.reset()
        torch.manual_seed(0)
        return own_network(self.name) if self.name in OWN else other_network(self.name)

    def eager(self) -> Row:
        trained = self.network()
        row = Row("plain eager training", "")
        self.measure(row, trained, trained.loss)
        self.gradients = [p.grad for p in trained.module.parameters() if p.grad is not None]
        return row

    def compiled(self, row: Row, backend: Any, options: Any = None, inside: Any = None) -> Row:
        """Measures a compiled step. `row.asked` names a budget above the level for the backend."""
        trained = self.network()
        if options is not None:
            options = {**options, "budget": trained.held() + int(options["budget"])}
        compiled = torch.compile(trained.loss, backend=backend, options=options, dynamic=False)
        context: AbstractContextManager[Any] = inside or nullcontext()
        try:
            with context:
                self.measure(row, trained, compiled)
        except torch._dynamo.exc.BackendCompilerFailed as error:
            refusal = error.inner_exception
            if not isinstance(refusal, reprise.BudgetError):
                raise
            more = refusal.requested - refusal.budget
            row.failed = f"no plan; {more / 1e6:.1f} MB more is enough"
            return row
        found = [p.grad for p in trained.module.parameters() if p.grad is not None]
        pairs = list(zip(found, self.gradients, strict=True))
        far = max(float((a - b).norm() / b.norm().clamp_min(1e-30)) for a, b in pairs)
        row.same = "equal" if all(torch.equal(a, b) for a, b in pairs) else f"within {far:.0e}"
        if row.predicted:
            row.predicted -= trained.held()
        return row

    def measure(self, row: Row, trained: Trained, loss: Callable[..., torch.Tensor]) -> None:
        level = trained.held() + whole_blocks(self.gradients)
        for repeat in range(self.repeats + 1):
            trained.module.zero_grad()
            gc.collect()
            torch.manual_seed(1)
            reprise.reset_peak()
            begin = time.process_time()
            loss(*trained.batch).backward()
            seconds = time.process_time() - begin
            if repeat == 0:
                row.compiling = seconds
                continue
            row.seconds = min(row.seconds or seconds, seconds)
            row.peak = max(row.peak, reprise.peak_bytes() - level)


def predicts(row: Row) -> Callable[[reprise.CompiledGraph], None]:
    """Returns an observer that notes the largest peak of all graphs of a step."""

    def note(graph: reprise.CompiledGraph) -> None:
        plan = graph.result.plan
        row.predicted = max(row.predicted, plan.peak_bytes if plan is not None else 0)

    return note


def rows_of(name: str, compiler: str, margin: str, repeats: int) -> list[Row]:
    """Returns the rows of a network: eager, PyTorch's own, and the backend at its budgets."""
    keep_freed_pages()
    reprise.install_cpu_allocator()
    bench = Bench(name, repeats)
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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", help=f"of {', '.join(OWN + OTHERS)} (default: all)")
    parser.add_argument("-o", "--output", help="the tables go to this file (Markdown), too")
    parser.add_argument("--compiler", default="aot_eager", choices=["aot_eager", "inductor"])
    parser.add_argument("--margin", default="none", choices=["none", "measured"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    for name in options.networks:
        if name not in OWN + OTHERS:
            parser.error(f"there is no network {name!r}; there are {', '.join(OWN + OTHERS)}")
    if options.one:
        rows = rows_of(options.networks[0], options.compiler, options.margin, options.repeats)
        print(json.dumps([asdict(row) for row in rows]))
        return
    lines = [
        "# Ten networks by the backend of torch.compile\n",
        "A program writes this file, so do not edit it. "
        "[torch.compile](../torch_compile.md#measured) says how to read it.",
        "This command writes the file again:\n",
        "    OMP_NUM_THREADS=1 .venv-models/bin/python \\",
        f"      {' '.join(sys.argv)}\n",
        f"- PyTorch {torch.__version__}, Reprise {reprise.__version__}",
        f"- compiler {options.compiler}, margin {options.margin}",
        f"- {torch.get_num_threads()} thread, {platform.machine()}",
    ]
    for name in options.networks or OWN + OTHERS:
        found = table(name, in_own_process(name, options))
        print("\n".join(found), flush=True)
        lines += found
        if options.output:
            pathlib.Path(options.output).write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
