"""Trains a GPT with AdamW while values, and then the optimizer's state, too, may lie on a disk.

Every way trains a copy of the same network on the same batches. Plain training is the usual loop;
all others are captured steps with the optimizer inside. The smallest peak is that of the smallest
budget for which the way found a plan, and the peak is measured and compared with the predicted one.
The ways run one after the other, because a budget counts all tensors of the process. Times are
medians over steps. At the end the parameters and moments of each way are compared with plain
training's, bit by bit.
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import reprise
import torch
from networks import next_tokens, plain_gpt, step_of
from stored_page import Page, arguments

VOCABULARY, WIDTH, LENGTH, LAYERS, ROWS, WARM = 2048, 384, 64, 8, 2, 3


def batch(number: int) -> tuple[Any, Any]:
    return next_tokens(VOCABULARY, (ROWS, LENGTH), number)


@dataclass
class Way:
    """One way to train, with the times of its steps in seconds.

    Attributes:
        planned: The captured step. None stands for plain training.
    """

    name: str
    model: Any
    optimizer: Any
    planned: Any = None
    report: Any = None
    result: list[Any] = field(default_factory=list)
    walls: list[float] = field(default_factory=list)
    processors: list[float] = field(default_factory=list)
    peak: int = 0
    as_predicted: bool = True

    def step(self, number: int, timed: bool) -> None:
        data = batch(number)
        wall, processor = time.perf_counter(), time.process_time()
        if self.planned is None:
            step_of(self.model)(*data)
            self.optimizer.step()
            self.optimizer.zero_grad()
        else:
            self.planned(*data)
            report = self.report = self.planned.report()
            self.peak = max(self.peak, report.measured_peak_bytes)
            self.as_predicted &= report.measured_peak_bytes == report.predicted_peak_bytes
        if timed:
            self.walls.append(time.perf_counter() - wall)
            self.processors.append(time.process_time() - processor)

    def end(self) -> None:
        """Copies parameters and moments out of the tensors that are counted, and drops the way."""
        if self.planned is not None:
            self.planned.fetch_parameters()
        tensors = [*self.model.parameters(), *state_of(self.optimizer)]
        self.result = [tensor.detach().numpy().copy() for tensor in tensors]
        self.model = self.optimizer = self.planned = None
        gc.collect()


def new_way(name: str) -> Way:
    torch.manual_seed(0)
    model = plain_gpt(VOCABULARY, WIDTH, LENGTH, LAYERS)
    return Way(name, model, torch.optim.AdamW(model.parameters(), lr=1e-3))


def plain_peak(way: Way) -> int:
    """Returns the peak of all bytes of tensors while a plain step runs, above what others hold."""
    way.step(0, timed=False)  # makes the optimizer's state
    held = [*way.model.parameters(), *state_of(way.optimizer)]
    before = reprise.live_bytes()
    reprise.reset_peak()
    way.step(1, timed=False)
    own = sum(tensor.nbytes for tensor in held)
    return reprise.peak_bytes() - before + own


def state_of(optimizer: Any) -> list[Any]:
    states = optimizer.state_dict()["state"]
    ordered = [states[number] for number in sorted(states)]
    return [tensor for state in ordered for tensor in state.values() if torch.is_tensor(tensor)]


def smallest(planned: Any, limit: float, **options: Any) -> int:
    """Plans for the smallest budget that the search finds, and returns it."""
    try:
        planned.plan(budget=1, time_limit=limit, **options)
    except reprise.BudgetError as error:
        budget = error.requested
    for _ in range(20):
        try:
            planned.plan(budget=budget, time_limit=limit, **options)
        except reprise.BudgetError:
            budget = budget * 101 // 100  # This search had less luck.
        else:
            return budget
    raise RuntimeError("no plan was found near the smallest budget")


def same(way: Way, plain: Way) -> bool:
    pairs = zip(way.result, plain.result, strict=True)
    return all(one.tobytes() == other.tobytes() for one, other in pairs)


def compare(
    doc: str | None,
    title: str,
    section: str,
    new_way: Callable[[str], Way],
    about: Callable[[Any, Any], list[str]],
    questions: Callable[[dict[str, Any], int], dict[str, dict[str, Any]]],
) -> None:
    """Trains plainly and in ways with captured steps, and writes the page.

    Args:
        section: The section of docs/memories.md that explains the page.
        about: Says of plain training's model and optimizer what they have.
        questions: Returns the options of the plan of each way, given those of the disk and plain
            training's peak. Without a budget among them, the smallest one is searched.
    """
    parser = arguments(doc)
    parser.add_argument("--disk", default=tempfile.gettempdir(), help="a folder on the disk")
    parser.add_argument("--rounds", type=int, default=9, help="timed steps of each way")
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds of the planner")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    reprise.install_cpu_allocator()
    limit = asked.time_limit
    numbers = range(2, 2 + WARM + asked.rounds)

    def train(way: Way) -> None:
        for number in numbers:
            way.step(number, timed=number >= 2 + WARM)

    plain = new_way("plain training")
    peak = plain_peak(plain)
    facts = about(plain.model, plain.optimizer)
    train(plain)
    plain.end()
    ways = [plain]
    machine: dict[str, Any] = {}
    for name, options in questions({"offload": f"disk:{asked.disk}"}, peak).items():
        way = new_way(name)
        way.step(0, timed=False)
        way.step(1, timed=False)  # as plain_peak() did
        way.planned = reprise.capture(step_of(way.model), *batch(0), optimizer=way.optimizer)
        if "offload" in options:
            if not machine:  # It is measured once.
                way.planned.plan(time_limit=limit, **options)
                machine = way.planned.machine()
            options["machine"] = machine
        if "budget" in options:
            way.planned.plan(time_limit=limit, **options)
        else:
            smallest(way.planned, limit, **options)
        train(way)
        way.end()
        ways.append(way)
    write(title, section, facts, ways, peak, machine, asked)


def main() -> None:
    def about(model: Any, optimizer: Any) -> list[str]:
        parameters = sum(tensor.nbytes for tensor in model.parameters())
        state = sum(tensor.nbytes for tensor in state_of(optimizer))
        network = f"A GPT of {LAYERS} layers, width {WIDTH}, {ROWS} rows of {LENGTH} tokens"
        return [
            f"{network}, float32, AdamW",
            f"{parameters:,} bytes of parameters, {state:,} bytes of the optimizer's state",
        ]

    def questions(disk: dict[str, Any], peak: int) -> dict[str, dict[str, Any]]:
        return {
            "recomputing alone": {},
            "activations on the disk": {**disk},
            "activations and the optimizer's state on the disk": disk | {"offload_optimizer": True},
        }

    title = "The optimizer's state on a disk"
    compare(__doc__, title, "the-optimizers-state", new_way, about, questions)


def write(
    title: str,
    section: str,
    about: list[str],
    ways: list[Way],
    peak: int,
    machine: dict[str, Any],
    asked: Any,
) -> None:
    """Writes the page of a benchmark. `section` is that of docs/memories.md which explains it."""
    out, back = (channel["bytes_per_second"] / 1e9 for channel in machine["channels"][:2])
    program = os.path.basename(sys.argv[0])
    given = " ".join(sys.argv[1:]).replace(asked.disk, "/scratch")
    link = f"[Several memories](../memories.md#{section}) says what is measured."
    say = Page(asked.output, title, link, f"bench/python/{program} {given}")
    for line in about:
        say(f"- {line}")
    say(f"- The disk was measured at {out:.2f} GB/s out and {back:.2f} GB/s back")
    load = ", ".join(f"{number:.1f}" for number in os.getloadavg())
    say(f"- Load averages at the end, with this program as 1: {load}")
    say(f"- Medians of {asked.rounds} steps\n")
    rows(say, ways, peak)


def rows(say: Callable[[str], None], ways: list[Way], peak: int) -> None:
    """Writes the table of ways. The first one is plain training, with this peak."""
    plain = ways[0]
    say(
        "| way | smallest peak, bytes | of plain's | as predicted | step, ms | processor time, ms "
        "| out and back a step, MB | waited, ms | bits |"
    )
    say("|---|--:|--:|---|--:|--:|--:|--:|---|")
    for way in ways:
        bytes = peak if way is plain else way.peak
        wall = 1e3 * statistics.median(way.walls)
        processor = 1e3 * statistics.median(way.processors)
        predicted, moved, waited, bits = "", "", "", ""
        if way is not plain:
            report = way.report
            predicted = "yes" if way.as_predicted else "NO"
            moved = f"{report.moved_out_bytes / 1e6:.1f} and {report.moved_in_bytes / 1e6:.1f}"
            waited = f"{report.waited_ns / 1e6:.1f}"
            bits = "equal" if same(way, plain) else "DIFFERENT"
        say(
            f"| {way.name} | {bytes:,} | {100 * bytes / peak:.1f} % | {predicted} | {wall:.1f} "
            f"| {processor:.1f} | {moved} | {waited} | {bits} |"
        )


if __name__ == "__main__":
    main()
