"""Steps that read numbers out of tensors: right over many calls, or refused with the place."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
import reprise  # noqa: E402
from models import assert_same_bits, state_of  # noqa: E402
from torch import nn  # noqa: E402

CALLS = 20
Step = Callable[..., Any]
StepOf = Callable[["Net"], Step]


class Net(nn.Module):
    """A model with buffers and random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.2)
        self.extra = nn.Linear(16, 16)
        self.last = nn.Linear(16, 4)

    def body(self, x: Any) -> Any:
        return self.drop(self.norm(self.first(x)).relu())


def rows(call: int) -> tuple[Any, ...]:
    return (torch.randn(8, 16, generator=torch.Generator().manual_seed(call)),)


def train(
    step_of: StepOf, inputs: Callable[[int], tuple[Any, ...]] = rows, **options: Any
) -> tuple[reprise.CapturedStep, list[Any]]:
    """Trains a net plainly and by a captured step, and compares all bits after each call.

    Returns the captured step, and what its calls returned.
    """
    torch.manual_seed(1)
    plain = Net()
    net = copy.deepcopy(plain)
    expected = step_of(plain)
    step = reprise.capture(step_of(net), *inputs(0), **({"on_miss": "recapture"} | options))
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.05) for model in (plain, net)]
    states = [torch.get_rng_state()] * 2
    results: list[Any] = []
    for call in range(CALLS):
        found: list[Any] = []
        functions: tuple[Step, Step] = (expected, step)
        for k, function in enumerate(functions):
            optimizers[k].zero_grad()
            torch.set_rng_state(states[k])
            found.append(function(*inputs(call)))
            states[k] = torch.get_rng_state()
        wanted, given = (result if isinstance(result, tuple) else (result,) for result in found)
        assert len(wanted) == len(given)
        for a, b in zip(wanted, given, strict=True):
            assert type(a) is type(b)
            assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
        assert torch.equal(*states)
        for p, q in zip(plain.parameters(), net.parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None)
            assert p.grad is None or torch.equal(p.grad, q.grad)
        for optimizer in optimizers:
            optimizer.step()
        assert_same_bits(state_of(plain), state_of(net))
        results.append(given)
    return step, results


def finish(net: Net, x: Any) -> Any:
    loss = net.last(x).square().mean()
    loss.backward()
    return loss


def test_all_of_a_mask() -> None:
    def step_of(net: Net) -> Step:
        def step(x: Any, mask: Any) -> Any:
            x = net.body(x)
            if not mask.all():
                x = x * mask[:, None]
            return finish(net, x)

        return step

    def inputs(call: int) -> tuple[Any, ...]:
        return (*rows(call), torch.arange(8) < (8 if call % 3 else 5))

    step, _ = train(step_of, inputs)
    assert step.outcomes == 2
    assert any("test_host_reads.py" in read and "True" in read for read in step.host_reads())
    assert any("expect_number" in op.id for op in step.graph.ops)


def test_layer_drop() -> None:
    def step_of(net: Net) -> Step:
        def step(x: Any) -> Any:
            x = net.body(x)
            if not torch.rand([]) < 0.4:
                x = net.extra(x).tanh()
            if not torch.rand([]) < 0.4:
                x = net.extra(x).sin()
            return finish(net, x)

        return step

    step, _ = train(step_of)
    assert step.outcomes == 4
    step, _ = train(step_of, outcomes=1)
    assert step.outcomes == 1


def test_a_size_that_changes_and_is_returned() -> None:
    def step_of(net: Net) -> Step:
        def step(x: Any, lengths: Any) -> Any:
            longest = int(lengths.max())
            return finish(net, net.body(x)[:longest]), longest

        return step

    step, results = train(step_of, lambda call: (*rows(call), torch.tensor([2, 3 + call % 3])))
    assert step.outcomes == 3
    assert [result[1] for result in results[:4]] == [3, 4, 5, 3]


def test_equal_tolist_and_masks() -> None:
    def step_of(net: Net) -> Step:
        def step(x: Any, sizes: Any, mask: Any) -> Any:
            x = net.body(x)
            if torch.equal(sizes, torch.tensor([3, 5])):
                x = x + 1
            parts = x.split(sizes.tolist())
            return finish(net, torch.cat([parts[1], parts[0] * 2])[mask])

        return step

    def inputs(call: int) -> tuple[Any, ...]:
        sizes = torch.tensor([3, 5] if call % 2 else [6, 2])
        return (*rows(call), sizes, torch.arange(8) < 4)

    step, _ = train(step_of, inputs)
    assert step.outcomes == 2
    assert len(step.host_reads()) == 4


def test_a_number_that_is_only_returned() -> None:
    def step_of(net: Net) -> Step:
        def step(x: Any) -> Any:
            loss = finish(net, net.body(x))
            return loss, loss.item(), x.mean().item()

        return step

    step, results = train(step_of)
    assert step.outcomes == 1
    assert step.host_reads() == []
    assert len({result[1] for result in results}) == CALLS


class Keeper:
    """An object that a step keeps numbers in."""

    last: Any = None


