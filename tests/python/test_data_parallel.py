"""Captured steps of a process group: two ranks with Gloo, compared bit by bit with DDP."""

from __future__ import annotations

import copy
import datetime
import itertools
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
import reprise  # noqa: E402
import torch.distributed as dist  # noqa: E402
from capabilities import fast  # noqa: E402
from models import GptLMHeadModel, ResNet  # noqa: E402
from reprise.errors import PeerError  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from two_ranks import run_ranks  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).parent))

TIMEOUT = 20.0  # of the groups, in seconds
STEPS = 20
Function = Callable[..., Any]


def gpt_case(rank: int) -> tuple[nn.Module, Function, tuple[Any, ...]]:
    torch.manual_seed(rank)  # The parameters of the ranks differ until rank 0 gives them its own.
    model = GptLMHeadModel()
    tokens = torch.randint(0, 97, (8, 24), generator=torch.Generator().manual_seed(50 + rank))

    def loss_of(model: nn.Module, tokens: Any) -> Any:
        return model(tokens, labels=tokens).loss

    return model, loss_of, (tokens,)


def resnet_case(rank: int) -> tuple[nn.Module, Function, tuple[Any, ...]]:
    torch.manual_seed(rank)
    generator = torch.Generator().manual_seed(50 + rank)
    x = torch.randn(16, 3, 16, 16, generator=generator)
    y = torch.randint(0, 10, (16,), generator=generator)
    return ResNet(), lambda model, x, y: F.cross_entropy(model(x), y), (x, y)


CASES: dict[str, Function] = {"gpt": gpt_case, "resnet": resnet_case}


def step_of(model: nn.Module, loss_of: Function) -> Function:
    def step(*sample: Any) -> Any:
        loss = loss_of(model, *sample)
        loss.backward()
        return loss

    return step


def train(rank: int, step: Function, optimizer: Any, sample: Any, steps: int = STEPS) -> list[Any]:
    """Returns the losses. `optimizer` is None if the step updates the parameters itself."""
    torch.manual_seed(100 + rank)  # Each rank drops out for itself.
    losses = []
    for _ in range(steps):
        if optimizer is not None:
            optimizer.zero_grad()
        losses.append(step(*sample).detach().clone())
        if optimizer is not None:
            optimizer.step()
    return losses


def assert_equal(a: Any, b: Any) -> None:
    assert len(a) == len(b)
    assert [i for i, (p, q) in enumerate(zip(a, b, strict=True)) if not torch.equal(p, q)] == []


def optimizer_of(model: nn.Module) -> Any:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def world() -> Any:
    return dist.group.WORLD


@contextmanager
def fresh_group() -> Iterator[Any]:
    """Makes a group of its own for a case that leaves it useless."""
    yield dist.new_group([0, 1], timeout=datetime.timedelta(seconds=TIMEOUT))


def buckets_of_ddp(ddp: Any, model: nn.Module) -> list[list[int]]:
    """Returns the parameters of each bucket after DDP has rebuilt its buckets."""
    text = ddp._get_ddp_logging_data()["rebuilt_per_bucket_param_indices"]
    return [[int(i) for i in bucket.split()] for bucket in text.split(",")]


