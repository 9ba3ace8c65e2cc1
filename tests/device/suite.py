"""Reprise's promises on a device, checked through the Python package.

    python suite.py --device cuda -o results

On each small model, in each mode and at three budgets: the bits of plain training on the same
device, with deterministic algorithms; the peak within the budget, as the device's own allocator
counts it; the predicted peak within 1 % of the measured one. Then the device runs out of memory at
several places of a step: everything must be as before the step, and the next steps must have the
bits of plain training.

Each subject (a mode and a model) runs in a process of its own, so that a crash ends one row only.
suite.json and suite.md go into the folder of -o. The exit code is 1 if a check failed.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "bench" / "python"))
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic with it.

import reprise  # noqa: E402
import torch  # noqa: E402
from device_memory import DeviceMemory, machine, use_device  # noqa: E402
from state import Image, State, first_difference  # noqa: E402
from subject import HOST_MEMORY, MODELS, MODES, OTHER_DEVICE, Runner, make  # noqa: E402

BUDGETS = ("100%", "middle", "least")  # of plain training's peak; between the two; the smallest
TOLERANCE = 0.01  # of the measured peak
FAILURES = (0.05, 0.2, 0.4, 0.6, 0.8, 0.95)  # places in a step, as shares of its memory


@dataclass
class Check:
    """One promise that was checked."""

    mode: str
    model: str
    budget: str
    promise: str
    passed: bool | None  # None: it was left out, and detail says why
    detail: str = ""


def two_steps(
    run: Callable[[], torch.Tensor], state: State, optimizer: torch.optim.Optimizer | None
) -> Image:
    """Runs two steps from the beginning. The second one shows what the first one left behind."""
    state.put_back(optimizer)
    run()
    state.subject.model.zero_grad()
    return state.now(run())


class Checks:
    """Checks one subject and collects what was found."""

    def __init__(self, mode: str, model: str, device: torch.device, large: bool) -> None:
        self.mode, self.model = mode, model
        self.memory = DeviceMemory(device)
        self.subject = make(model, device, large)
        self.state = State(self.subject, device)
        self.found: list[Check] = []

    def note(self, budget: str, promise: str, passed: bool | None, detail: str = "") -> None:
        self.found.append(Check(self.mode, self.model, budget, promise, passed, detail))

    def run(self) -> None:
        if self.mode == "online":
            self.run_online()
            return
        if self.memory.device.type == "cpu" and self.mode in HOST_MEMORY:
            self.note("", "values move to the host", None, "the memory of the CPU is the host's")
            return
        if self.memory.device.type == "cpu" and self.mode == OTHER_DEVICE:
            self.note("", "another device", None, "the other device of these checks is the CPU")
            return
        expected = self.plain()
        runner = Runner(self.mode, self.subject, self.memory.device)
        most = 0
        for budget in BUDGETS:
            self.memory.reset()
            if budget == "least":
                runner.plan_least()
            elif budget == "middle":
                runner.plan((most + runner.plan_least()) // 2)
            else:
                most = runner.plan(budget)
            self.at_budget(runner, budget, expected)
        if self.mode == "graph, updates inside":
            # Parameters may be updated when the step fails; the exception names them.
            return
        # On the CPU a step takes no memory any more once it has an arena.
        runner.plan((most + runner.plan_least()) // 2, arena=False)
        self.out_of_memory(runner, expected)

    def plain(self) -> Image:
        """Returns the result of two plain steps, and checks that they repeat their own bits."""
        optimizer = None
        if self.mode == "graph, updates inside":
            optimizer = torch.optim.SGD(self.subject.model.parameters(), lr=0.1, momentum=0.9)

        def run() -> torch.Tensor:
            loss = self.subject.step(self.subject.x, self.subject.y)
            if optimizer is not None:
                optimizer.step()
                optimizer.zero_grad()
            return loss

        first = two_steps(run, self.state, optimizer)
        again = first_difference(first, two_steps(run, self.state, optimizer))
        self.note("", "plain training repeats its bits", not again, again)
        self.state.put_back(None)
        return first

    def at_budget(self, runner: Runner, budget: str, expected: Image) -> None:
        found = two_steps(runner.run, self.state, runner.optimizer)
        difference = first_difference(found, expected)
        self.note(budget, "bits of plain training", not difference, difference)
        if runner.device_graph:
            # The first step records the memory, the second lies in the arena.
            two_steps(runner.run, self.state, runner.optimizer)
            found = two_steps(runner.run, self.state, runner.optimizer)
            difference = first_difference(found, expected)
            report = runner.planned.report()
            note = difference or f"{report.graphed} graphed; {report.no_device_graph}"
            self.note(budget, "bits of plain training as a device graph", not difference, note)
        del found
        self.subject.model.zero_grad()
        self.memory.reset()
        loss = runner.run()
        self.memory.synchronize()
        peak = self.memory.peak()
        del loss
        report = runner.planned.report()
        limit = report.budget_bytes
        if self.mode in HOST_MEMORY:
            # A plan with the most memory moves nothing. In chain mode simulated devices, which have
            # no heap for Python, move nothing either.
            moved = report.moved_out_bytes
            passed: bool | None = True if moved else None
            heap = self.memory.device.type == "cuda" or self.mode.startswith("graph")
            if not moved and budget != BUDGETS[0] and heap:
                passed = False
            self.note(budget, "values move to the host", passed, f"{moved:,} B moved out")
        if self.mode == OTHER_DEVICE:
            (there,) = report.other_devices
            used = there.runs > 0 or report.moved_out_bytes > 0
            detail = f"{there.runs} operations there, {report.moved_out_bytes:,} B moved to it"
            self.note(budget, "the other device is used", True if used else None, detail)
        within = limit is None or peak <= limit
        self.note(budget, "peak within the budget", within, f"{peak:,} of {limit or 0:,} B")
        predicted = report.predicted_peak_bytes
        off = abs(predicted - peak) / peak
        self.note(
            budget,
            "prediction within 1 %",
            off <= TOLERANCE,
            f"predicted {predicted:,} B, measured {peak:,} B: {100 * off:.3f} %",
        )

    def out_of_memory(self, runner: Runner, expected: Image) -> None:
        failed = 0
        for place, make_fail in self.failures(runner):
            before = self.state.now()
            reason = ""
            with make_fail:
                try:
                    loss = runner.run()
                    del loss
                except (torch.OutOfMemoryError, reprise.BudgetError) as error:
                    reason = str(error).splitlines()[0][:80]
                    del error
            gc.collect()
            if not reason:
                continue
            failed += 1
            difference = first_difference(self.state.now(), before)
            where = f"no memory at {place}"
            self.note(where, "all as before", not difference, difference or reason)
        some: bool | None = failed > 0
        detail = f"{failed} of {len(FAILURES)}"
        if not failed and self.model == "convolutions" and self.memory.device.type == "cuda":
            some, detail = None, "cuDNN takes algorithms that need less memory, and none failed"
        self.note("no memory", "some step failed", some, detail)
        found = two_steps(runner.run, self.state, runner.optimizer)
        difference = first_difference(found, expected)
        passed: bool | None = not difference
        if difference and some is None:
            # It remembers them. Plain training that ran short of memory would do so, too.
            passed, difference = None, f"cuDNN still takes other algorithms: {difference}"
        self.note("after it", "bits of plain training", passed, difference)

    def failures(self, runner: Runner) -> Iterator[tuple[str, Any]]:
        """Yields names of places in a step, and contexts in which memory ends there."""
        self.subject.model.zero_grad()
        self.memory.reset()
        level, reserved = self.memory.live(), self.memory.reserved() or 0
        runner.run()
        self.memory.synchronize()
        need = self.memory.peak() - level
        more = (self.memory.reserved_peak() or 0) - reserved
        for share in FAILURES:
            self.memory.reset()
            kind = self.memory.device.type
            if kind == "cuda":
                yield f"{share:.2f}", self.memory.limited(reserved + int(share * more))
            elif kind == "cpu":
                limit = runner.planned.report().budget_bytes
                room = max(0, limit - self.memory.live() - int(share * need))
                yield f"{share:.2f}", Ballast(room)
            elif kind == "sim":
                yield f"{share:.2f}", FailedAllocation(self.memory.device, 1 + int(share * 60))

    def run_online(self) -> None:
        if self.memory.device.type == "sim":
            self.note("", "online mode", None, "no front before the allocator of this device")
            return
        expected = self.plain()
        self.memory.reset()
        self.subject.step(self.subject.x, self.subject.y)
        peak = self.memory.peak()
        self.subject.model.zero_grad()
        online = reprise.online(budget=int(0.8 * peak), device=self.memory.device)

        def run() -> torch.Tensor:
            with online:
                return self.subject.step(self.subject.x, self.subject.y)

        found = two_steps(run, self.state, None)
        difference = first_difference(found, expected)
        self.note("80%", "bits of plain training", not difference, difference)
        report = online.report()
        within = report.measured_peak_bytes <= (report.budget_bytes or 0)
        detail = f"{report.measured_peak_bytes:,} of {report.budget_bytes or 0:,} B"
        self.note("80%", "peak within the budget", within, detail)


class Ballast:
    """Holds memory of the CPU, so that less of a budget is left."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __enter__(self) -> None:
        self.held: torch.Tensor | None = torch.empty(self.size, dtype=torch.uint8)

    def __exit__(self, *_: Any) -> None:
        self.held = None


