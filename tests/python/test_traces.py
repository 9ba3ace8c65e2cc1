"""What is tried leaves no trace: lists, counters and numbers are those of the calls alone."""

from __future__ import annotations

import copy
import json
import pickle
import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
np = pytest.importorskip("numpy")
import reprise  # noqa: E402
from reprise._step.python_state import PythonState  # noqa: E402
from reprise.integrations.steps import by_kind  # noqa: E402
from torch import nn  # noqa: E402

CALLS = 4
tokens = 0


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))


class Meter:
    """It counts in the ways that training loops do."""

    def __init__(self) -> None:
        self.net = network()
        self.losses: list[Any] = []
        self.by_name: dict[str, list[float]] = defaultdict(list)
        self.calls = 0
        self.recent: deque[float] = deque(maxlen=3)

    def step(self, x: Any) -> Any:
        global tokens
        loss = self.net(x).square().mean()
        loss.backward()
        tokens += x.shape[0]
        self.calls += 1
        self.losses.append(loss.item())
        self.by_name["loss"].append(loss.item())
        self.recent.append(loss.item())
        return loss.detach()


def made(kind: str, meter: Meter, x: Any) -> Callable[[Any], Any]:
    if kind == "by_kind":
        return by_kind(meter.step, budget="95%")
    return reprise.train_step(meter.step, x, budget="95%")


@pytest.mark.parametrize("kind", ["train_step", "by_kind"])
def test_counters_and_lists_are_those_of_the_calls(kind: str) -> None:
    global tokens
    x = torch.randn(256, 64)
    plain, meter = Meter(), Meter()
    tokens = 0
    for _ in range(CALLS):
        plain.net.zero_grad()
        plain.step(x)
    expected, tokens = tokens, 0
    step = made(kind, meter, x)
    assert not meter.losses and not meter.by_name and meter.calls == 0 and tokens == 0
    for _ in range(CALLS):
        meter.net.zero_grad()
        step(x)
    assert tokens == expected
    for name in ("losses", "by_name", "calls", "recent"):
        assert getattr(meter, name) == getattr(plain, name), name
    assert json.dumps(meter.losses) == json.dumps(plain.losses)  # They are plain numbers.
    assert sum(meter.losses) == sum(plain.losses)


def test_a_refused_capture_leaves_no_trace() -> None:
    meter = Meter()
    with pytest.raises(reprise.InputError, match="cannot be captured"):
        reprise.capture(meter.step, torch.randn(256, 64))
    assert not meter.losses and not meter.by_name and meter.calls == 0 and not meter.recent


def test_a_number_that_is_kept_out_of_reach_is_a_number_when_the_run_is_over() -> None:
    """The program may keep it where no walk from the function finds it."""
    kept: list[Any] = []
    net = network()
    hidden = {id(net): kept.append}  # a method of a list, written in C

    def step(x: Any) -> Any:
        loss = net(x).square().mean()
        loss.backward()
        hidden[id(net)](loss.item())
        return loss

    x = torch.randn(8, 64)
    with pytest.raises(reprise.InputError):
        reprise.capture(step, x)
    loss = net(x).square().mean().item()
    for number in kept:
        assert number == loss and f"{number:.3f}" == f"{loss:.3f}" and sum([number, 1]) > 1
        assert copy.deepcopy(number) == pickle.loads(pickle.dumps(number)) == loss
        assert isinstance(number, float) and float(number) + 1 == 1 + number


def test_all_kinds_of_containers_are_put_back() -> None:
    class Own:
        def __init__(self) -> None:
            self.value = 1

    line, table, members = [1, 2], {"a": [3]}, {4}
    data, queue, counts = bytearray(b"ab"), deque([5], maxlen=2), Counter("aab")
    order: OrderedDict[str, int] = OrderedDict(x=1, y=2)
    own, number = Own(), 6

    def work() -> None:
        nonlocal number
        number += 1
        line.append(number)
        table["a"].append(8)
        table["b"] = []
        members.add(9)
        data.extend(b"c")
        queue.extend([1, 2, 3])
        counts.update("ccc")
        order.move_to_end("x")
        own.value = 2
        own.other = 3  # type: ignore[attr-defined]

    state = PythonState([work])
    for _ in range(2):
        work()
        state.put_back()
        assert (line, table, members, number) == ([1, 2], {"a": [3]}, {4}, 6)
        assert (bytes(data), list(queue), counts) == (b"ab", [5], Counter("aab"))
        assert list(order) == ["x", "y"] and vars(own) == {"value": 1}


