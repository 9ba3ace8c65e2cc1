"""Lockstep: the function runs beside its recording, and what it says otherwise is found."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="the runtime needs PyTorch")
pytest.importorskip("numpy", reason="some programs use NumPy")
import numpy as np
import reprise
import torch
from hostile import (
    CALLS,
    CHANGE,
    Program,
    after_call,
    difference,
    fresh_world,
    has_an_effect,
    judge,
    refusal,
    state_of,
    trained_plainly,
    update,
)
from hostile_unseen import UNSEEN
from models import assert_same_bits
from models import state_of as bits_of
from torch import nn

every_unseen = pytest.mark.parametrize("program", UNSEEN, ids=lambda program: program.name)
# In the other ones, the inputs decide.
by_state = [program for program in UNSEEN if "read_by_numpy" not in program.name]


@pytest.mark.parametrize("program", by_state, ids=lambda program: program.name)
def test_the_change_has_an_effect(program: Program) -> None:
    assert has_an_effect(program)


@every_unseen
@pytest.mark.parametrize("on_miss", ["refuse", "recapture"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_compared_at_each_call_no_program_is_wrong(program: Program, on_miss: str) -> None:
    outcome = judge(program, on_miss, lockstep="always")
    assert outcome.verdict in ("right", "refused"), outcome.detail


@every_unseen
def test_no_guard_sees_the_change(program: Program) -> None:
    outcome = judge(program, "refuse", lockstep="never")
    if outcome.verdict == "refused":  # The capture refuses it.
        assert "cannot be captured" in outcome.detail
    else:
        assert outcome.verdict == "wrong", outcome.detail


@every_unseen
def test_the_sparse_lockstep_finds_the_change_at_call_ten(program: Program) -> None:
    expected = trained_plainly(program)
    with fresh_world():
        case = program.make()
        try:
            captured = reprise.capture(case.step, *case.inputs(0))
        except reprise.InputError as error:
            assert "cannot be captured" in str(error)
            return
        for i in range(CALLS):
            if i > 0:
                case.between(i)
            before = state_of(case)
            try:
                state = after_call(case, captured, i)
            except reprise.InputError as error:
                assert i in (0, 1, 9)
                changed = difference(before, state_of(case))
                assert refusal(program, error, changed).verdict == "refused", str(error)
                return
            if i < CHANGE:
                assert not difference(expected[i], state), f"call {i}"
            update(case)
    pytest.fail("nothing was found")


class Net(nn.Module):
    """A model with buffers, random numbers, views and an operation in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 4)
        self.norm, self.drop = nn.BatchNorm1d(16), nn.Dropout(0.2)
        self.calls = 0
        self.seen: Any = None

    def forward(self, x: Any) -> Any:
        x = self.drop(self.norm(self.first(x)).relu_())
        return self.last(x.view(-1, 4, 4).transpose(1, 2).reshape(-1, 16))


def passed_on(logits: Any) -> Any:
    """Returns the logits, and looks at them as programs that keep results do."""
    logits.detach()
    return logits


class World:
    """A net, its step, and a number that no guard sees."""

    def __init__(self, **options: Any) -> None:
        torch.manual_seed(1)
        self.net = Net()
        self.scale = ctypes.c_double(1.0)
        self.runs = 0
        self.inside: Callable[[Any], Any] = passed_on
        self.x = torch.randn(8, 16)
        self.captured = reprise.capture(self._step(), self.x, unguarded=["world"], **options)
        self.runs = 0

    def _step(self) -> Callable[..., Any]:
        world = self

        def step(x: Any) -> Any:
            world.runs += 1
            logits = world.inside(world.net(x)) * world.scale.value
            loss = logits.square().mean()
            loss.backward()
            return loss

        return step

    def call(self) -> Any:
        return self.captured(self.x)


def test_the_function_runs_at_the_first_two_calls_and_at_powers_of_ten() -> None:
    world = World()
    for call in range(1, 101):
        world.call()
        assert world.runs == {1: 1, 2: 2}.get(call, 2 if call < 10 else 3 if call < 100 else 4)
    assert world.captured.report().compared == 4


@pytest.mark.parametrize(("lockstep", "compared"), [("always", 12), ("never", 0)])
def test_at_each_call_or_never(lockstep: str, compared: int) -> None:
    world = World(lockstep=lockstep)
    for _ in range(12):
        world.call()
    assert world.runs == compared
    assert world.captured.report().compared == compared


def test_another_word_is_refused() -> None:
    with pytest.raises(reprise.InputError, match=r"sparse.*always.*never.*'often'"):
        World(lockstep="often")
    with pytest.raises(reprise.InputError, match="lockstep"):
        reprise.micro_batches(lambda x, share: x * 2, torch.ones(4), lockstep="often")


