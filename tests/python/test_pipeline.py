"""Pipelines that run: two ranks with Gloo, and four parts in one process."""

from __future__ import annotations

import copy
import datetime
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
import reprise  # noqa: E402
import torch.distributed as dist  # noqa: E402
from pipelines import (  # noqa: E402
    MICRO,
    ROWS,
    TIMEOUT,
    WIDTH,
    Apply,
    Masked,
    accumulate,
    assert_bytes,
    assert_equal,
    batch,
    block,
    images,
    loss_of,
    made,
    network,
    parts_of,
    run,
    runs_again,
    train,
)
from reprise.errors import PeerError  # noqa: E402
from torch import nn  # noqa: E402
from two_ranks import run_ranks  # noqa: E402


def equals_accumulation(rank: int) -> None:
    reprise.install_cpu_allocator()
    stages = network()
    expected = accumulate(stages, rank, 2, 1)
    for planner in ("gpipe", "pipeline"):
        step = train(rank, stages, expected, 1, 2, planner=planner)
        assert step.plan["planner"] == planner and step.report().plans == 1
        assert runs_again(step) == 0
    pytorch_runs_the_order(rank, stages, expected, step)
    free = step.report().measured_peak_bytes
    # Another budget on each rank. Optimizer state comes behind the first step, and a plan with it.
    # On a busy machine the search for a plan below the free one's peak takes its time.
    step = train(rank, stages, expected, 1, 2, budget=free * 95 // 100, time_limit=20.0)
    assert runs_again(step) > 0 and step.report().plans == 2
    # Two parts on each rank: messages of four parts on one link.
    expected = accumulate(stages, rank, 2, 2)
    step = train(rank, stages, expected, 2, 2)
    assert [part["device"] for part in step.plan["parts"]] == ["rank0", "rank1"] * 2
    draws_the_same_numbers(rank, stages)


def pytorch_runs_the_order(
    rank: int, stages: list[nn.Module], expected: list[Any], step: Any
) -> None:
    """PyTorch's engine runs the order of a plan, as `--pytorch-order` writes it: same bits."""
    from torch.distributed.pipelining import PipelineStage, schedules

    letters = {"forward": "F", "backward": "B", "input_gradient": "I", "weight_gradient": "W"}
    orders = [device["order"] for device in step.plan["devices"]]
    computed = [[action for action in order if action[0] in letters] for order in orders]
    rows = [",".join(f"{part}{letters[kind]}{m}" for kind, part, m in one) for one in computed]
    part = parts_of(copy.deepcopy(stages), rank, 2, 1)[0]
    stage = PipelineStage(part, rank, 2, torch.device("cpu"))
    engine = schedules._PipelineScheduleRuntime(
        [stage], n_microbatches=MICRO, loss_fn=loss_of, scale_grads=False
    )
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
        file.write("\n".join(rows) + "\n")
        file.flush()
        engine._load_csv(file.name)
    x, y = batch()
    engine.step(*((x,) if rank == 0 else ()), **({"target": y} if rank else {}))
    gradients = [p.grad for p in part.parameters()]
    assert_equal(gradients, expected[0][-len(gradients) :])


def draws_the_same_numbers(rank: int, stages: list[nn.Module]) -> None:
    """A stage that a budget runs again draws what it drew at first."""
    noisy = [nn.Sequential(s, nn.Dropout(0.3)) if isinstance(s, Masked) else s for s in stages]
    noisy[1] = nn.Sequential(noisy[1], nn.Dropout(0.3))
    found = []
    for budget in (None, "84%"):
        parts = parts_of(copy.deepcopy(noisy), rank, 2, 1)
        step = made(rank, parts, budget=budget)
        torch.manual_seed(11 + rank)
        losses = run(step, rank)
        assert_bytes(step)
        found.append([*images(parts, True), torch.get_rng_state(), *([losses] if rank else [])])
    assert runs_again(step) > 0
    assert_equal(*found)


def test_bits_are_those_of_accumulation() -> None:
    run_ranks(equals_accumulation, timeout=TIMEOUT)


def test_four_parts_in_one_process() -> None:
    alone = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=alone, rank=0, world_size=1)
    try:
        reprise.install_cpu_allocator()
        stages = network()
        expected = accumulate(stages, 0, 1, 4)
        step = train(0, stages, expected, 4, 1)
        assert len(step.plan["parts"]) == 4
        with pytest.raises(reprise.BudgetError, match="no plan fits") as error:
            made(0, parts_of(stages, 0, 1, 4), 1, budget="1 KiB")
        assert error.value.requested > 1024
    finally:
        dist.destroy_process_group()


