"""Sharded optimizers of captured steps: two ranks with Gloo, compared bit by bit with DDP."""

from __future__ import annotations

import copy
import datetime
import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
import reprise  # noqa: E402
import torch.distributed as dist  # noqa: E402
from models import GptConfig, GptLMHeadModel  # noqa: E402
from reprise.errors import PeerError  # noqa: E402
from torch import nn  # noqa: E402
from two_ranks import run_ranks  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).parent))

TIMEOUT = 20.0  # of the groups, in seconds
STEPS = 3
CAP = 0.02  # MiB: several buckets
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1),
    "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True),
    "Adagrad": lambda model: torch.optim.Adagrad(model.parameters(), lr=0.1),
}


def world() -> Any:
    return dist.group.WORLD


def network() -> nn.Module:
    return GptLMHeadModel(GptConfig(layers=2))


def tokens_of(rank: int, rows: int = 8) -> Any:
    return torch.randint(0, 97, (rows, 24), generator=torch.Generator().manual_seed(50 + rank))


def step_of(model: nn.Module) -> Callable[..., Any]:
    def step(tokens: Any) -> Any:
        loss: Any = model(tokens, labels=tokens).loss
        loss.backward()
        return loss

    return step


def sharded(model: nn.Module, optimizer: Any, tokens: Any, **options: Any) -> Any:
    return reprise.capture(
        step_of(model),
        tokens,
        process_group=world(),
        bucket_cap_mb=CAP,
        optimizer=optimizer,
        shard_optimizer=True,
        **options,
    )


def train(rank: int, call: Callable[..., Any], optimizer: Any, steps: int = STEPS) -> list[Any]:
    """Returns the losses. `optimizer` is None if the step updates the parameters itself."""
    torch.manual_seed(100 + rank)  # Each rank drops out for itself.
    losses = []
    for number in range(steps):
        losses.append(call(tokens_of(rank + 2 * number)).detach().clone())
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
    return losses


def assert_equal(a: Any, b: Any) -> None:
    assert len(a) == len(b)
    assert [i for i, (p, q) in enumerate(zip(a, b, strict=True)) if not torch.equal(p, q)] == []