def test_the_message_names_the_line_both_numbers_and_the_calls() -> None:
    world = World()
    for _ in range(5):
        world.call()
    world.scale.value = 0.5
    for _ in range(4):
        world.call()
    before, chance = bits_of(world.net), torch.get_rng_state()
    for _ in range(2):
        with pytest.raises(reprise.errors.StepMiss) as caught:
            world.call()
        text = str(caught.value)
        assert "test_lockstep.py:" in text
        assert "gives 0.5" in text
        assert "recording has 1" in text
        assert "at run 10" in text
        assert "since run 3" in text
        assert caught.value.of_function
        assert not caught.value.of_reads
        assert_same_bits(before, bits_of(world.net))
        assert torch.equal(chance, torch.get_rng_state())
    world.scale.value = 1.0
    world.call()
    assert world.captured.report().compared == 3


def test_what_is_found_is_captured_again_with_a_warning() -> None:
    world = World(on_miss="recapture", lockstep="always")
    world.call()
    world.scale.value = 0.5
    with pytest.warns(RuntimeWarning, match="captured again"):
        first = world.call()
    torch.manual_seed(5)
    second = world.call()
    torch.manual_seed(5)
    assert torch.equal(second, (world.net(world.x) * 0.5).square().mean())
    assert first.shape == second.shape
    assert len(world.captured.differences) == 1
    assert "gives 0.5" in world.captured.differences[0]


def test_a_function_that_never_says_the_same_is_refused() -> None:
    world = World(on_miss="recapture")
    count = ctypes.c_int(0)

    def count_in_the_comparison(logits: Any) -> Any:
        if world.captured._native.comparing():
            count.value += 1
        return passed_on(logits) * (1 + count.value)

    world.inside = count_in_the_comparison
    with (
        pytest.warns(RuntimeWarning),
        pytest.raises(reprise.InputError, match="right after a capture"),
    ):
        world.call()


class Boom(Exception):
    """An exception of the user's own."""


@pytest.mark.parametrize("lockstep", ["sparse", "always"])
def test_an_exception_of_the_function_arrives_unchanged(lockstep: str) -> None:
    world = World(lockstep=lockstep)

    def fail(_logits: Any) -> Any:
        raise Boom("not today")

    world.inside = fail
    before, chance = bits_of(world.net), torch.get_rng_state()
    with pytest.raises(Boom, match="not today") as caught:
        world.call()
    notes = getattr(caught.value, "__notes__", None)
    assert notes is None or any("lockstep" in note for note in notes)
    assert_same_bits(before, bits_of(world.net))
    assert torch.equal(chance, torch.get_rng_state())
    assert all(p.grad is None for p in world.net.parameters())
    world.inside = passed_on
    world.call()
    assert world.captured.report().compared == 1


def test_a_tensor_that_the_function_keeps_says_that_it_has_no_bytes() -> None:
    world = World()

    def keep(logits: Any) -> Any:
        world.net.seen = logits.detach()
        return logits

    world.inside = keep
    world.call()
    assert world.net.seen.shape == (8, 4)
    with pytest.raises(RuntimeError, match="lockstep"):
        world.net.seen.sum()


def test_bytes_that_are_read_are_refused_with_the_line() -> None:
    world = World()

    def look(logits: Any) -> Any:
        logits.data.numpy()
        return logits

    world.inside = look
    with pytest.raises(reprise.InputError, match=r"bytes of a tensor at test_lockstep\.py:\d+"):
        world.call()
    world = World(lockstep="never")
    world.inside = look
    world.call()


def numpy_state() -> bytes:
    state: Any = np.random.get_state()
    return bytes(state[1].tobytes())


def test_generators_of_python_and_numpy_are_left_alone() -> None:
    world = World()
    for draw in (random.random, np.random.rand):
        world.inside = lambda logits, draw=draw: draw() and passed_on(logits)  # type: ignore[misc]
        states = random.getstate(), numpy_state(), torch.get_rng_state()
        with pytest.raises(reprise.errors.StepMiss, match="takes something from"):
            world.call()
        assert random.getstate() == states[0]
        assert numpy_state() == states[1]
        assert torch.equal(torch.get_rng_state(), states[2])


def test_state_that_may_change_advances_once_a_compared_call() -> None:
    net = Net()

    def step(x: Any) -> Any:
        net.calls += 1
        loss = net(x).square().mean()
        loss.backward()
        return loss

    x = torch.randn(8, 16)
    captured = reprise.capture(step, x, unguarded=["net.calls"], lockstep="always")
    net.calls = 0
    for call in range(7):
        captured(x)
        assert net.calls == call + 1