def assert_sums_run_beside_the_backward(step: Any) -> bool:
    """Asserts that a sum has work beside it, and that waits are where the guide says.

    Returns whether the plan updates parameters before the backward ends.
    """
    runs = [a.id.split(":", 1)[1] for a in step.planned.plan.actions if a.kind == "run"]
    starts = [i for i, run in enumerate(runs) if run.startswith("allreduce.start.")]
    waits = [i for i, run in enumerate(runs) if run.startswith("allreduce.wait.")]
    assert [runs[i] for i in starts] == [f"allreduce.start.{b}" for b in range(len(starts))]
    assert [runs[i] for i in waits] == [f"allreduce.wait.{b}" for b in range(len(starts))]
    work = [i for i, run in enumerate(runs) if not run.startswith(("fill", "allreduce", "update"))]
    for begin, end in itertools.pairwise(starts):
        assert any(begin < i < end for i in work)
    # Each sum is a copy on the link, whose time the plan counts.
    plan, machine = step.planned.plan, step.machine()
    assert sum(a.kind == "copy" for a in plan.actions) == len(starts)
    assert [memory["name"] for memory in machine["memories"]] == ["device", "ranks"]
    assert not reprise.verify(step.graph, plan, machine=machine)
    assert reprise.simulate(step.graph, plan, machine=machine).time_ns == plan.time_ns
    assert step.report().waited_ns > 0
    consumed = any(run.startswith("update.") for run in runs)
    if consumed:
        assert [w - 1 for w in waits[:-1]] == starts[1:]
        assert any(i < waits[-1] for i, run in enumerate(runs) if run.startswith("update"))
    else:
        assert waits[0] > work[-2]
    return consumed


def equals_ddp(rank: int, case: str) -> None:
    model, loss_of, sample = CASES[case](rank)
    twin, third = copy.deepcopy(model), copy.deepcopy(model)
    ddp = nn.parallel.DistributedDataParallel(model, broadcast_buffers=False, bucket_cap_mb=1)
    optimizer = optimizer_of(model)
    losses = train(rank, step_of(ddp, loss_of), optimizer, sample)

    # Gradients in .grad, without a limit and then within 80 % of plain training.
    step = reprise.capture(
        step_of(twin, loss_of), *sample, process_group=world(), bucket_cap_mb=0.02
    )
    before, outside = copy.deepcopy(twin.state_dict()), optimizer_of(twin)
    for budget in ("100%", "80%"):
        twin.load_state_dict(before)
        outside.state.clear()
        step.plan(budget=budget, time_limit=1)
        assert_equal(losses, train(rank, step, outside, sample))
        assert_equal(list(model.parameters()), list(twin.parameters()))
        assert_equal([p.grad for p in model.parameters()], [p.grad for p in twin.parameters()])
        assert_equal(list(model.buffers()), list(twin.buffers()))
        report = step.report()
        assert report.predicted_peak_bytes == report.measured_peak_bytes
        assert report.budget_bytes is not None
        assert report.measured_peak_bytes <= report.budget_bytes
        assert report.fallbacks == 0

    # Gradients that the optimizer uses up in the step.
    inside = optimizer_of(third)
    step = reprise.capture(
        step_of(third, loss_of),
        *sample,
        process_group=world(),
        bucket_cap_mb=0.02,
        optimizer=inside,
    )
    plain = step.plan(budget="100%").budget_bytes
    assert plain is not None
    # In so little memory the planner lets the backward of the GPT update parameters.
    tight = plain - {"gpt": 1_180_000, "resnet": 1_000_000}[case]
    for limit in (plain, tight):
        third.load_state_dict(before)
        inside.state.clear()
        step.plan(budget=limit, time_limit=2)
        assert_equal(losses, train(rank, step, None, sample))
        assert_equal(list(model.parameters()), list(third.parameters()))
        report = step.report()
        assert report.predicted_peak_bytes == report.measured_peak_bytes
        assert report.budget_bytes is not None
        assert report.measured_peak_bytes <= report.budget_bytes
        assert all(p.grad is None for p in third.parameters())
        consumed = assert_sums_run_beside_the_backward(step)
        assert consumed or limit != tight or case != "gpt"


def buckets_of_step(step: Any) -> list[list[str]]:
    """Returns the names of the parameters in each bucket, as the graph has them."""
    buckets: list[list[str]] = [[]]
    for op in step.graph.ops:
        what = op.id.split(":", 1)[1]
        if what.startswith("fill."):
            buckets[-1].append(what.removeprefix("fill."))
        elif what.startswith("allreduce.start."):
            buckets.append([])
    return buckets[:-1]