@pytest.mark.parametrize("mode", ["auto", "online"])
def test_a_step_that_begins_to_keep_its_loss(mode: Any) -> None:
    net = network()
    late = {"keep": False}
    held: list[Any] = []

    def step(x: Any) -> Any:
        loss = net(x).square().mean()
        loss.backward()
        if late["keep"]:
            held.append(loss.detach())
        return loss.detach()

    run = by_kind(step, budget="1GB", mode=mode)
    x = torch.randn(16, 64)
    returned = []
    for call in range(6):
        late["keep"] = call >= 2
        returned.append(run(x).item())
        with torch.no_grad():
            for parameter in net.parameters():
                assert parameter.grad is not None
                parameter.sub_(parameter.grad)
        net.zero_grad()
    assert [loss.item() for loss in held] == returned[2:]
    assert run.report().mode == ("follow" if mode == "auto" else mode)


def test_an_empty_tensor_in_the_step() -> None:
    net = nn.Linear(8, 8)

    def step(x: Any) -> Any:
        parts = [torch.tensor([], dtype=x.dtype), net(x).flatten()]
        loss = torch.cat(parts).square().mean()
        loss.backward()
        return loss.detach()

    x = torch.randn(4, 8)
    captured = reprise.capture(step, x, lockstep="always")
    captured.plan(budget="120%")  # with room for what is compared
    for _ in range(3):
        net.zero_grad()
        expected = net(x).square().mean().detach()
        assert torch.equal(captured(x), expected)
    assert captured.report().compared == 3


def test_steps_are_neither_copied_nor_pickled() -> None:
    net, x = network(), torch.randn(8, 64)

    def step(x: Any) -> Any:
        loss = net(x).square().mean()
        loss.backward()
        return loss.detach()

    objects = [reprise.capture(step, x), reprise.train_step(step, x), reprise.online()]
    for one in objects:
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(reprise.InputError, match="neither copied nor pickled"):
                copied(one)


@pytest.mark.parametrize("make", ["capture", "train_step", "capture_clipped"])
def test_an_option_that_has_gone_astray_is_named(make: str) -> None:
    net, x = network(), torch.randn(8, 64)

    def loss(x: Any) -> Any:
        return net(x).square().mean()

    more: dict[str, Any] = {}
    if make == "capture_clipped":
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        more = {"module": net, "max_norm": 1.0, "optimizer": optimizer}
    with pytest.raises(reprise.InputError, match=r"offload= is an option of CapturedStep.plan\(\)"):
        getattr(reprise, make)(loss, x, offload="host", **more)


def test_a_transform_of_torch_func_is_captured() -> None:
    net, x = network(), torch.randn(8, 64)

    def step(x: Any) -> Any:
        per_row = torch.func.vmap(lambda row: net(row).square().mean())(x)
        loss = per_row.mean()
        loss.backward()
        return loss.detach()

    run = reprise.capture(step, x)
    run.plan(budget="110%")
    for _ in range(3):
        net.zero_grad()
        expected = step(x)
        net.zero_grad()
        assert torch.equal(run(x), expected)


def test_generators_of_the_program_are_put_back() -> None:
    own, of_torch = random.Random(1), torch.Generator().manual_seed(2)
    of_numpy = np.random.default_rng(3)
    state = PythonState([lambda: (own, of_torch, of_numpy)])
    expected = own.random(), of_numpy.random(), torch.rand(1, generator=of_torch).item()
    state.put_back()
    assert expected == (own.random(), of_numpy.random(), torch.rand(1, generator=of_torch).item())


@pytest.mark.parametrize("kind", ["generator", "iterator"])
def test_an_iterator_that_a_trial_has_advanced_is_named(kind: str) -> None:
    numbers = (float(i) for i in range(100)) if kind == "generator" else iter(range(100))
    net = network()

    def step(x: Any) -> Any:
        loss = net(x).square().mean() * next(numbers)
        loss.backward()
        return loss.detach()

    x = torch.randn(32, 64)
    run = reprise.train_step(step, x, budget="110%")
    for call in range(3):  # A followed step takes one number a call, and there is no trial.
        loss = run(x)
        net.zero_grad()
        assert torch.equal(loss, net(x).square().mean() * call)
    with pytest.warns(RuntimeWarning, match="has advanced the iterator"):
        reprise.train_step(step, x, budget="110%", mode="online")
