#!/usr/bin/env python3
"""Trains the models of zoo.py plain and captured, and writes a table of what came out.

Each model runs in a process of its own, with a limit on its time and on its memory. The captured
step has to leave the bits of plain training in the loss, gradients, buffers and the random state,
and its peak has to be the predicted one. The program ends with 1 if a row did not.

    tests/models/run.py --output build/models           writes build/models.md and build/models.json
    tests/models/run.py --only Llama resnet18           two rows
    tests/models/run.py --train-step                    in the mode that train_step() takes
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import pathlib
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

# Calls of the captured step: two are compared, without and with an arena, and the others are timed.
COMPARED, TIMED = 2, 3
MARK = "row: "


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="MODEL", help="these models, by name")
    parser.add_argument("--output", type=pathlib.Path, help="writes OUTPUT.md and OUTPUT.json")
    parser.add_argument("--budget", default="70%", help="share of plain training's peak (70%%)")
    parser.add_argument(
        "--train-step", action="store_true", help="reprise.train_step() chooses the mode"
    )
    parser.add_argument("--seconds", type=int, default=400, help="time for a model (%(default)s)")
    parser.add_argument("--gib", type=int, default=6, help="memory for a model (%(default)s)")
    parser.add_argument("--one", metavar="MODEL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        row = row_of(options.one, options.budget, options.train_step)
        print(MARK + json.dumps(row), flush=True)
        return
    names = options.only or names_of_models()
    rows = []
    for name in names:
        rows.append(in_own_process(name, options))
        print(line_of(rows[-1]), flush=True)
    if options.output:
        sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "bench/python"))
        from run_info import measured

        head = {"budget": options.budget, "measured": measured(1, versions()), "rows": rows}
        head["train_step"] = options.train_step
        options.output.with_suffix(".json").write_text(json.dumps(head, indent=1) + "\n")
        options.output.with_suffix(".md").write_text(page(head))
    wrong = [row["name"] for row in rows if not row["well"]]
    print(f"{len(rows) - len(wrong)} of {len(rows)} models kept all promises")
    if wrong:
        sys.exit("not so: " + ", ".join(wrong))


def names_of_models() -> list[str]:
    from zoo import MODELS

    return list(MODELS)


def in_own_process(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Returns the row of a model. If its process fails, the row says why."""
    from zoo import MODELS

    def limit() -> None:
        most = options.gib << 30
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))

    row = {"name": name, "library": MODELS[name].library, "shows": MODELS[name].shows}
    command = [sys.executable, "-B", __file__, "--one", name, "--budget", options.budget]
    command += ["--train-step"] if options.train_step else []
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, timeout=options.seconds, preexec_fn=limit
        )
    except subprocess.TimeoutExpired:
        return row | {"well": False, "why": f"it took more than {options.seconds} s"}
    for line in run.stdout.splitlines():
        if line.startswith(MARK):
            return row | json.loads(line.removeprefix(MARK))
    last = (run.stderr.strip().splitlines() or [f"the process ended with {run.returncode}"])[-1]
    return row | {"well": False, "why": last}


# --- One model ----------------------------------------------------------------------------------


class World:
    """A step changes these values: gradients, buffers and the random state."""

    def __init__(self, model: Any) -> None:
        import torch

        self.model = model
        self.buffers = [(b, b.detach().clone()) for b in model.buffers()]
        self.random = torch.get_rng_state()

    def restore(self) -> None:
        import torch

        for parameter in self.model.parameters():
            parameter.grad = None
        for buffer, before in self.buffers:
            buffer.data.copy_(before)
        torch.set_rng_state(self.random)

    def bits_after(self, step: Callable[[], Any]) -> dict[str, str]:
        """Runs the step from the state before, and returns hashes of what it leaves."""
        import torch

        self.restore()
        found = {"loss": digest(step()), "random state": digest(torch.get_rng_state())}
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                found[f"gradient of {name}"] = digest(parameter.grad)
        return found | {f"buffer {n}": digest(b) for n, b in self.model.named_buffers()}