def has_the_layout_of_ddp(rank: int, case: str) -> None:
    model, loss_of, sample = CASES[case](rank)
    twin = copy.deepcopy(model)
    ddp = nn.parallel.DistributedDataParallel(model, broadcast_buffers=False, bucket_cap_mb=0.02)
    for _ in range(3):  # DDP rebuilds its buckets after the first step, and says so after that.
        step_of(ddp, loss_of)(*sample)
    step = reprise.capture(
        step_of(twin, loss_of), *sample, process_group=world(), bucket_cap_mb=0.02
    )
    names = [name for name, _ in model.named_parameters()]
    expected = [[names[i] for i in bucket] for bucket in buckets_of_ddp(ddp, model)]
    assert len(expected) > 1
    assert buckets_of_step(step) == expected


def accumulates(rank: int) -> None:
    model, loss_of, sample = resnet_case(rank)
    twin = copy.deepcopy(model)
    ddp = nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)
    step = reprise.capture(step_of(twin, loss_of), *sample, process_group=world())
    step.plan(budget="90%", time_limit=1)

    def run(one: Function, whole: Any, module: nn.Module) -> list[Any]:
        optimizer, found = optimizer_of(module), []
        for _ in range(4):
            optimizer.zero_grad()
            with whole.no_sync():
                for part in (1, 2):
                    found.append(one(part * sample[0], sample[1]).detach().clone())
            found.append(one(*sample).detach().clone())
            found += [p.grad.clone() for p in module.parameters() if p.grad is not None]
            optimizer.step()
        return found

    assert_equal(run(step_of(ddp, loss_of), ddp, model), run(step, step, twin))
    assert_equal(list(model.parameters()), list(twin.parameters()))

    # This is the same in parts of one step, with the optimizer inside.
    model, loss_of, (x, y) = resnet_case(rank)
    twin = copy.deepcopy(model)
    ddp = nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)
    optimizer, inside = optimizer_of(model), optimizer_of(twin)

    def part(x: Any, y: Any, share: float) -> Any:
        loss = share * F.cross_entropy(twin(x), y)
        loss.backward()
        return loss

    parts = reprise.micro_batches(
        part, x, y, parts=[2], budget="90%", optimizer=inside, process_group=world(), time_limit=1
    )
    for _ in range(4):
        optimizer.zero_grad()
        with ddp.no_sync():
            (0.5 * F.cross_entropy(ddp(x[:8]), y[:8])).backward()
        (0.5 * F.cross_entropy(ddp(x[8:]), y[8:])).backward()
        optimizer.step()
        parts(x, y)
    assert_equal(list(model.parameters()), list(twin.parameters()))
    for wrong in (lambda: parts.no_sync().__enter__(),):
        with pytest.raises(reprise.InputError, match="uses its gradients up"):
            wrong()


def is_like_ddp(rank: int) -> None:
    for case in CASES:
        equals_ddp(rank, case)
        has_the_layout_of_ddp(rank, case)
    accumulates(rank)


