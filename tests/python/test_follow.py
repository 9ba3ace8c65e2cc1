"""A followed step: the function runs at every call, and the plan does its work."""

from __future__ import annotations

import copy
import gc
import io
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
pytest.importorskip("numpy", reason="some programs use NumPy")
import reprise  # noqa: E402
from follow_harness import Entry, Step, difference, train  # noqa: E402
from follow_programs import PROGRAMS  # noqa: E402
from torch import nn  # noqa: E402

# After an exception, a followed step leaves gradients as they were before the call. Plain training
# leaves what the backward has added by then.
TAKEN_BACK = {"error_behind_the_backward", "error_in_a_hook_of_the_backward"}
# Another thread reads a tensor of the step while the step runs. It has no bytes then.
OTHER_THREAD = {"metrics_of_another_thread"}
SEARCH = 0.02  # seconds


def followed(step: Step, sample: tuple[Any, ...]) -> Any:
    made = reprise.capture(step, *sample, follow=True)
    made.plan(time_limit=SEARCH)
    return made


@pytest.mark.parametrize(
    "entry",
    [e for e in PROGRAMS if e.name not in TAKEN_BACK | OTHER_THREAD],
    ids=lambda entry: entry.name,
)
def test_a_program_is_right_at_every_call(entry: Entry) -> None:
    assert difference(train(entry), train(entry, followed)) == ""


@pytest.mark.parametrize("entry", [e for e in PROGRAMS if e.name in OTHER_THREAD], ids=str)
def test_a_tensor_that_another_thread_reads_is_refused(entry: Entry) -> None:
    with pytest.raises(Exception, match="has no bytes"):
        train(entry, followed)


class Twins:
    """Two equal networks: one is trained plainly, and one by a followed step."""

    def __init__(self, make: Callable[[nn.Module], Step], **options: Any) -> None:
        self.nets = [self._net(), self._net()]
        self.steps = [make(net) for net in self.nets]
        sample = self.inputs(0)
        self.followed: Any = reprise.capture(
            self.steps[1], sample, follow=True, modules=[self.nets[1]], **options
        )

    @staticmethod
    def _net() -> nn.Module:
        torch.manual_seed(0)
        layers = [m for _ in range(8) for m in (nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1))]
        return nn.Sequential(*layers)

    @staticmethod
    def inputs(call: int) -> Any:
        return torch.randn(256, 64, generator=torch.Generator().manual_seed(call))

    def call(self, number: int) -> Any:
        """Runs both, compares all bits, and returns the report of the followed step."""
        kept: list[Any] = []
        gc.collect()
        for net, step in zip(self.nets, [self.steps[0], self.followed], strict=True):
            torch.manual_seed(100 + number)
            result = step(self.inputs(number))
            with torch.no_grad():
                grads: list[Any] = [p.grad for p in net.parameters()]
                for p, g in zip(net.parameters(), grads, strict=True):
                    p.sub_(g, alpha=0.1)
                    p.grad = None
            kept.append([result, *grads, torch.get_rng_state()])
            del result, grads
        a, b = kept
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
        return self.followed.report()


def test_what_the_program_reads_and_keeps_has_the_planned_bytes() -> None:
    losses: list[list[float]] = [[], []]
    outputs: list[list[Any]] = [[], []]
    made = iter(range(2))

    def make(net: nn.Module) -> Step:
        number = next(made)

        def step(x: Any) -> Any:
            out = net(x)
            outputs[number][:] = [out[:2].detach()]
            loss = out.square().mean()
            losses[number].append(loss.item())
            (loss * (1 + len(losses[number]))).backward()
            return loss.detach()

        return step

    twins = Twins(make)
    assert twins.followed.plan(budget="60%", time_limit=1) is None  # There is no recording yet.
    for call in range(6):
        report = twins.call(call)
        assert losses[0] == losses[1] and len(losses[1]) == call + 1
        assert torch.equal(outputs[0][0], outputs[1][0])
        if call > 0:
            assert report.predicted_peak_bytes == report.measured_peak_bytes <= report.budget_bytes
    assert report.left == 1
    assert twins.followed.planned.plan.peak_bytes <= 0.61 * report.budget_bytes / 0.6


