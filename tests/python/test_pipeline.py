"""Pipelines that run: two ranks with Gloo, and four parts in one process."""

from __future__ import annotations

import copy
import datetime
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
import reprise  # noqa: E402
import torch.distributed as dist  # noqa: E402
from reprise import _core  # noqa: E402
from reprise.errors import PeerError  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from two_ranks import run_ranks  # noqa: E402

pytestmark = pytest.mark.usefixtures("runtime")

sys.path.insert(0, str(pathlib.Path(__file__).parent))

TIMEOUT = 20.0  # of the groups, in seconds
MICRO, ROWS, WIDTH, STEPS = 4, 1024, 64, 2


class WithMask(nn.Module):
    """Hands over two tensors. The second one has no gradient."""

    def forward(self, x: Any) -> Any:
        return x, x > 0


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, pair: Any) -> Any:
        x, mask = pair
        return self.linear(torch.where(mask, x, 0.1 * x))


class Apply(nn.Module):
    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


def block() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))


def network() -> list[nn.Module]:
    """Eight stages that are modules: tokens come in, and scores go out."""
    torch.manual_seed(1)
    middle = [nn.Sequential(block(), nn.BatchNorm1d(WIDTH)), block(), WithMask(), Masked()]
    first, last = nn.Embedding(97, WIDTH), nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 97))
    return [first, block(), *middle, block(), last]


def batch() -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(7)
    x = torch.randint(0, 97, (ROWS,), generator=generator)
    return x, torch.randint(0, 97, (ROWS,), generator=generator)


def loss_of(scores: Any, target: Any) -> Any:
    return F.cross_entropy(scores, target, reduction="sum") / ROWS


def parts_of(stages: list[nn.Module], rank: int, size: int, each: int) -> list[nn.Sequential]:
    """Returns the parts of a rank that has `each` of them."""
    long = len(stages) // (size * each)
    first = [long * (rank + size * k) for k in range(each)]
    return [nn.Sequential(*stages[f : f + long]) for f in first]


def optimizer_of(modules: Any) -> Any:
    return torch.optim.AdamW([p for m in modules for p in m.parameters()], lr=1e-2)


def assert_equal(a: Any, b: Any) -> None:
    assert len(a) == len(b)
    for one, other in zip(a, b, strict=True):
        assert torch.equal(one, other)


def images(modules: Any, gradients: bool) -> list[Any]:
    """Returns copies of parameters, gradients and buffers."""
    found = [t for m in modules for t in [*m.parameters(), *m.buffers()]]
    if gradients:
        found += [p.grad for m in modules for p in m.parameters()]
    return [t.detach().clone() for t in found]


def accumulate(stages: list[nn.Module], rank: int, size: int, each: int) -> list[list[Any]]:
    """Trains the whole model in one process. Returns what each step leaves of the rank's parts."""
    whole = nn.Sequential(*copy.deepcopy(stages))
    mine = parts_of(list(whole), rank, size, each)
    optimizer = optimizer_of([whole])
    x, y = batch()
    found = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        losses = []
        for a, b in zip(x.chunk(MICRO), y.chunk(MICRO), strict=True):
            loss = loss_of(whole(a), b)
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
        found.append([torch.stack(losses), *images(mine, True)])
    return found


def made(rank: int, parts: Any, size: int = 2, **options: Any) -> Any:
    x, y = batch()
    rows = ROWS // MICRO
    return reprise.pipeline(
        parts,
        x[:rows] if rank == 0 else None,
        micro_batches=options.pop("micro_batches", MICRO),
        loss=options.pop("loss", loss_of),
        target=y[:rows].clone() if rank == size - 1 else None,
        time_limit=options.pop("time_limit", 0.3),
        **options,
    )


def run(step: Any, rank: int, size: int = 2, rows: int = ROWS) -> Any:
    x, y = batch()
    inputs = (x[:rows],) if rank == 0 else ()
    return step.step(*inputs, target=y[:rows] if rank == size - 1 else None)


def assert_bytes(step: Any) -> None:
    report = step.report()
    assert report.predicted_peak_bytes == report.measured_peak_bytes
    assert report.budget_bytes is None or report.measured_peak_bytes <= report.budget_bytes


def runs_again(step: Any) -> int:
    """Returns how many runs of stages the plan makes beyond the first ones."""
    parts = step.plan["parts"]
    runs = [p["forward"] + p["backward"] for part in parts for p in part["plans"]]
    ops = [[op for op, _ in one] for one in runs]
    return sum(len(one) - len(set(one)) for one in ops)


def train(
    rank: int, stages: list[nn.Module], expected: list[Any], each: int, size: int, **options: Any
) -> Any:
    """Trains in parts, and compares each step with one process to the last bit."""
    parts = parts_of(copy.deepcopy(stages), rank, size, each)
    step = made(rank, parts, size, **options)
    optimizer = optimizer_of(parts)
    for number in range(STEPS):
        optimizer.zero_grad()
        losses = run(step, rank, size)
        assert (losses is not None) == (rank == size - 1)
        assert_bytes(step)
        optimizer.step()
        if losses is not None:
            assert_equal([losses], expected[number][:1])
        assert_equal(images(parts, True), expected[number][1:])
    with tempfile.TemporaryDirectory() as name:
        problem, plan = pathlib.Path(name, "problem.json"), pathlib.Path(name, "plan.json")
        step.save(problem, plan)
        assert _core.verify_pipeline(problem.read_text(), plan.read_text()) == ""
        slower = problem.read_text().replace('"micro_batches": 4', '"micro_batches": 5')
        assert "micro-batch" in _core.verify_pipeline(slower, plan.read_text())
    return step


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

    letters = {"forward": "F", "backward": "B"}
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
    group = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=2))
    parts = parts_of(network(), rank, 2, 1)
    if rank == 0:
        fails(PeerError, "has waited 2 s for rank 1", lambda: made(0, parts, process_group=group))
    else:
        time.sleep(4)


def a_rank_dies(rank: int) -> None:
    def dies(scores: Any, target: Any) -> Any:
        if torch.is_tensor(scores) and dying:
            os._exit(0)
        return loss_of(scores, target)

    dying: list[int] = []
    _, step = fresh(rank, loss=dies)
    dying += [1]
    fails(PeerError, "failed on rank 0", lambda: run(step, rank))


def what_goes_wrong(rank: int) -> None:
    a_step_fails(rank)
    refusals(rank)
    a_rank_stays_away(rank)
    a_rank_dies(rank)


def test_a_failure_on_one_rank_is_an_error_on_all() -> None:
    run_ranks(what_goes_wrong, timeout=TIMEOUT, may_die=[1])


def test_a_pipeline_needs_a_group() -> None:
    with pytest.raises(reprise.InputError, match="init_process_group"):
        reprise.pipeline([block()], torch.zeros(2, WIDTH), micro_batches=1, loss=loss_of)
