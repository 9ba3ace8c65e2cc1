"""Usual loops do more than forward and backward, around steps inside a budget and in them.

Each loop runs plain, and with its step in each mode. All that the loop changes must have the same
bits: losses, parameters, buffers, gradients, optimizer, average, scale, learning rates and the
random state. A captured step refuses the things that it cannot do, before it changes anything.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import reprise
import torch
from torch import nn
from torch.optim import lr_scheduler as schedulers
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from usual_loops import STEPS, Around, Inside, Loop, Make, Step, batch, in_mode

decayed: Any = get_ema_multi_avg_fn

pytestmark = [
    pytest.mark.usefixtures("runtime"),
    pytest.mark.skipif(
        tuple(int(n) for n in torch.__version__.split(".")[:2]) < (2, 13),
        reason="online mode needs PyTorch 2.13",
    ),
]


def clips(**options: Any) -> Make:
    def follows(loop: Loop, _number: int, _loss: torch.Tensor) -> None:
        norm = nn.utils.clip_grad_norm_(loop.model.parameters(), 0.05, **options)
        assert norm > 0.05  # It does clip.
        loop.optimizer.step()
        loop.optimizer.zero_grad()

    return lambda: Around(follows)


def accumulates(set_to_none: bool) -> Make:
    def follows(loop: Loop, number: int, _loss: torch.Tensor) -> None:
        if number % 4 == 2:  # The last gradients stay.
            nn.utils.clip_grad_norm_(loop.model.parameters(), 0.05)
            loop.optimizer.step()
            loop.optimizer.zero_grad(set_to_none=set_to_none)

    return lambda: Around(follows)


def scheduled(kind: Any, make: Callable[[Any], Any]) -> Make:
    def follows(loop: Loop, _number: int, loss: torch.Tensor) -> None:
        loop.optimizer.step()
        loop.optimizer.zero_grad()
        by_loss = isinstance(loop.schedule, schedulers.ReduceLROnPlateau)
        loop.schedule.step(*([loss] if by_loss else []))

    def made() -> Loop:
        loop = Around(follows, kind)
        loop.schedule = make(loop.optimizer)
        return loop

    return made


def warm_up(optimizer: torch.optim.Optimizer) -> Any:
    parts = [
        schedulers.LinearLR(optimizer, 0.1, total_iters=2),
        schedulers.CosineAnnealingLR(optimizer, 4),
    ]
    return schedulers.SequentialLR(optimizer, parts, milestones=[2])


def averaged() -> Loop:
    def follows(loop: Loop, _number: int, _loss: torch.Tensor) -> None:
        loop.optimizer.step()
        loop.optimizer.zero_grad()
        loop.average.update_parameters(loop.model)

    loop = Around(follows, torch.optim.AdamW)
    loop.average = AveragedModel(loop.model, multi_avg_fn=decayed(0.9), use_buffers=True)
    return loop


class Scaled(Loop):
    """A loop whose scale grows every two steps, and that skips a step for a gradient of infinity"""

    def __init__(self) -> None:
        super().__init__()
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)

    def batch(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = batch(number)
        return x * (torch.inf if number == 3 else 1.0), y

    def after(self, number: int, _loss: torch.Tensor) -> None:
        scale = self.scaler.get_scale()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.05)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        assert self.scaler.get_scale() == scale * {1: 2, 3: 0.5, 5: 2}.get(number, 1)
        for part in self.model.modules():  # Statistics are no numbers behind that step.
            if isinstance(part, nn.BatchNorm1d):
                part.reset_running_stats()


AROUND: dict[str, Make] = {
    "clipping": clips(),
    "clipping, foreach": clips(foreach=True),
    "clipping, one by one": clips(foreach=False),
    "accumulation": accumulates(True),
    "accumulation into zeros": accumulates(False),
    "steps": scheduled(torch.optim.SGD, lambda o: schedulers.StepLR(o, 2, 0.5)),
    "one cycle": scheduled(
        torch.optim.AdamW, lambda o: schedulers.OneCycleLR(o, 0.1, total_steps=STEPS + 1)
    ),
    "plateau": scheduled(
        torch.optim.SGD, lambda o: schedulers.ReduceLROnPlateau(o, patience=0, threshold=0.5)
    ),
    "warm-up, cosine": scheduled(torch.optim.SGD, warm_up),
    "SGD, foreach": lambda: Loop(torch.optim.SGD, foreach=True),
    "SGD, fused": lambda: Loop(torch.optim.SGD, fused=True),
    "AdamW, foreach": lambda: Loop(torch.optim.AdamW, foreach=True),
    "AdamW, fused": lambda: Loop(torch.optim.AdamW, fused=True),
    "average": averaged,
    "scaler": Scaled,
}


def budget_of(make: Make) -> int:
    """Returns four fifths of what the plain step takes, and room for what a loop makes later."""
    gc.collect()
    loop = make()
    step = loop.step()
    step(*batch(0))
    reprise.reset_peak()
    held = reprise.live_bytes()
    step(*batch(0))
    parameters = sum(p.nbytes for p in loop.model.parameters())
    return held + (reprise.peak_bytes() - held) * 4 // 5 + 4 * parameters


@pytest.fixture(autouse=True)
def _counted() -> None:
    reprise.install_cpu_allocator()


WAYS = ["capture", "train_step", "graph", "online", "by_kind, auto", "by_kind, chain"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", AROUND)
def test_around_a_step(name: str, way: str) -> None:
    make = AROUND[name]
    plain = make()
    expected = plain.run(plain.step())
    del plain
    budget = budget_of(make)
    loop = make()
    step = in_mode(way, loop, budget)
    assert loop.run(step) == expected
    report = step.report()  # type: ignore[attr-defined]
    assert 0 < report.measured_peak_bytes <= budget
    if way == "train_step":
        assert step.mode == "follow"  # type: ignore[attr-defined]
        if name != "accumulation into zeros":  # Gradients are always there: bits and budget.
            assert report.left <= STEPS // 2


def updates(loop: Loop) -> None:
    nn.utils.clip_grad_norm_(loop.model.parameters(), 0.05)
    loop.optimizer.step()


def updates_and_schedules(loop: Loop) -> None:
    updates(loop)
    loop.schedule.step()


def updates_and_averages(loop: Loop) -> None:
    updates(loop)
    loop.average.update_parameters(loop.model)


def unscales_and_updates(loop: Loop) -> None:
    loop.scaler.unscale_(loop.optimizer)
    nn.utils.clip_grad_norm_(loop.model.parameters(), 0.05)
    loop.scaler.step(loop.optimizer)
    loop.scaler.update()


def whole(follows: Callable[[Loop], None], kind: Any = torch.optim.SGD, **options: Any) -> Make:
    def made() -> Loop:
        loop = Inside(follows, kind, **options)
        if follows is updates_and_schedules:
            loop.schedule = warm_up(loop.optimizer)
        if follows is unscales_and_updates:
            loop.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
        if follows is updates_and_averages:
            loop.average = AveragedModel(loop.model, multi_avg_fn=decayed(0.9))
        return loop

    return made


WHOLE: dict[str, Make] = {
    "SGD": whole(updates),
    "SGD, foreach": whole(updates, foreach=True),
    "SGD, fused": whole(updates, fused=True),
    "AdamW": whole(updates, torch.optim.AdamW),
    "schedule": whole(updates_and_schedules, torch.optim.AdamW),
    "average": whole(updates_and_averages),
    "scaler": whole(unscales_and_updates),
}


@pytest.mark.parametrize("way", ["train_step", "online", "by_kind, auto", "by_kind, online"])
@pytest.mark.parametrize("name", WHOLE)
def test_a_step_that_is_the_whole_loop(name: str, way: str) -> None:
    """It cannot be captured by itself. With a budget, too, it does what the plain step does."""
    make = WHOLE[name]
    plain = make()
    expected = plain.run(plain.step())
    budget = budget_of(make) if way in ("train_step", "by_kind, auto") else 2**30
    loop = make()
    step = in_mode(way, loop, budget)
    reprise.reset_peak()
    assert loop.run(step) == expected
    assert reprise.peak_bytes() <= budget


@pytest.mark.parametrize("way", WAYS)
def test_clipping_inside_a_step(way: str) -> None:
    def clip(loop: Loop) -> None:
        nn.utils.clip_grad_norm_(loop.model.parameters(), 0.05)

    class Clips(Inside):
        def after(self, _number: int, _loss: torch.Tensor) -> None:
            self.optimizer.step()

    plain, loop = Clips(clip), Clips(clip)
    expected = plain.run(plain.step())
    assert loop.run(in_mode(way, loop, 2**30)) == expected


class InParts(Loop):
    """Two passes at each call."""

    def step(self) -> Step:
        half = super().step()

        def step(x: torch.Tensor, y: torch.Tensor) -> Any:
            losses = [half(*part) for part in zip(x.chunk(2), y.chunk(2), strict=True)]
            return torch.stack(losses).sum()

        return step


@pytest.mark.parametrize("way", WAYS[:-1])
def test_accumulation_inside_a_step(way: str) -> None:
    plain, loop = InParts(), InParts()
    expected = plain.run(plain.step())
    assert loop.run(in_mode(way, loop, 2**30)) == expected


def test_chain_mode_over_repeated_layers_refuses_several_passes() -> None:
    loop = InParts()
    before = loop.state()
    with pytest.raises(reprise.InputError, match="once each"):
        in_mode("by_kind, chain", loop, 2**30)(*batch(0))
    assert loop.state() == before


@pytest.mark.parametrize("way", ["train_step", "by_kind, auto"])
def test_several_passes_that_cannot_be_captured_are_followed(way: str) -> None:
    class Reads(InParts):
        def step(self) -> Step:
            inner = super().step()
            return lambda x, y: inner(x * (1 / float(x.abs().max())), y)

    plain, loop = Reads(), Reads()
    expected = plain.run(plain.step())
    step: Any = in_mode(way, loop, 2**30)
    assert loop.run(step) == expected
    if way == "train_step":
        assert step.calls == {"follow": STEPS} and step.report().left == 1
    else:
        assert step.report().mode == "follow"


def test_several_passes_onto_gradients_that_are_there() -> None:
    """A captured step says what to do. Follow mode and online mode do it."""

    class Keeps(InParts):
        def after(self, number: int, _loss: torch.Tensor) -> None:
            if number % 2:
                super().after(number, _loss)

    plain, captured = Keeps(), Keeps()
    expected = plain.run(plain.step())
    for way in ("train_step", "by_kind, auto", "online"):
        loop = Keeps()
        assert loop.run(in_mode(way, loop, 2**30)) == expected, way
    with pytest.raises(reprise.InputError, match=r"gradients to None .* optimizer.zero_grad\(\)"):
        captured.run(in_mode("capture", captured, 2**30))


REFUSED = {
    "SGD": r"calls SGD.step\(\) at test_usual_loops.py:\d+, .* optimizer=optimizer, which frees",
    "SGD, fused": r"calls SGD.step\(\) at .* Call it behind the captured step$",
    "AdamW": r"calls AdamW.step\(\) at .* optimizer=optimizer",
    "scaler": r"calls GradScaler.unscale_\(\) at .* Call it behind the captured step$",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_replay_would_not_do_is_refused_before_it_is_done(name: str) -> None:
    loop = WHOLE[name]()
    if loop.scaler is not None:
        loop.scaler.scale(torch.zeros(()))
    before = loop.state()
    with pytest.raises(reprise.InputError, match=REFUSED[name]):
        in_mode("capture", loop, 2**30)
    assert loop.state() == before


@pytest.mark.parametrize(
    ("make", "call"),
    [
        (whole(lambda loop: loop.schedule.step()), r"SequentialLR.step\(\)"),
        (
            whole(lambda loop: loop.average.update_parameters(loop.model)),
            r"AveragedModel.update_parameters\(\)",
        ),
    ],
)
def test_a_schedule_or_an_average_alone_is_refused(make: Make, call: str) -> None:
    loop = make()
    loop.schedule, loop.average = warm_up(loop.optimizer), AveragedModel(loop.model)
    before = loop.state()
    with pytest.raises(reprise.InputError, match=call):
        in_mode("capture", loop, 2**30)
    assert loop.state() == before


def test_what_does_nothing_is_not_refused() -> None:
    """A scaler that is off."""

    def follows(loop: Loop) -> None:
        loop.scaler.unscale_(loop.optimizer)
        loop.scaler.update()

    def made() -> Loop:
        loop = Inside(follows)
        loop.scaler = torch.amp.GradScaler("cpu", enabled=False)
        return loop

    plain, loop = made(), made()
    expected = plain.run(plain.step())
    assert loop.run(in_mode("capture", loop, 2**30)) == expected


def test_an_optimizer_inside_takes_one_parameter_at_a_time() -> None:
    loop = Loop(torch.optim.SGD, foreach=True)
    with pytest.raises(reprise.InputError, match=r"foreach is on.* or call its step behind"):
        reprise.capture(loop.step(), *batch(0), optimizer=loop.optimizer)


def test_judge_leaves_schedules_and_scalers_as_they_were() -> None:
    for name in ("schedule", "scaler"):
        loop = WHOLE[name]()
        step = loop.step()
        step(*batch(0))
        before = loop.state()
        found = reprise.judge(step, *batch(0), compare=False, repeats=1)
        assert found.well
        assert loop.state() == before
