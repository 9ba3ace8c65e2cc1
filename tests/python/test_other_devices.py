"""Captured steps whose operations run on two devices: simulated ones, in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import reprise
import torch
from torch import nn

sim = pytest.importorskip("sim", reason="the simulated accelerator is not on the path")


@pytest.fixture(scope="module", autouse=True)
def _devices() -> None:
    reprise.install_cpu_allocator()
    sim.load(os.environ["SIM_LIBRARY"])


def towers(device: str) -> tuple[nn.ModuleList, torch.Tensor]:
    torch.manual_seed(3)
    model = nn.ModuleList(
        nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8)) for _ in range(2)
    )
    return model.to(device), torch.randn(32, 64).to(device)


def step_of(model: nn.ModuleList) -> Callable[[torch.Tensor], torch.Tensor]:
    def step(x: torch.Tensor) -> torch.Tensor:
        loss = (model[0](x) * model[1](x)).mean()
        loss.backward()
        return loss

    return step


def results(model: nn.ModuleList, loss: torch.Tensor) -> list[torch.Tensor]:
    gradients = [each.grad.cpu() for each in model.parameters() if each.grad is not None]
    assert len(gradients) == 8
    return [loss.cpu(), *gradients]


@pytest.mark.parametrize(("first", "other"), [("sim:0", "sim:1"), ("cpu", "sim:0")])
def test_the_step_has_the_bits_and_the_bytes(first: str, other: str) -> None:
    model, x = towers(first)
    loss = step_of(model)(x)
    wanted = results(model, loss)
    model.zero_grad()

    step = reprise.capture(step_of(model), x, other_devices=[other])
    result = step.plan(time_limit=0.2)
    assert result.planner == "devices"
    machine = step.machine()
    assert machine is not None
    assert [memory["name"] for memory in machine["memories"]] == [first, other]
    for _ in range(2):
        model.zero_grad()
        loss = step(x)
    found = results(model, loss)
    assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))

    report = step.report()
    assert report.predicted_peak_bytes == report.measured_peak_bytes
    (there,) = report.other_devices
    assert there.device == other
    assert there.predicted_peak_bytes == there.measured_peak_bytes
    assert sim.take_reports() == []

    assert result.plan is not None
    step.use(result.plan, machine=machine)
    assert torch.equal(step(x).cpu(), wanted[0])


def test_a_capacity_is_given_by_a_machine() -> None:
    model, x = towers("sim:0")
    step = reprise.capture(step_of(model), x, other_devices=[torch.device("sim", 1)])
    step(x)  # A step that was not planned is planned for the devices, too.
    machine = step.machine()
    assert machine is not None
    machine["memories"][1]["bytes"] = 40_000
    step.plan(time_limit=0.1, machine=machine)
    step(x)
    assert step.report().other_devices[0].measured_peak_bytes <= 40_000


def test_a_device_that_is_not_another_one_is_refused() -> None:
    model, x = towers("cpu")
    with pytest.raises(reprise.InputError, match="cpu is named twice"):
        reprise.capture(step_of(model), x, other_devices=["cpu"])