def clips(rank: int) -> None:
    """Calls behind the backward use the averages, as with DDP."""

    def clipping(model: nn.Module, loss_of: Function) -> Function:
        def step(*sample: Any) -> Any:
            loss = loss_of(model, *sample)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            return loss + 0 * norm

        return step

    def watching(model: nn.Module, loss_of: Function) -> Function:
        def step(*sample: Any) -> Any:
            loss = loss_of(model, *sample)
            loss.backward()
            gradients: Any = [p.grad for p in model.parameters()]
            return loss + nn.utils.get_total_norm(gradients)

        return step

    both: tuple[Function, ...] = (clipping, watching)
    for step_with in both:
        model, loss_of, sample = gpt_case(rank)
        twin, third = copy.deepcopy(model), copy.deepcopy(model)
        ddp = nn.parallel.DistributedDataParallel(model, broadcast_buffers=False, bucket_cap_mb=1)
        optimizer, steps = optimizer_of(model), 4
        losses = train(rank, step_with(ddp, loss_of), optimizer, sample, steps)
        group: dict[str, Any] = {"process_group": world(), "bucket_cap_mb": 0.02}
        nets: list[tuple[Any, bool]] = [(twin, False), (third, True)]
        for net, inside in nets:
            ours = optimizer_of(net)
            more: dict[str, Any] = {"optimizer": ours} if inside else {}
            step: Any = reprise.capture(step_with(net, loss_of), *sample, **group, **more)
            step.plan(budget="90%", time_limit=1)
            assert_equal(losses, train(rank, step, None if inside else ours, sample, steps))
            assert_equal(list(model.parameters()), list(net.parameters()))
            report = step.report()
            assert report.predicted_peak_bytes == report.measured_peak_bytes
            if not inside:
                assert_equal(
                    [p.grad for p in model.parameters()], [p.grad for p in net.parameters()]
                )
        if step_with is clipping:
            with pytest.raises(reprise.InputError, match=r"uses gradients.*shard_optimizer"):
                reprise.capture(
                    step_with(third, loss_of), *sample, **group, **more, shard_optimizer=True
                )


def test_gradients_of_a_group_are_clipped_in_the_step() -> None:
    run_ranks(clips, timeout=TIMEOUT)


def is_captured_again(rank: int) -> None:
    """What differs on one rank is captured again on all ranks, and nothing else is."""
    model, loss_of, (x, y) = resnet_case(rank)
    twin = copy.deepcopy(model)
    ddp = nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)
    shift = 0.0

    def shifted(module: nn.Module, x: Any, y: Any) -> Any:
        return loss_of(module, x + shift, y)

    step = reprise.capture(step_of(twin, shifted), x, y, process_group=world(), on_miss="recapture")
    step.plan(budget="80%", time_limit=1)
    optimizers = [optimizer_of(model), optimizer_of(twin)]

    def run(rows: int) -> None:
        both: tuple[Function, Function] = step_of(ddp, shifted), step
        ours = [
            train(rank, one, optimizer, (x[:rows], y[:rows]), steps=2)
            for one, optimizer in zip(both, optimizers, strict=True)
        ]
        assert_equal(*ours)
        assert_equal(list(model.parameters()), list(twin.parameters()))
        report = step.report()  # Bytes are the largest ones of all ranks.
        assert report.measured_peak_bytes <= report.predicted_peak_bytes
        assert rows != 16 or report.predicted_peak_bytes == report.measured_peak_bytes

    def captures() -> list[str]:
        return [o.why for o in step.report().overheads if o.work == "capture"]

    run(16)
    run(8)  # other shapes on all ranks
    before = captures()
    assert len(before) == 2, before
    run(8)
    assert captures() == before
    shift = 0.5 * rank  # another number in the function, on one rank
    run(8)
    assert len(captures()) == 3, captures()
    assert "shift" in captures()[-1], captures()
    run(8 * (1 + rank))  # another shape on one rank: a batch may be smaller than that of others


def test_steps_of_a_group_are_captured_again() -> None:
    run_ranks(is_captured_again, timeout=TIMEOUT)


