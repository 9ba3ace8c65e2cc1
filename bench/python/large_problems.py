"""Plans, checks and explains problems of up to 100,000 operations with the command.

A chain of N / 2 stages has N operations and the loss. A graph of N operations has blocks with a
residual sum. Sizes and times are random. Each command is a process of its own, and the page has
its time and the most memory that it held at once.
"""

from __future__ import annotations

import json
import pathlib
import random
import subprocess
import sys
import tempfile
from typing import Any

from stored_page import Page, arguments

ROOT = pathlib.Path(__file__).parents[2]
SIZES = (1_000, 10_000, 100_000)
BUDGET, LIMIT, UNIT = "50%", 20, 64  # of plain training's peak; seconds; bytes
BLOCK = 5  # operations of a block

Problem = dict[str, Any]


def chain(size: int) -> Problem:
    draw = random.Random(size)
    stages = []
    for s in range(size // 2):
        output, ns = draw.randint(1_000, 9_000) * UNIT, draw.randint(1_000, 9_000)
        stages.append(
            {
                "name": f"stage {s}",
                "output_bytes": output,
                "forward": {"ns": ns, "workspace_bytes": draw.randint(0, 1_000) * UNIT},
                "options": [
                    {
                        "name": "keep",
                        "saved_bytes": draw.randint(1, 3) * output // 2,
                        "forward": {"ns": ns},
                        "backward": {
                            "ns": 2 * ns,
                            "workspace_bytes": draw.randint(0, 1_000) * UNIT,
                        },
                    }
                ],
            }
        )
    head = {"format": "reprise.chain", "version": 1, "name": f"a chain of {size}"}
    return head | {"input": {"bytes": UNIT}, "stages": stages}


class _Tape:
    """Puts forwards down, and then their backwards with the sums of gradients."""

    def __init__(self, size: int) -> None:
        self.values: list[Problem] = []
        self.ops: list[Problem] = []
        self._draw = random.Random(size)
        self._bytes: dict[str, int] = {}

    def value(self, name: str, size: int, kind: str = "activation") -> str:
        self.values.append({"id": name, "bytes": size, "kind": kind})
        self._bytes[name] = size
        return name

    def op(self, name: str, phase: str, ns: int, reads: list[str], writes: list[str]) -> None:
        variant = {"ns": ns, "reads": reads, "writes": writes}
        self.ops.append({"id": name, "phase": phase, "variants": [variant]})

    def record(self, size: int) -> list[str]:
        """Returns the gradients of the input."""
        last = skip = self.value("x", UNIT, "input")
        forwards = []
        for k in range(size // 2):
            ends = k % BLOCK == BLOCK - 1
            reads = [last, skip] if ends and skip != last else [last]
            ns = self._draw.randint(1_000, 9_000)
            last = self.value(f"v{k}", self._draw.randint(1_000, 9_000) * UNIT)
            self.op(f"f{k}", "forward", ns, reads, [last])
            forwards.append((k, ns, reads, last))
            if ends:
                skip = last
        gradients = {last: [self.value(f"g.{last}", self._bytes[last], "gradient")]}
        self.op("loss", "loss", 1, [last], gradients[last])
        for k, ns, reads, written in reversed(forwards):
            parts = gradients.pop(written)
            if len(parts) > 1:
                total = self.value(f"g.{written}", self._bytes[written], "gradient")
                self.op(f"sum{k}", "backward", ns // 10, parts, [total])
                parts = [total]
            made = []
            for read in reads:
                made.append(self.value(f"g{k}.{read}", self._bytes[read], "gradient"))
                gradients.setdefault(read, []).append(made[-1])
            self.op(f"b{k}", "backward", 2 * ns, [*reads, *parts], made)
        return gradients["x"]


def graph(size: int) -> Problem:
    tape = _Tape(size)
    results = tape.record(size)
    head = {"format": "reprise.graph", "version": 1, "name": f"a graph of {size}"}
    return head | {"values": tape.values, "ops": tape.ops, "results": results}


# A process counts as its own what its parent held when it began. So a small one is the parent.
PARENT = """
import resource, subprocess, sys, time
begin = time.perf_counter()
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
seconds = time.perf_counter() - begin
print(seconds, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6)
"""


def run(command: list[str]) -> tuple[float, float]:
    """Returns the seconds and the most megabytes of a command. An error ends the benchmark."""
    done = subprocess.run(
        [sys.executable, "-IS", "-c", PARENT, *command], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    seconds, megabytes = map(float, done.stdout.split())
    return seconds, megabytes


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, help="operations")
    parser.add_argument("--program", default=ROOT / "build/release/reprise", help="the command")
    asked = parser.parse_args()
    page = Page(
        asked.output,
        "Large problems",
        "[The command](../commands.md#large-problems) says more.",
        text=f"The budget is {BUDGET} of plain training's peak, and the time limit {LIMIT} s.\n"
        "Extra time is that of the plan over plain training's. The gap says how much slower the\n"
        "plan is than the lower bound. The times of the commands are those of whole processes.",
    )
    page("\n| problem | operations | extra time | gap | `plan` | `check` | `explain` |")
    page("|---|--:|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as folder:
        for make in (chain, graph):
            for size in asked.sizes:
                file, found = f"{folder}/problem.json", f"{folder}/plan.json"
                pathlib.Path(file).write_text(json.dumps(make(size)), encoding="utf-8")
                program = str(asked.program)
                cells = [
                    run([program, "plan", file, "-b", BUDGET, "--time-limit", f"{LIMIT}s"]
                        + ["-o", found, "-q"]),
                    run([program, "check", file, found]),
                    run([program, "explain", file, found]),
                ]  # fmt: skip
                plan = json.loads(pathlib.Path(found).read_text(encoding="utf-8"))
                extra = plan["time_ns"] / plan["baseline"]["time_ns"] - 1
                gap = plan["time_ns"] / plan["lower_bound_ns"] - 1
                columns = " | ".join(f"{seconds:.2f} s, {mb:.0f} MB" for seconds, mb in cells)
                page(f"| {make.__name__} | {size:,} | {extra:.1%} | {gap:.1%} | {columns} |")


if __name__ == "__main__":
    main()