KEEPER = Keeper()


def used_by_name(name: str) -> Step:
    def step(x: Any) -> Any:
        loss = (x * x).sum()
        number = loss.item()
        if name == "compared":
            return x * 2 if number > 0 else x
        if name == "multiplied":
            return x * number
        if name == "an argument":
            return torch.full((2,), number)
        if name == "printed":
            return x * len(f"{number:.3f}")
        if name == "swallowed":
            try:
                x = x * number
            except Exception:
                x = x + 1
            return x
        if name == "kept":
            KEEPER.last = number
            return x
        if name == "float()":
            return x * float(loss)
        if name == "a condition":
            return x * 2 if loss else x
        if name == "tolist()":
            return x * sum(loss.view(1).tolist())
        return x * len(x.to(torch.int).tolist())

    return step


@pytest.mark.parametrize(
    "name",
    [
        "compared", "multiplied", "an argument", "printed", "swallowed", "kept", "float()",
        "a condition", "tolist()", "a large tolist()",
    ],
)  # fmt: skip
def test_other_numbers_are_refused_with_their_place(name: str) -> None:
    item, tolist = torch.Tensor.item, torch.Tensor.tolist
    with pytest.raises(reprise.InputError, match=r"test_host_reads\.py:\d+"):
        reprise.capture(used_by_name(name), torch.ones(128))
    assert torch.Tensor.item is item
    assert torch.Tensor.tolist is tolist


def test_a_refused_call_names_the_read_and_leaves_no_trace() -> None:
    net = Net()

    def step(x: Any) -> Any:
        x = net.body(x)  # writes statistics and draws random numbers
        if (x.sum() > 1000).item():
            x = net.extra(x)
        return finish(net, x)

    small = torch.randn(8, 16)
    captured = reprise.capture(step, small)
    captured(small)
    net.norm.weight.data.fill_(1000)
    net.norm.bias.data.fill_(1000)
    before, random = state_of(net), torch.get_rng_state()
    gradients = [p.grad.clone() for p in net.parameters() if p.grad is not None]
    for _ in range(2):
        with pytest.raises(
            reprise.InputError, match=r"test_host_reads\.py:\d+ was False and is True"
        ):
            captured(small)
        assert_same_bits(before, state_of(net))
        assert torch.equal(random, torch.get_rng_state())
        now = [p.grad for p in net.parameters() if p.grad is not None]
        assert all(map(torch.equal, gradients, now))
    plain = copy.deepcopy(net)
    assert torch.isfinite(finish(plain, plain.body(small)))


def test_a_read_behind_an_optimizer_step_is_refused() -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(x: Any) -> Any:
        loss = finish(net, net.body(x))
        optimizer.step()
        return loss * 2 if net.last.weight.sum() > 0 else loss

    with pytest.raises(reprise.InputError, match="optimizer"):
        reprise.capture(step, *rows(0))


def test_modules_that_only_another_branch_calls_are_compared() -> None:
    """The second outcome calls a module that the function does not show."""
    hidden = [nn.Dropout(0.5)]

    class Finder:
        def __call__(self) -> nn.Module:
            return hidden[0]

    net = Net()

    def step(x: Any, find: Any = Finder()) -> Any:  # noqa: B008
        y = net.body(x)
        if x.sum() > 0:
            y = find()(y)
        return finish(net, y)

    captured = reprise.capture(step, -torch.ones(8, 16), on_miss="recapture")
    captured(torch.ones(8, 16))
    hidden[0].eval()
    torch.manual_seed(3)
    plain = copy.deepcopy(net)
    plain.zero_grad()
    loss = captured(torch.ones(8, 16))
    torch.manual_seed(3)
    y = plain.body(torch.ones(8, 16))
    assert torch.equal(loss, plain.last(hidden[0](y)).square().mean())


def test_micro_batches_read_in_each_part() -> None:
    torch.manual_seed(2)
    plain = Net()
    net = copy.deepcopy(plain)

    def part_of(model: Net) -> Step:
        def part(x: Any, share: float) -> Any:
            y = model.body(x)
            if x.sum() > 0:
                y = model.extra(y)
            loss = share * model.last(y).square().mean()
            loss.backward()
            return loss.detach()

        return part

    x = torch.randn(8, 16)
    step = reprise.micro_batches(part_of(net), x, parts=[2], on_miss="recapture")
    for call in range(6):
        x = rows(call)[0]
        for model in (plain, net):
            model.zero_grad()
        torch.manual_seed(call)
        wanted = part_of(plain)(x[:4], 0.5) + part_of(plain)(x[4:], 0.5)
        torch.manual_seed(call)
        assert torch.equal(step(x), wanted)
        assert_same_bits(state_of(plain), state_of(net))
    assert step.outcomes > 1


def test_the_number_of_outcomes_is_one_at_least() -> None:
    for wrong in (0, True, "two"):
        with pytest.raises(reprise.InputError, match="outcomes"):
            reprise.capture(lambda x: x * 2, torch.ones(3), outcomes=wrong)  # type: ignore[arg-type]