def digest(tensor: Any) -> str:
    import torch

    image = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()
    return hashlib.sha256(image.tobytes()).hexdigest()


def seconds_of(step: Callable[[], Any]) -> float:
    """Returns the processor time of a call: on one thread, what others do is not in it."""
    begin = time.process_time()
    step()
    return time.process_time() - begin


def row_of(name: str, budget: str, train_step: bool) -> dict[str, Any]:
    import reprise
    import torch
    from operators import name_torchvision_operators
    from zoo import MODELS

    torch.set_num_threads(1)
    name_torchvision_operators()
    reprise.install_cpu_allocator()
    torch.manual_seed(0)
    case = MODELS[name].make()
    case.model.train()
    function, tensors = case.step(), case.tensors()

    def plain() -> Any:
        return function(*tensors)

    world = World(case.model)
    world.bits_after(plain)  # The first step also makes what is made only once.
    reprise.reset_peak()
    expected = world.bits_after(plain)
    plain_peak = reprise.peak_bytes()
    if world.bits_after(plain) != expected:
        return {"well": False, "why": "plain training does not repeat its bits"}
    plain_seconds = min(timed(world, plain) for _ in range(TIMED))
    world.restore()
    row: dict[str, Any] = {"plain_peak_bytes": plain_peak, "plain_seconds": plain_seconds}
    try:
        begin = time.process_time()
        if train_step:
            captured, row["larger_budget"] = chosen(world, function, tensors, case.model, budget)
            row["mode"] = captured.mode
        else:
            captured = reprise.capture(function, *tensors, modules=[case.model])
        row["capture_seconds"] = time.process_time() - begin
        if not train_step:
            row |= {"ops": len(captured.graph.ops), "host_reads": captured.host_reads()}
            row["guards"] = len(captured.guards())
            row["larger_budget"] = not fits(captured, budget)
    except reprise.Error as error:
        return row | {"well": False, "why": str(error)}

    def planned() -> Any:
        return captured(*tensors)

    different = set()
    for _ in range(COMPARED):
        found = world.bits_after(planned)
        different |= {n for n in found.keys() | expected.keys() if found.get(n) != expected.get(n)}
    captured_seconds = min(timed(world, planned) for _ in range(TIMED))
    report = captured.report()
    if row.get("mode") == "online":
        return row | online_row(report, different, captured_seconds)
    return row | {
        "different": sorted(different),
        "budget_bytes": report.budget_bytes,
        "predicted_peak_bytes": report.predicted_peak_bytes,
        "measured_peak_bytes": report.measured_peak_bytes,
        "seconds": captured_seconds,
        "well": not different and report.measured_peak_bytes == report.predicted_peak_bytes,
    }


def online_row(report: Any, different: set[str], seconds: float) -> dict[str, Any]:
    """Returns what a step in online mode tells. It predicts no peak and keeps to its budget."""
    return {
        "different": sorted(different),
        "budget_bytes": report.budget_bytes,
        "predicted_peak_bytes": report.measured_peak_bytes,
        "measured_peak_bytes": report.measured_peak_bytes,
        "seconds": seconds,
        "well": not different and report.measured_peak_bytes <= report.budget_bytes,
    }


def chosen(
    world: World, function: Any, tensors: list[Any], model: Any, budget: str
) -> tuple[Any, bool]:
    """Returns the step in the best mode, and whether it needed a larger budget than asked."""
    import reprise

    budgets: list[str | int] = [budget, "75%", "80%", "85%", "90%", "100%"]
    while True:
        asked = budgets.pop(0)
        try:
            step = reprise.train_step(function, *tensors, modules=[model], budget=asked)
            for _ in range(2):  # A followed step is planned at its second call.
                world.restore()
                step(*tensors)
            return step, asked != budget
        except reprise.BudgetError as error:
            if asked == budget and error.requested > error.budget:
                budgets.insert(0, error.requested)
            if not budgets:
                raise