def moves_values(rank: int) -> None:
    """Values, the optimizer's state and parameters lie on a disk, and the bits are those of DDP."""
    model, loss_of, sample = gpt_case(rank)
    twin = copy.deepcopy(model)
    ddp = nn.parallel.DistributedDataParallel(model, broadcast_buffers=False, bucket_cap_mb=1)
    losses = train(rank, step_of(ddp, loss_of), optimizer_of(model), sample, steps=4)
    before = copy.deepcopy(twin.state_dict())
    every: list[dict[str, Any]] = [{}, {"offload_optimizer": True}, {"offload_parameters": True}]
    for homes in every:
        twin.load_state_dict(before)
        inside = optimizer_of(twin)
        with tempfile.TemporaryDirectory() as folder:
            step = reprise.capture(
                step_of(twin, loss_of),
                *sample,
                process_group=world(),
                bucket_cap_mb=0.02,
                optimizer=inside,
            )
            homes |= {"offload": f"disk:{folder}", "machine": fast("disk")}
            step.plan(budget="75%", time_limit=2, **homes)
            assert_equal(losses, train(rank, step, None, sample, steps=4))
            report = step.report()
            assert report.predicted_peak_bytes == report.measured_peak_bytes
            assert report.budget_bytes is not None
            assert report.measured_peak_bytes <= report.budget_bytes
            assert report.moved_out_bytes > 0
            machine: Any = step.machine()
            names = [memory["name"] for memory in machine["memories"]]
            assert names == ["device", "disk", "ranks"]
            plan: Any = step.planned.plan
            assert not reprise.verify(step.graph, plan, machine=machine)
            # The plan goes back as it came.
            step.use(plan, budget=report.budget_bytes, **homes)
            again: Any = step.planned.plan
            assert again.actions == plan.actions
            if len(homes) > 2:
                step.fetch_optimizer_state()
                step.fetch_parameters()
            assert_equal(list(model.parameters()), list(twin.parameters()))
            del step
    # "auto" is one decision of all ranks.
    step = reprise.capture(step_of(twin, loss_of), *sample, process_group=world())
    step.plan(budget="80%", offload="auto", time_limit=1)
    chosen: list[Any] = [None, None]
    dist.all_gather_object(chosen, (step.report().offload_choice, step.machine()))
    assert chosen[0] == chosen[1]


def test_values_move_in_steps_of_a_group() -> None:
    run_ranks(moves_values, timeout=TIMEOUT)


def test_bits_and_buckets_are_those_of_ddp() -> None:
    run_ranks(is_like_ddp, timeout=TIMEOUT)


def small(rank: int, width: int = 32) -> tuple[Any, Function, Any, Any]:
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, 4))
    x, y = torch.randn(64, width), torch.randint(0, 4, (64,))
    return model, step_of(model, lambda model, x, y: F.cross_entropy(model(x), y)), x, y


def fails(kind: type[Exception], pattern: str, function: Function) -> None:
    """Asserts that the function raises this within the timeout of the group."""
    begun = time.monotonic()
    with pytest.raises(kind, match=pattern):
        function()
    assert time.monotonic() - begun < TIMEOUT