class FailedAllocation:
    """Lets one allocation of a simulated device fail."""

    def __init__(self, device: torch.device, number: int) -> None:
        self.index, self.number = device.index, number

    def __enter__(self) -> None:
        import sim

        sim.fail_allocation(self.index, self.number)

    def __exit__(self, *_: Any) -> None:
        import sim

        sim.fail_allocation(self.index, 0)


def check_one(mode: str, model: str, device: torch.device, large: bool) -> list[Check]:
    """Checks one subject. What goes wrong is one more check that failed."""
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    if device.type == "sim" and model.endswith("bfloat16"):
        return [Check(mode, model, "", "autocast", None, "the simulated devices have none")]
    checks: Checks | None = None
    try:
        checks = Checks(mode, model, device, large)
        checks.run()
        found = checks.found
    except Exception as error:
        traceback.print_exc()
        found = checks.found if checks else []
        reason = f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"
        found.append(Check(mode, model, "", "the checks run to their end", False, reason))
    return found


def in_a_process(mode: str, model: str, options: argparse.Namespace) -> list[Check]:
    command = [sys.executable, "-B", str(Path(__file__).resolve()), "--device", options.device]
    command += ["--subject", mode, model]
    command += ["--sim-library", options.sim_library] if options.sim_library else []
    command += ["--large"] if options.large else []
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=options.timeout)
    except subprocess.TimeoutExpired:
        reason = f"it took more than {options.timeout} s and was stopped"
        return [Check(mode, model, "", "the checks run to their end", False, reason)]
    try:
        return [Check(**one) for one in json.loads(done.stdout.splitlines()[-1])]
    except (IndexError, ValueError, TypeError):
        tail = done.stderr.strip().splitlines()[-1:] or ["it printed nothing"]
        reason = f"the process ended with {done.returncode}: {tail[0][:200]}"
        return [Check(mode, model, "", "the checks run to their end", False, reason)]


