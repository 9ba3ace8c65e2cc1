"""Eight threads call one object: every call is right, or refused by name."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
import reprise  # noqa: E402
from reprise.integrations.steps import by_kind  # noqa: E402
from torch import nn  # noqa: E402

THREADS = 8
CALLS = 2000 if os.environ.get("REPRISE_TEST_FULL") else 60


def in_threads(work: Callable[[int], None], threads: int = THREADS) -> None:
    """Calls `work(number)` in threads at once. Raises what the first one raises."""
    errors: list[BaseException] = []
    begin = threading.Barrier(threads)

    def run(number: int) -> None:
        torch.set_num_threads(1)
        begin.wait()
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    started = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    if errors:
        raise errors[0]


class Whole(nn.Module):
    """Its numbers are whole and small, so that sums of gradients are exact in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.layers: nn.Sequential = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(3)))
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randint(-1, 2, p.shape).float())

    def forward(self, x: Any) -> Any:
        return self.layers(x)


def inputs_of(number: int) -> Any:
    return torch.full((2, 4), float(number % 3))


@pytest.fixture
def model() -> Whole:
    torch.manual_seed(1)
    return Whole()


def step_of(model: nn.Module) -> Callable[[Any], Any]:
    def step(x: Any) -> Any:
        loss = model(x).sum()
        loss.backward()
        return loss.detach()

    return step


def expect_right(model: nn.Module, step: Callable[[Any], Any]) -> None:
    """Calls the step in eight threads, and compares losses and the sum of all gradients."""
    plain, parameters = step_of(model), list(model.parameters())
    losses, gradients = [], []
    for number in range(THREADS):
        model.zero_grad()
        losses.append(plain(inputs_of(number)))
        gradients.append([p.grad.clone() for p in parameters if p.grad is not None])
    model.zero_grad()
    step(inputs_of(0))  # Made before the threads start.
    model.zero_grad()

    def work(number: int) -> None:
        for _ in range(CALLS):
            assert torch.equal(step(inputs_of(number)), losses[number])

    in_threads(work)
    for k, p in enumerate(parameters):
        assert p.grad is not None
        assert torch.equal(p.grad, CALLS * sum(one[k] for one in gradients))


def test_a_captured_step(model: Whole) -> None:
    captured = reprise.capture(step_of(model), inputs_of(0))
    captured.plan(budget="1GB")
    expect_right(model, captured)


def test_a_captured_step_that_is_read_meanwhile(model: Whole) -> None:
    captured = reprise.capture(step_of(model), inputs_of(0), lockstep="always")
    captured.plan(budget="1GB")

    def work(number: int) -> None:
        for _ in range(CALLS):
            if number % 2:
                captured(inputs_of(number))
            else:
                assert captured.report().steps >= 0
                assert captured.planned.plan is not None
                assert captured.explain() is not None
            if number == 0:
                captured.plan(budget="1GB", time_limit=0)

    in_threads(work)


@pytest.mark.parametrize("mode", ["auto", "graph", "chain", "online"])
def test_train_step(model: Whole, mode: str) -> None:
    stages = model.layers if mode == "chain" else None
    step = reprise.train_step(
        step_of(model), inputs_of(0), budget="1GB", mode=mode, stages=stages,
        module=model.layers if stages is not None else None,
    )  # fmt: skip
    expect_right(model, step)


@pytest.mark.parametrize("mode", ["auto", "graph", "online"])
def test_steps_by_kind(model: Whole, mode: Any) -> None:
    expect_right(model, by_kind(step_of(model), budget="1GB", mode=mode))


def test_a_planned_model(model: Whole) -> None:
    planned = reprise.remat(model.layers, inputs_of(0), budget="1GB")

    def step(x: Any) -> Any:
        loss = planned(x).sum()
        loss.backward()
        return loss.detach()

    expect_right(model, step)


def test_online_steps(model: Whole) -> None:
    online = reprise.online(budget="1GB")
    plain = step_of(model)

    def step(x: Any) -> Any:
        with online:
            return plain(x)

    expect_right(model, step)


def test_a_step_of_its_own_for_each_thread() -> None:
    torch.manual_seed(1)
    models = [Whole() for _ in range(THREADS)]
    steps = [reprise.capture(step_of(m), inputs_of(0)) for m in models]
    for step in steps:
        step.plan(budget="1GB")

    def work(number: int) -> None:
        for _ in range(CALLS):
            steps[number](inputs_of(number))

    in_threads(work)


@pytest.mark.usefixtures("alone")
def test_a_pipeline_of_one_process(model: Whole) -> None:
    layers = list(model.layers)
    step = reprise.pipeline(
        [nn.Sequential(*layers[:2]), nn.Sequential(*layers[2:])],
        inputs_of(1)[:1],
        micro_batches=2,
        loss=lambda y, t: (y * t).sum(),
        target=inputs_of(1)[:1],
    )
    right: list[int] = []

    def work(number: int) -> None:
        # The first one leaves gradients, and a pipeline whose step was refused refuses all others.
        with contextlib.suppress(reprise.InputError, reprise.errors.PeerError):
            step.step(inputs_of(1), target=inputs_of(1))
            right.append(number)

    in_threads(work)
    assert len(right) == 1


def test_a_capture_beside_plain_training_of_another_thread(model: Whole) -> None:
    """What another thread takes meanwhile is not counted as the step's."""

    def sizes() -> Any:
        model.zero_grad()
        graph = reprise.capture(step_of(model), inputs_of(1)).graph
        workspaces = [[v.workspace_bytes for v in op.variants] for op in graph.ops]
        return workspaces, [value.bytes for value in graph.values]

    expected = sizes()
    over = threading.Event()
    other = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def train() -> None:
        x = torch.ones(32, 64)
        while not over.is_set():
            other(x).sum().backward()

    failed: list[BaseException] = []

    def train_and_tell() -> None:
        try:
            train()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=train_and_tell)
    thread.start()
    try:
        for _ in range(3):
            assert sizes() == expected
    finally:
        over.set()
        thread.join()
    assert not failed