def fails(kind: type[Exception], pattern: str, function: Callable[[], Any]) -> None:
    """Asserts that the function raises this within the timeout of the group."""
    begun = time.monotonic()
    with pytest.raises(kind, match=pattern):
        function()
    assert time.monotonic() - begun < TIMEOUT / 2


def fresh(rank: int, **options: Any) -> tuple[Any, Any]:
    """Makes a pipeline in a group of its own, for a case that leaves both useless."""
    group = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=TIMEOUT))
    parts = parts_of(network(), rank, 2, 1)
    return parts, made(rank, parts, process_group=group, **options)


def a_step_fails(rank: int) -> None:
    reprise.install_cpu_allocator()
    calls: list[int] = []
    hogs: list[Any] = []

    def raises(scores: Any, target: Any) -> Any:
        calls.append(1)
        if len(calls) > 100:
            raise ValueError("no loss today")
        return loss_of(scores, target)

    def takes(scores: Any, target: Any) -> Any:
        if hogs:
            hogs.append(torch.empty(10_000_000))
        return loss_of(scores, target)

    # The loss of one rank fails in the middle of a step.
    parts, step = fresh(rank, loss=raises)
    run(step, rank)
    for part in parts:
        part.zero_grad()
    before = images(parts, False)[: sum(1 for p in parts for _ in p.parameters())]
    calls += [1] * 100
    fails(
        ValueError if rank else PeerError,
        "no loss today" if rank else "rank 1 has failed: ValueError: no loss today",
        lambda: run(step, rank),
    )
    assert all(p.grad is None for part in parts for p in part.parameters())
    assert_equal(before, images(parts, False)[: len(before)])
    fails(PeerError, "has failed before", lambda: run(step, rank))

    # A request beyond the budget in the middle of a step.
    _, step = fresh(rank, loss=takes, budget=10_000_000)
    hogs += [1]
    fails(
        reprise.BudgetError if rank else PeerError,
        "budget" if rank else "rank 1 has failed: BudgetError",
        lambda: run(step, rank),
    )
    # No plan fits beside the memory that one rank has taken: all ranks hear of it alike.
    _, step = fresh(rank, budget=10_000_000)
    hog = torch.empty(4_000_000 if rank else 1)
    fails(reprise.BudgetError, "rank1 has 10000000 bytes", lambda: run(step, rank))
    del hog
    # Gradients of a step before, and a batch that is not the sample's.
    parts, step = fresh(rank)
    run(step, rank)
    fails(reprise.InputError if rank else reprise.Error, "zero_grad", lambda: run(step, rank))
    _, step = fresh(rank)
    fails(
        PeerError if rank else reprise.InputError,
        "micro-batch 0 differs from the sample",
        lambda: run(step, rank, rows=ROWS // 2),
    )
    _, step = fresh(rank)
    fails(reprise.Error, "cannot be cut into 4", lambda: run(step, rank, rows=ROWS - 1))


def refusals(rank: int) -> None:
    parts = parts_of(network(), rank, 2, 1)
    for options, pattern in (
        ({"budget": ["50%", "60%"][rank]}, "the budget of all ranks"),
        ({"planner": "chain"}, "does not plan pipelines"),
        ({"micro_batches": 0}, "at least one micro-batch"),
        ({"budget": 1000}, "no plan fits"),
    ):
        fails(reprise.Error, pattern, lambda options=options: made(rank, parts, **options))  # type: ignore[misc]
    fails(reprise.Error, "as many parts", lambda: made(rank, parts * (1 + rank)))
    meta = [nn.Sequential(nn.Linear(WIDTH, WIDTH, device="meta"))]
    fails(reprise.Error, "run on the CPU", lambda: made(rank, meta))
    # Parts whose messages are no whole contiguous tensors, and parameters of two stages.
    both = nn.Linear(WIDTH, WIDTH)
    for first, second, pattern in (
        ([Apply(lambda x: x.t())], [Apply(lambda x: x.t())], "is not contiguous"),
        ([], [Apply(lambda x: x.sum(1, keepdim=True)), nn.Linear(1, 97)], "are whole contiguous"),
        ([both, nn.GELU(), both], [nn.Linear(WIDTH, 97)], "share a parameter"),
    ):
        halves = [[nn.Embedding(97, WIDTH), *first], second]
        mine = [nn.Sequential(*halves[rank])]
        fails(reprise.Error, pattern, lambda mine=mine: made(rank, mine))  # type: ignore[misc]
    with pytest.raises(reprise.InputError, match=r"a group of torch\.distributed"):
        made(rank, parts, process_group="WORLD")


def a_rank_stays_away(rank: int) -> None:
    dist.barrier()  # The group that comes next has little patience.
    group = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=4))
    parts = parts_of(network(), rank, 2, 1)
    if rank == 0:
        fails(PeerError, "has waited 4 s for rank 1", lambda: made(0, parts, process_group=group))
    else:
        time.sleep(8)