def table(checks: list[Check], about: dict[str, Any]) -> str:
    """Returns the page of results as Markdown."""
    failed = [one for one in checks if one.passed is False]
    left_out = [one for one in checks if one.passed is None]
    lines = ["# Device suite", "", "A program writes this file, so do not edit it.", ""]
    if about["device"] == "cpu":
        lines += ["**This is a run on the CPU. Figures of a GPU are missing.**", ""]
    lines += [f"- {name}: {value}" for name, value in about.items()]
    passed = len(checks) - len(failed) - len(left_out)
    counts = f"{passed} checks passed, {len(failed)} failed, {len(left_out)} were left out."
    lines += ["", counts, ""]
    lines += ["| mode | model | budget | promise | result | detail |", "|---|---|---|---|---|---|"]
    for one in checks:
        result = {True: "passed", False: "**FAILED**", None: "left out"}[one.passed]
        cells = (one.mode, one.model, one.budget, one.promise, result, one.detail.replace("|", "/"))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, sim:0 (default: cpu)")
    parser.add_argument("--sim-library", default="", help="libsim_python.so, for the devices sim")
    parser.add_argument("--modes", nargs="*", default=MODES, choices=MODES, metavar="MODE")
    parser.add_argument("--models", nargs="*", default=MODELS, choices=MODELS, metavar="MODEL")
    parser.add_argument("--large", action="store_true", help="peaks of some 100 MB, as for a GPU")
    parser.add_argument("--timeout", type=int, default=300, help="seconds for a subject")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time (default: 1)")
    parser.add_argument("-o", "--output", help="suite.json and suite.md go into this folder")
    parser.add_argument("--subject", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    device = use_device(options.device, options.sim_library)
    options.large = options.large or device.type not in ("cpu", "sim")
    if options.subject:
        found = check_one(*options.subject, device, options.large)
        print(json.dumps([asdict(one) for one in found]))
        sys.stdout.flush()
        return 0
    checks: list[Check] = []
    subjects = [(mode, model) for mode in options.modes for model in options.models]
    with ThreadPoolExecutor(options.jobs) as threads:
        results = threads.map(lambda subject: in_a_process(*subject, options), subjects)
        for (mode, model), found in zip(subjects, results, strict=True):
            checks += found
            bad = [one for one in found if one.passed is False]
            print(f"{mode}, {model}: {len(found) - len(bad)} of {len(found)} checks", flush=True)
            for one in bad:
                print(f"  FAILED at {one.budget or 'the start'}: {one.promise}: {one.detail}")
    about = machine(device)
    if options.output:
        folder = Path(options.output)
        folder.mkdir(parents=True, exist_ok=True)
        rows = {"machine": about, "checks": [asdict(one) for one in checks]}
        (folder / "suite.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        (folder / "suite.md").write_text(table(checks, about), encoding="utf-8")
    failed = sum(one.passed is False for one in checks)
    passed = sum(one.passed is True for one in checks)
    print(f"device suite on {device}: {passed} of {len(checks)} checks passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