@pytest.mark.parametrize("autocast", [False, True])
def test_another_branch_goes_on_within_the_budget_and_is_planned(autocast: bool) -> None:
    branch = {"on": False}

    def make(net: nn.Module) -> Step:
        layers: Any = net

        def step(x: Any) -> Any:
            with torch.autocast("cpu", enabled=autocast):
                hidden = layers[:12](x)
                if branch["on"]:
                    hidden = 2 * torch.tanh(hidden)
                loss = layers[12:](hidden).square().mean()
            loss.backward()
            return loss.detach()

        return step

    twins = Twins(make)
    twins.followed.plan(budget="60%", time_limit=1)
    left = []
    for call in range(10):
        branch["on"] = call in (3, 5, 7, 9)
        report = twins.call(call)
        assert call == 0 or report.measured_peak_bytes <= report.budget_bytes
        left.append(report.left)
    # The branch runs by itself twice, and has a recording then.
    assert left == [1, 1, 1, 2, 2, 3, 3, 3, 3, 3]
    assert twins.followed.outcomes == 2
    assert "tanh" in report.last_difference


def test_a_recording_of_online_mode_is_followed() -> None:
    def make(net: nn.Module) -> Step:
        layers: Any = net

        def step(x: Any) -> Any:
            hidden = layers[0](x)
            for layer in layers[1:]:
                hidden = torch.tanh(hidden + layer(hidden))  # Gradients are added up.
            loss = hidden.square().mean()
            loss.backward()
            return loss

        return step

    twins = Twins(make)
    twins.followed.plan(budget="1 GiB", time_limit=1)
    for call in range(4):
        report = twins.call(call)
    assert report.left == 1