def a_rank_dies(rank: int) -> None:
    def dies(scores: Any, target: Any) -> Any:
        if torch.is_tensor(scores) and dying:
            os._exit(0)
        return loss_of(scores, target)

    dying: list[int] = []
    _, step = fresh(rank, loss=dies)
    dying += [1]
    fails(PeerError, "failed on rank 0", lambda: run(step, rank))


def a_wait_is_interrupted(rank: int) -> None:
    """Ctrl-C ends the wait for a rank that does not come, long before the timeout."""
    group = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=600))
    parts = parts_of(network(), rank, 2, 1)
    if rank == 0:
        threading.Timer(1, signal.raise_signal, [signal.SIGINT]).start()
        with pytest.raises(KeyboardInterrupt):
            made(0, parts, process_group=group)
    else:
        with pytest.raises(PeerError, match="rank 0 has failed: KeyboardInterrupt"):
            time.sleep(3)  # It comes too late, and hears at once why nobody is there.
            made(1, parts, process_group=group)


def an_early_mistake_is_told(rank: int) -> None:
    """What is wrong before a rank has a pipeline is an error on all ranks, too."""
    group = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=600))
    parts = parts_of(network(), rank, 2, 1)
    fails(
        PeerError if rank else reprise.InputError,
        "GoB" if rank == 0 else "rank 0 has failed: .*GoB",
        lambda: made(rank, parts, process_group=group, budget=None if rank else "8 GoB"),
    )


def what_goes_wrong(rank: int) -> None:
    a_step_fails(rank)
    refusals(rank)
    an_early_mistake_is_told(rank)
    a_wait_is_interrupted(rank)
    a_rank_stays_away(rank)
    a_rank_dies(rank)


def test_a_failure_on_one_rank_is_an_error_on_all() -> None:
    run_ranks(what_goes_wrong, timeout=TIMEOUT, may_die=[1])


def test_a_pipeline_needs_a_group() -> None:
    with pytest.raises(reprise.InputError, match="init_process_group"):
        reprise.pipeline([block()], torch.zeros(2, WIDTH), micro_batches=1, loss=loss_of)
