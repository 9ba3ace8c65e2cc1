"""A planned chain of stages that moves values to a disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
import reprise  # noqa: E402
import torch.nn.functional as functional  # noqa: E402
from models import assert_same_bits, one_step, perceptron, state_of, vectors  # noqa: E402

# A disk for planning: the real one may be slower.
FAST = {
    "format": "reprise.machine",
    "version": 1,
    "memories": [{"name": "device"}, {"name": "disk"}],
    "channels": [
        {"from": "device", "to": "disk", "bytes_per_second": 100_000_000_000, "latency_ns": 0},
        {"from": "disk", "to": "device", "bytes_per_second": 100_000_000_000, "latency_ns": 0},
    ],
}

# One that carries next to nothing.
SLOW: dict[str, Any] = {
    "format": "reprise.machine",
    "version": 1,
    "memories": [{"name": "device"}, {"name": "disk"}],
    "channels": [
        {"from": "device", "to": "disk", "bytes_per_second": 1000, "latency_ns": 0},
        {"from": "disk", "to": "device", "bytes_per_second": 1000, "latency_ns": 0},
    ],
}


def planned(folder: Path, **options: Any) -> Any:
    torch.manual_seed(5)
    options = {"machine": FAST, "planner": "save_on_cpu", "time_limit": 0.5} | options
    return reprise.remat(perceptron(), vectors()[0], offload=f"disk:{folder}", **options)  # type: ignore[arg-type]


def test_steps_are_those_of_plain_training(tmp_path: Path) -> None:
    torch.manual_seed(5)
    plain = perceptron()
    model = planned(tmp_path)
    for _ in range(2):
        x, y = vectors()
        one_step(plain, x, y)
        expected = state_of(plain)
        one_step(model, x, y)
        assert_same_bits(state_of(model), expected)
        report = model.report()
        assert report.measured_peak_bytes == report.predicted_peak_bytes
        assert report.moved_out_bytes == report.moved_in_bytes > 0
        assert report.waited_ns > 0
    assert not list(tmp_path.iterdir())


def test_the_plan_and_its_report_know_the_machine(tmp_path: Path) -> None:
    model = planned(tmp_path)
    plan = model.planned.plan
    kinds = {action.kind for action in plan.actions}
    assert kinds == {"run", "free", "copy", "wait"}
    copies = [action for action in plan.actions if action.kind == "copy"]
    assert {(copy.variant, copy.to) for copy in copies} == {("device", "disk"), ("disk", "device")}
    assert plan.machine is not None
    assert reprise.Plan.from_json(plan.to_json()) == plan
    page = tmp_path / "page.html"
    model.save_report(page)
    assert "disk" in page.read_text(encoding="utf-8")
    page.unlink()
    assert model.machine()["memories"][1]["name"] == "disk"
    assert reprise.remat(perceptron(), vectors()[0]).machine() is None


def test_the_disk_is_measured(tmp_path: Path) -> None:
    model = planned(tmp_path, machine=None, planner=None)
    assert model.planned.planner == "levels"
    channels = model.machine()["channels"]
    assert len(channels) == 2
    assert all(channel["bytes_per_second"] > 1_000_000 for channel in channels)


def test_mistakes_are_named(tmp_path: Path) -> None:
    for offload, words in (("tape", "disk:DIRECTORY"), ("disk:/no/such/place", "/no/such/place")):
        with pytest.raises(reprise.InputError, match=words):
            reprise.remat(perceptron(), vectors()[0], offload=offload)
    with pytest.raises(reprise.InputError, match="does not move values"):
        planned(tmp_path, planner="chain")


KILLED = """
import os, signal, sys
import torch, reprise
from torch import nn
model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(8)))
x = torch.randn(2048, 256)
planned = reprise.remat(model, x, offload="disk:" + sys.argv[1], planner="save_on_cpu")
y = planned(x)
assert planned.planned.plan.machine is not None
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, os.fspath(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not list(tmp_path.iterdir())


def step_of(model: Any) -> Callable[..., Any]:
    """Returns a step that may be captured: its random state is set outside."""

    def step(x: Any, y: Any) -> Any:
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return step


def captured(folder: Path) -> Any:
    """Returns a captured step whose plan moves values, and its model."""
    torch.manual_seed(5)
    model = perceptron()
    step = reprise.capture(step_of(model), *vectors(), alternatives=[])
    options: dict[str, Any] = {"offload": f"disk:{folder}", "machine": FAST, "time_limit": 0.3}
    most = step.plan(**options)
    with pytest.raises(reprise.BudgetError) as none:
        step.plan(budget=1, **options)
    step.plan(budget=(3 * none.value.requested + most.baseline.peak_bytes) // 4, **options)
    return step, model


def test_captured_steps_are_those_of_plain_training(tmp_path: Path) -> None:
    torch.manual_seed(5)
    plain = perceptron()
    step, model = captured(tmp_path)
    assert step.planned.planner == "graph_levels"
    for seed in range(3):
        x, y = vectors()
        expected: dict[str, Any] = {}
        for one, run in ((plain, step_of(plain)), (model, step)):
            one.zero_grad()
            torch.manual_seed(seed)
            run(x, y)
            expected = expected or state_of(one)
        assert_same_bits(state_of(model), expected)
        report = step.report()
        assert report.measured_peak_bytes == report.predicted_peak_bytes
        assert report.moved_in_bytes >= report.moved_out_bytes > 0
        assert report.waited_ns > 0
    assert not list(tmp_path.iterdir())


def test_a_captured_step_and_its_reports_know_the_machine(tmp_path: Path) -> None:
    step, _ = captured(tmp_path)
    plan, machine = step.planned.plan, step.machine()
    assert plan.machine is not None
    assert machine["memories"][1]["name"] == "disk"
    assert "disk" in str(step.explain().plan)
    page = tmp_path / "page.html"
    step.save_report(page)
    assert "disk" in page.read_text(encoding="utf-8")
    page.unlink()
    step.use(plan, offload=f"disk:{tmp_path}", machine=machine)
    step(*vectors())
    assert step.report().moved_out_bytes > 0
    with pytest.raises(reprise.InputError, match="no memory"):
        step.use(plan)
    step.plan()
    assert step.machine() is None


def test_a_step_that_is_captured_again_keeps_the_disk(tmp_path: Path) -> None:
    x, y = vectors()
    step = reprise.capture(step_of(perceptron()), x, y, on_miss="recapture")
    step.plan(offload=f"disk:{tmp_path}", time_limit=0.3)
    machine = step.machine()
    step(x[:10], y[:10])
    assert step.planned.planner == "graph_levels"
    assert step.machine() == machine


def test_mistakes_of_captured_steps_are_named(tmp_path: Path) -> None:
    step = reprise.capture(step_of(perceptron()), *vectors())
    for offload, words in (("tape", "disk:DIRECTORY"), ("disk:/no/such/place", "/no/such/place")):
        with pytest.raises(reprise.InputError, match=words):
            step.plan(offload=offload)
    with pytest.raises(reprise.InputError, match="name the memory"):
        step.plan(machine=FAST)
    with pytest.raises(reprise.InputError, match="does not move values"):
        step.plan(offload=f"disk:{tmp_path}", machine=FAST, planner="graph")


def test_auto_moves_where_that_pays(tmp_path: Path) -> None:
    torch.manual_seed(5)
    # Values are larger than the buffers of the disk.
    layers = [layer for _ in range(8) for layer in (torch.nn.Linear(128, 128), torch.nn.Tanh())]
    model = torch.nn.Sequential(*layers)
    x, y = torch.randn(4096, 128), torch.randint(0, 128, (4096,))
    step = reprise.capture(step_of(model), x, y, alternatives=[])
    options: dict[str, Any] = {"offload": f"auto:{tmp_path}", "time_limit": 1.0}
    step.plan(machine=FAST, **options)
    step(x, y)
    assert step.report().offload_choice.startswith("nothing moves")
    assert step.machine() is None
    # A busy machine measures times that tell nothing, and a folder of tests may lie in memory.
    step.plan(budget="55%", machine=FAST, **options)
    model.zero_grad()
    step(x, y)
    report = step.report()
    assert report.measured_peak_bytes == report.predicted_peak_bytes
    assert report.measured_peak_bytes <= (report.budget_bytes or 0)
    moves = report.moved_out_bytes > 0
    assert report.offload_choice.startswith(f"disk:{tmp_path}" if moves else "nothing moves")
    assert (step.machine() is not None) == moves
    step.plan(budget="90%", machine=SLOW, **options)
    model.zero_grad()
    step(x, y)
    assert step.report().offload_choice.startswith("nothing moves")
    assert step.report().moved_out_bytes == 0
    assert not list(tmp_path.iterdir())