def all_ranks_fail(rank: int) -> None:
    # Steps that differ.
    with fresh_group() as group:
        _, step, x, y = small(rank, width=32 + rank)
        fails(
            reprise.InputError,
            "rank 1 differs from rank 0",
            lambda: reprise.capture(step, x, y, process_group=group),
        )
    # A step that one rank cannot capture.
    with fresh_group() as group:
        model, step, x, y = small(rank)

        def reads(x: Any, y: Any) -> Any:
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss * loss.item()

        fails(
            reprise.InputError if rank == 1 else PeerError,
            "the step cannot be captured" if rank == 1 else "rank 1 has failed: .*captured",
            lambda: reprise.capture(reads if rank == 1 else step, x, y, process_group=group),
        )
    # A budget that is none, on one rank.
    with fresh_group() as group:
        _, step, x, y = small(rank)
        captured = reprise.capture(step, x, y, process_group=group)
        fails(
            reprise.InputError if rank == 1 else PeerError,
            "percent" if rank == 1 else "rank 1 has failed: .*percent",
            lambda: captured.plan(budget="50 percent" if rank == 1 else "90%"),
        )
    # Budgets: the smallest one holds, and it may be too small.
    with fresh_group() as group:
        _, step, x, y = small(rank)
        captured = reprise.capture(step, x, y, process_group=group)
        fails(reprise.BudgetError, "budget", lambda: captured.plan(budget=[10**9, 1000][rank]))
        expected = captured.plan(budget=[10**9, 10**8][rank])
        assert expected.budget_bytes == 10**8
        captured(x, y)
        assert captured.report().budget_bytes == 10**8
        # A plan that one rank refuses leaves the step as it was.
        plan = captured.planned.plan
        assert plan is not None
        fails(
            reprise.InputError,
            "rank 1: the plan is not valid",
            lambda: captured.use(plan, budget=[10**8, 1000][rank]),
        )
        captured(x, y)
        # A rank that finds other inputs than at the capture, and one that has no memory left.
        fails(
            reprise.InputError if rank == 1 else PeerError,
            "captured for something else|other shape|input 0" if rank == 1 else "rank 1 has failed",
            lambda: captured(x[:10] if rank == 1 else x, y[:10] if rank == 1 else y),
        )
        fails(PeerError, "failed", lambda: captured(x, y))
    with fresh_group() as group:
        model, step, x, y = small(rank)
        captured = reprise.capture(step, x, y, process_group=group)
        peak = captured.plan(budget="100%").budget_bytes
        assert peak is not None
        captured.plan(budget=peak)
        before = [p.detach().clone() for p in model.parameters()]
        hog = torch.empty(2 * peak if rank == 1 else 1)
        fails(
            reprise.BudgetError if rank == 1 else PeerError,
            "budget" if rank == 1 else "rank 1 has failed",
            lambda: captured(x, y),
        )
        del hog
        assert_equal(before, list(model.parameters()))
        assert all(p.grad is None for p in model.parameters())


def a_rank_dies(rank: int) -> None:
    _, step, x, y = small(rank)
    captured = reprise.capture(step, x, y, process_group=world())
    captured(x, y)
    if rank == 1:
        os._exit(0)
    fails(PeerError, "bucket 1 of 1 .* failed on rank 0", lambda: captured(x, y))


def a_rank_stays_away(rank: int) -> None:
    dist.barrier()  # The group that comes next has little patience.
    group = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=4))
    _, step, x, y = small(rank)
    if rank == 0:
        fails(
            PeerError,
            "has waited 4.* s for rank 1",
            lambda: reprise.capture(step, x, y, process_group=group),
        )
    else:
        time.sleep(8)


def refusals(rank: int) -> None:
    model, step, x, y = small(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with fresh_group() as group:
        for options, pattern in (
            ({"process_group": "WORLD"}, "a group of torch.distributed"),
            ({"bucket_cap_mb": 1}, "for a step with process_group"),
            ({"process_group": group, "bucket_cap_mb": 0}, "above 0"),
        ):
            with pytest.raises(reprise.InputError, match=pattern):
                reprise.capture(step, x, y, **options)

        def goes_on(x: Any, y: Any) -> Any:
            step(x, y)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            return step(x, y)

        with pytest.raises(reprise.InputError, match="another gradient is made behind it"):
            reprise.capture(goes_on, x, y, process_group=group)
    alone = reprise.capture(step, x, y)
    with pytest.raises(reprise.InputError, match="without a process group"), alone.no_sync():
        pass
    inside = reprise.capture(step, x, y, process_group=world(), optimizer=optimizer)
    with pytest.raises(reprise.InputError, match="uses its gradients up"), inside.no_sync():
        pass
    with pytest.raises(reprise.InputError, match="give one number"):
        reprise.micro_batches(
            lambda x, y, share: step(x, y), x, y, parts=[1, 2], process_group=world()
        )


def what_goes_wrong(rank: int) -> None:
    refusals(rank)
    all_ranks_fail(rank)
    a_rank_stays_away(rank)
    a_rank_dies(rank)


def test_a_failure_on_one_rank_is_an_error_on_all() -> None:
    run_ranks(what_goes_wrong, timeout=TIMEOUT, may_die=[1])