def test_an_optimizer_inside_updates_at_every_call() -> None:
    branch = {"on": False}
    nets = [Twins._net(), Twins._net()]
    optimizers = [torch.optim.AdamW(net.parameters(), lr=1e-2) for net in nets]

    def step_of(net: nn.Module) -> Step:
        def step(x: Any) -> float:
            loss = net(x).square().mean()
            if branch["on"]:
                loss = loss.exp()
            loss.backward()
            return float(loss)

        return step

    plain = step_of(nets[0])
    step: Any = reprise.capture(
        step_of(nets[1]), Twins.inputs(0), follow=True, optimizer=optimizers[1]
    )
    step.plan(time_limit=1)
    for call in range(6):
        branch["on"] = call == 3
        torch.manual_seed(call)
        loss = plain(Twins.inputs(call))
        optimizers[0].step()
        optimizers[0].zero_grad()
        torch.manual_seed(call)
        assert step(Twins.inputs(call)) == loss
        pairs = zip(nets[0].parameters(), nets[1].parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
    assert step.report().left == 2


@pytest.mark.parametrize("looks", [False, True])
def test_gradients_from_before_are_added_to(looks: bool) -> None:
    nets = [Twins._net(), Twins._net()]
    drops = {"now": False}

    def step_of(net: nn.Module) -> Step:
        def step(x: Any) -> None:
            if drops["now"]:
                net.zero_grad()
            (net(x).square().mean() / 3).backward()

        return step

    plain = step_of(nets[0])
    step: Any = reprise.capture(step_of(nets[1]), Twins.inputs(0), follow=True)
    step.plan(budget="90%", time_limit=1)
    for call in range(9):
        drops["now"] = looks and call == 4  # in the middle of an accumulation
        for run in (plain, step):
            torch.manual_seed(call)
            run(Twins.inputs(call))
        pairs = list(zip(nets[0].parameters(), nets[1].parameters(), strict=True))
        assert all(torch.equal(a.grad, b.grad) for a, b in pairs)
        report = step.report()
        assert report.budget_bytes is None or report.measured_peak_bytes <= report.budget_bytes
        if call % 3 == 2:
            for p in [p for pair in pairs for p in pair]:
                p.grad = None
    # A recording is measured when a call begins without gradients, which is call 3.
    assert step.report().left == 3


def test_host_code_gets_the_bytes_of_the_call() -> None:
    net = nn.Linear(4, 3)
    seen: list[Any] = []

    def step(x: Any) -> None:
        out = net(x)
        text = io.StringIO()
        print(out, file=text)
        seen.append((out.detach().numpy().copy(), out.tolist(), text.getvalue(), f"{out.sum()}"))
        assert torch.equal(copy.deepcopy(x), x)
        out.sum().backward()

    step_followed: Any = reprise.capture(step, torch.randn(2, 4), follow=True)
    for _ in range(4):
        x = torch.randn(2, 4)
        step(x)
        net.zero_grad()
        step_followed(x)
        plain, found = seen[-2:]
        assert (plain[0] == found[0]).all() and plain[1:] == found[1:]
        net.zero_grad()
    assert step_followed.report().left == 1


def test_an_array_of_a_followed_tensor_cannot_be_written() -> None:
    net = nn.Linear(4, 3)

    def step(x: Any) -> None:
        out = net(x)
        out.sum().backward()
        out.detach().numpy()[0] = 1

    followed_step: Any = reprise.capture(step, torch.randn(2, 4), follow=True)
    with pytest.raises(ValueError, match="read-only"):
        followed_step(torch.randn(2, 4))


def test_a_step_without_inputs_is_followed() -> None:
    net = nn.Linear(4, 3)
    data = iter(torch.randn(8, 2, 4))

    def step() -> float:
        loss = net(next(data)).square().sum()
        loss.backward()
        return float(loss)

    followed_step: Any = reprise.capture(step, follow=True, modules=[net])
    losses = []
    for _ in range(8):
        losses.append(followed_step())
        net.zero_grad()
    assert len(set(losses)) == 8 and next(data, None) is None
    assert followed_step.report().left == 1


def test_what_has_no_plan_yet_says_so() -> None:
    net = nn.Linear(4, 3)
    step: Any = reprise.capture(lambda x: net(x).sum().backward(), torch.randn(2, 4), follow=True)
    for ask in (lambda: step.graph, lambda: step.planned, step.machine, step.host_reads):
        with pytest.raises(reprise.InputError, match="no recording yet"):
            ask()
    assert step.outcomes == 0
    for _ in range(2):
        step(torch.randn(2, 4))
        net.zero_grad()
    assert step.graph.ops


def test_a_step_that_has_run_is_planned_and_explained() -> None:
    twins = Twins(lambda net: lambda x: net(x).square().mean().backward() or x[0])
    twins.call(0)
    twins.call(1)
    result = twins.followed.plan(budget="80%", time_limit=1)
    report = twins.call(2)
    assert report.left == 1
    assert report.measured_peak_bytes == result.plan.peak_bytes <= report.budget_bytes
    explanation = twins.followed.explain()
    assert (explanation.lockstep, explanation.lockstep_steps) == ("always", 3)
    assert "lockstep" in str(explanation)
    with pytest.raises(TypeError, match="bugdet"):
        twins.followed.plan(bugdet=1)


def test_a_budget_that_nothing_fits_is_an_error() -> None:
    twins = Twins(lambda net: lambda x: net(x).square().mean().backward())
    twins.followed.plan(budget="5%", time_limit=0.1)
    twins.followed(twins.inputs(0))
    for p in twins.nets[1].parameters():
        p.grad = None
    for _ in range(2):
        with pytest.raises(reprise.BudgetError, match="smallest"):
            twins.followed(twins.inputs(1))


def test_what_ranks_or_devices_would_wait_for_is_refused() -> None:
    net = nn.Linear(4, 3)
    with pytest.raises(reprise.InputError, match="other_devices"):
        reprise.capture(
            lambda x: net(x).sum().backward(),
            torch.randn(2, 4),
            follow=True,
            other_devices=["cuda:0"],
        )


def test_train_step_follows_where_it_is_asked_to() -> None:
    net = nn.Linear(4, 3)
    counts = {"calls": 0}

    def train(x: Any) -> float:
        counts["calls"] += 1
        loss = net(x).square().sum()
        loss.backward()
        return float(loss.item() * counts["calls"])

    step = reprise.train_step(train, torch.randn(2, 4), mode="follow", budget="1 GiB")
    assert counts["calls"] == 0
    for call in range(4):
        x = torch.randn(2, 4)
        assert step(x) == pytest.approx(float(net(x).square().sum()) * (call + 1))
        net.zero_grad()
    assert (step.mode, step.calls, counts["calls"]) == ("follow", {"follow": 4}, 4)


def test_a_replay_that_fails_behind_the_updates_says_so() -> None:
    net = Twins._net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    fails = {"now": False}

    def fails_if_asked(x: Any) -> Any:
        if fails["now"]:
            raise ValueError("asked to fail")
        return x * 1

    library = torch.library.Library("reprise_tests", "DEF")
    library.define("fails_if_asked(Tensor x) -> Tensor")
    library.impl("fails_if_asked", fails_if_asked, "CPU")
    asked: Any = torch.ops.reprise_tests.fails_if_asked

    def step(x: Any, where: str) -> Any:
        optimizer.zero_grad()
        loss = net(asked(x) if where == "before" else x).square().mean()
        loss.backward()
        optimizer.step()
        return asked(loss.detach()) if where == "behind" else loss.detach()

    for where in ("before", "behind"):
        followed: Any = reprise.capture(step, Twins.inputs(0), where, follow=True)
        for call in range(3):
            followed(Twins.inputs(call), where)
        assert followed.report().left == 1
        weights = [p.detach().clone() for p in net.parameters()]
        fails["now"] = True
        told = "some parameters were updated already" if where == "behind" else "asked to fail"
        with pytest.raises(Exception, match=told):
            followed(Twins.inputs(3), where)
        fails["now"] = False
        now = list(net.parameters())
        same = all(torch.equal(a, b) for a, b in zip(weights, now, strict=True))
        assert same == (where == "before")
        followed(Twins.inputs(4), where)