def fits(captured: Any, budget: str) -> bool:
    """Plans the step for the budget, or else for the first larger one that has a plan."""
    import reprise

    try:
        captured.plan(budget=budget)
        return True
    except reprise.BudgetError as error:
        others = [error.requested, "75%", "80%", "85%", "90%"]
    for other in others:
        with contextlib.suppress(reprise.BudgetError):
            captured.plan(budget=other)
            return False
    captured.plan(budget="100%")
    return False


def timed(world: World, step: Callable[[], Any]) -> float:
    world.restore()
    return seconds_of(step)


# --- The table ----------------------------------------------------------------------------------


def versions() -> dict[str, str]:
    import importlib.metadata
    import platform

    names = ("torch", "transformers", "timm", "torchvision")
    found = {name: importlib.metadata.version(name) for name in names}
    return found | {"python": platform.python_version()}


HEAD = (
    "| model | library | ops | host reads | guards | bits | peak, % of plain | time / plain | "
    "capture, in plain steps |\n|---|---|--:|--:|--:|---|--:|--:|--:|"
)


HEAD_OF_MODES = (
    "| model | library | mode | bits | peak, % of plain | time / plain | set-up, in plain steps |\n"
    "|---|---|---|---|--:|--:|--:|"
)


def line_of(row: dict[str, Any]) -> str:
    """Returns the row as a line of Markdown."""
    start = f"| {row['name']} | {row['library']} |"
    if "seconds" not in row:
        why = row["why"].replace("|", "/").replace("\n", " ")
        return f"{start} {row.get('ops', '')} | | | {why} | | | |"
    bits = "same" if not row["different"] else f"other: {', '.join(row['different'][:3])}"
    peak = f"{100 * row['measured_peak_bytes'] / row['plain_peak_bytes']:.1f}"
    if row["measured_peak_bytes"] != row["predicted_peak_bytes"]:
        peak += f" (predicted {100 * row['predicted_peak_bytes'] / row['plain_peak_bytes']:.1f})"
    if row["larger_budget"]:
        peak += ", larger"
    if "mode" in row:
        return (
            f"{start} {row['mode']} | {bits} | {peak} | "
            f"{row['seconds'] / row['plain_seconds']:.2f} | "
            f"{row['capture_seconds'] / row['plain_seconds']:.1f} |"
        )
    return (
        f"{start} {row['ops']} | {len(row['host_reads'])} | {row['guards']} | {bits} | {peak} | "
        f"{row['seconds'] / row['plain_seconds']:.2f} | "
        f"{row['capture_seconds'] / row['plain_seconds']:.1f} |"
    )


def page(head: dict[str, Any]) -> str:
    """Returns the page of documentation."""
    rows = head["rows"]
    well = sum(row["well"] for row in rows)
    shows = [f"- {row['name']}: {row['shows']}" for row in rows if row["shows"]]
    lines = [
        "# Models of other libraries",
        "",
        "A program writes this file, so do not edit it.",
        "[Benchmarks](../benchmarks.md#models-of-other-libraries) says what is measured.",
        "This command writes it into `build/models.md`, and as JSON into `build/models.json`:",
        "",
        "    make test-models" + (" MODELS=--train-step" if head["train_step"] else ""),
        "",
        f"- {head['measured']}",
        "- Numbers are float32, and weights are random.",
        f"- Budget: {head['budget']} of plain training's peak. Where no plan was found for it, a",
        "  larger one was taken, and the row says so.",
        "- Peaks are with parameters and gradients. Times are processor times of one thread, and",
        "  others used the machine meanwhile.",
        f"- {well} of {len(rows)} models kept all promises.",
        "",
        HEAD_OF_MODES if head["train_step"] else HEAD,
        *map(line_of, rows),
        "",
        "Some models have what not every model has:",
        "",
        *shows,
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