def state_of(optimizer: Any) -> dict[int, dict[str, Any]]:
    """Returns the state by the number of the parameter."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return {i: optimizer.state[p] for i, p in enumerate(parameters) if p in optimizer.state}


def state_bytes(optimizer: Any) -> int:
    """Returns the bytes of all states that are as large as parameters."""
    fields = [t for state in state_of(optimizer).values() for t in state.values()]
    return sum(t.nbytes for t in fields if isinstance(t, torch.Tensor) and t.dim() > 0)


def assert_same_states(mine: Any, whole: Any) -> None:
    """Asserts that the states that are in `mine` have the bits that they have in `whole`."""
    expected = state_of(whole)
    for number, state in state_of(mine).items():
        assert state.keys() == expected[number].keys()
        for field, value in state.items():
            other = expected[number][field]
            assert torch.equal(value, other) if torch.is_tensor(value) else value == other


def sum_of_ranks(number: int) -> int:
    total = torch.tensor([number])
    dist.all_reduce(total)
    return int(total)


def equals_ddp(rank: int, kind: str) -> None:
    torch.manual_seed(rank)  # The parameters of the ranks differ until rank 0 gives them its own.
    model = network()
    twin = copy.deepcopy(model)
    ddp = nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)
    outside, inside = OPTIMIZERS[kind](model), OPTIMIZERS[kind](twin)
    step = sharded(twin, inside, tokens_of(rank))
    start, fresh = copy.deepcopy(twin.state_dict()), copy.deepcopy(inside.state_dict())
    losses = train(rank, step_of(ddp), outside)
    for budget in ("100%", "80%") if kind == "AdamW" else ("80%",):
        twin.load_state_dict(start)
        inside.load_state_dict(copy.deepcopy(fresh))
        step.plan(budget=budget, time_limit=1)
        assert_equal(losses, train(rank, step, None))
        assert_equal(list(model.parameters()), list(twin.parameters()))
        assert_same_states(inside, outside)
        report = step.report()
        assert report.predicted_peak_bytes == report.measured_peak_bytes
        assert report.budget_bytes is not None
        assert report.measured_peak_bytes <= report.budget_bytes
        assert report.fallbacks == 0
        assert all(p.grad is None for p in twin.parameters())
    # Each rank has its half, up to one parameter, and the ranks have all of it together.
    whole, mine = state_bytes(outside), state_bytes(inside)
    largest = (
        max(p.nbytes for p in model.parameters())
        * whole
        // sum(p.nbytes for p in model.parameters())
    )
    assert sum_of_ranks(mine) == whole
    assert abs(2 * mine - whole) <= largest
    assert len(state_of(inside)) < len(state_of(outside))
    # A state of all parameters that is loaded between two steps is cut to the shard.
    twin.load_state_dict(model.state_dict())
    inside.load_state_dict(copy.deepcopy(outside.state_dict()))
    assert state_bytes(inside) == whole
    assert_equal(train(rank, step_of(ddp), outside, 2), train(rank, step, None, 2))
    assert_equal(list(model.parameters()), list(twin.parameters()))
    assert state_bytes(inside) == mine


def has_one_order(rank: int) -> None:
    """Asserts the order of sums and exchanges, and that both have work beside them."""
    model = network()
    step = sharded(model, OPTIMIZERS["SGD"](model), tokens_of(rank))
    step.plan(budget="90%", time_limit=1)
    plan = step.planned.plan
    assert plan is not None
    runs = [a.id.split(":", 1)[1] for a in plan.actions if a.kind == "run"]
    starts = [r for r in runs if ".start." in r]
    buckets = sum(r.startswith("allreduce.start.") for r in runs)
    assert buckets > 3
    for b in range(buckets):
        at = [
            runs.index(f"{name}.{b}")
            for name in (
                "allreduce.start",
                "allreduce.wait",
                "update.shard",
                "allgather.start",
                "allgather.wait",
            )
        ]
        assert at == sorted(at)
    assert starts == [
        op.id.split(":", 1)[1] for op in step.graph.ops if ".start." in op.id.split(":", 1)[1]
    ]
    waits = [runs.index(f"allgather.wait.{b}") for b in range(buckets)]
    ours = ("fill", "allreduce", "allgather", "update")
    work = [i for i, r in enumerate(runs) if not r.startswith(ours)]
    first = runs.index("allgather.start.0")
    assert any(first < i < waits[0] for i in work)


def accumulates(rank: int) -> None:
    torch.manual_seed(7)
    model = network()
    twin = copy.deepcopy(model)
    ddp = nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)
    outside, inside = OPTIMIZERS["AdamW"](model), OPTIMIZERS["AdamW"](twin)
    tokens = tokens_of(rank)
    for module in (model, twin):
        module.eval()  # One mask for all parts is not the same as a mask for each.

    def part(tokens: Any, share: float) -> Any:
        loss = share * twin(tokens, labels=tokens).loss
        loss.backward()
        return loss

    parts = reprise.micro_batches(
        part,
        tokens,
        parts=[2],
        budget="100%",
        optimizer=inside,
        process_group=world(),
        shard_optimizer=True,
        time_limit=1,
    )
    for _ in range(3):
        with ddp.no_sync():
            (0.5 * ddp(tokens[:4], labels=tokens[:4]).loss).backward()
        (0.5 * ddp(tokens[4:], labels=tokens[4:]).loss).backward()
        outside.step()
        outside.zero_grad()
        parts(tokens)
    assert_equal(list(model.parameters()), list(twin.parameters()))
    assert_same_states(inside, outside)
    assert len(state_of(inside)) < len(state_of(outside))
    with pytest.raises(reprise.InputError, match="uses its gradients up"):
        parts.no_sync().__enter__()


def goes_on_from_saved_states(rank: int, folder: str) -> None:
    """Saves a sharded state and a whole one, and loads them into sharded steps and whole ones."""
    torch.manual_seed(3)
    model = network()
    twin, third = copy.deepcopy(model), copy.deepcopy(model)
    inside, other = OPTIMIZERS["AdamW"](twin), OPTIMIZERS["AdamW"](third)
    step = sharded(twin, inside, tokens_of(rank))
    train(rank, step, None)
    path = os.path.join(folder, "sharded")
    reprise.save_state(path, model=twin, optimizer=inside, step=STEPS)
    losses = [step(tokens_of(rank)).detach().clone() for _ in range(2)]

    # The whole state, from all shards.
    reprise.load_state(path, model=third, optimizer=other)
    assert state_bytes(other) == sum_of_ranks(state_bytes(inside))
    if rank == 0:
        torch.save([third.state_dict(), other.state_dict()], os.path.join(folder, "whole.pt"))
    whole = os.path.join(folder, "whole")
    reprise.save_state(whole, model=third, optimizer=other, step=STEPS)

    # Sharded steps go on from both. A load that follows the capture takes its own shard only.
    for state in (path, whole):
        torch.manual_seed(rank)
        again = network()
        optimizer = OPTIMIZERS["AdamW"](again)
        resumed = sharded(again, optimizer, tokens_of(rank))
        reprise.load_state(state, model=again, optimizer=optimizer)
        assert state_bytes(optimizer) == state_bytes(inside)
        assert_equal(losses, [resumed(tokens_of(rank)).detach().clone() for _ in range(2)])
        assert_equal(list(twin.parameters()), list(again.parameters()))
        assert_same_states(optimizer, inside)

    alone = [dist.new_group([r]) for r in range(2)][rank]
    with pytest.raises(reprise.InputError, match="sharded over 2 processes, and 1 of them"):
        reprise.save_state(
            os.path.join(folder, f"{rank}.safetensors"),
            model=twin,
            optimizer=inside,
            process_group=alone,
        )


def refusals(rank: int) -> None:
    model = network()
    step, tokens = step_of(model), tokens_of(rank)
    for options, pattern in (
        ({"optimizer": OPTIMIZERS["SGD"](model)}, "the step has none: name the group"),
        ({"process_group": world()}, "give the optimizer, or leave shard_optimizer off"),
    ):
        with pytest.raises(reprise.InputError, match=pattern):
            reprise.capture(step, tokens, shard_optimizer=True, **options)
    with pytest.raises(reprise.InputError, match="not by LBFGS"):
        sharded(model, torch.optim.LBFGS(model.parameters()), tokens)
    # Steps for other shapes share an optimizer; a step that does not shard needs another one.
    optimizer = OPTIMIZERS["SGD"](model)
    for rows in (8, 4):
        sharded(model, optimizer, tokens_of(rank, rows))(tokens_of(rank, rows))
    with pytest.raises(reprise.InputError, match="or make a new optimizer"):
        reprise.capture(step, tokens, process_group=world(), optimizer=optimizer)
    other = nn.Linear(4, 4)
    optimizer.add_param_group({"params": list(other.parameters())})
    with pytest.raises(reprise.InputError, match="sharded the optimizer in another way"):
        sharded(model, optimizer, tokens)


def a_rank_fails_in_an_update(rank: int) -> None:
    group = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=TIMEOUT))
    model = network()
    optimizer = OPTIMIZERS["SGD"](model)
    step = reprise.capture(
        step_of(model),
        tokens_of(rank),
        process_group=group,
        bucket_cap_mb=CAP,
        optimizer=optimizer,
        shard_optimizer=True,
        lockstep="never",
    )
    step(tokens_of(rank))
    calls, plain = 0, optimizer.step

    def failing() -> None:
        nonlocal calls
        calls += 1
        if rank == 1 and calls == 2:
            raise ValueError("no more updates")
        plain()

    optimizer.step = failing
    what = "no more updates" if rank == 1 else "rank 1 has failed: .*no more updates"
    with pytest.raises(Exception, match=f"some parameters were updated already(.|\n)*{what}"):
        step(tokens_of(rank))
    with pytest.raises(PeerError):
        step(tokens_of(rank))


def a_rank_dies_in_an_update(rank: int) -> None:
    model = network()
    optimizer = OPTIMIZERS["SGD"](model)
    step = sharded(model, optimizer, tokens_of(rank), lockstep="never")
    step(tokens_of(rank))
    if rank == 1:
        optimizer.step = lambda: os._exit(0)
    with pytest.raises(PeerError, match=r"bucket \d.* failed on rank 0, perhaps because another"):
        step(tokens_of(rank))


def everything(rank: int, folder: str) -> None:
    for kind in OPTIMIZERS:
        equals_ddp(rank, kind)
    has_one_order(rank)
    accumulates(rank)
    goes_on_from_saved_states(rank, folder)
    refusals(rank)
    a_rank_fails_in_an_update(rank)
    a_rank_dies_in_an_update(rank)


def test_a_sharded_step_has_the_bits_of_ddp_and_half_of_the_state(tmp_path: pathlib.Path) -> None:
    run_ranks(everything, str(tmp_path), timeout=TIMEOUT, may_die=[1])
    # One process loads what two have saved.
    model = network()
    optimizer = OPTIMIZERS["AdamW"](model)
    done = reprise.load_state(tmp_path / "sharded", model=model, optimizer=optimizer)
    assert done.step == STEPS
    assert done.ranks == 2
    expected = torch.load(tmp_path / "whole.pt")
    assert_equal(list(model.state_dict().values()), list(expected[0].values()))
    state = optimizer.state_dict()["state"]
    assert state.keys() == expected[1]["state"].keys()
    for number, fields in state.items():
        assert_equal(list(fields.values()), list(expected[1]["state"][number].values()))
