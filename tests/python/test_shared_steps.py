"""Captured steps whose operations two ranks share out."""

from __future__ import annotations

import copy
import dataclasses
import datetime
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
if not torch.distributed.is_available():
    pytest.skip("PyTorch was built without torch.distributed", allow_module_level=True)
import reprise  # noqa: E402
import torch.distributed as dist  # noqa: E402
from reprise.errors import PeerError  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from two_ranks import run_ranks  # noqa: E402

SAMPLES, LENGTH, WIDTH, STEPS, TIMEOUT = 4, 32, 32, 3, 20.0
BITWISE = [a.name for a in reprise.alternatives() if a.in_graph and a.exactness == "bitwise"]


class Network(nn.Module):
    """A convolution, an attention with a dropout, and a perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(8, WIDTH, 3, padding=1)
        self.attention = nn.Linear(WIDTH, 3 * WIDTH)
        self.drop = nn.Dropout(0.1)
        self.inside = nn.Sequential(
            nn.Linear(WIDTH, 8 * WIDTH), nn.GELU(), nn.Linear(8 * WIDTH, WIDTH)
        )

    def forward(self, x: Any) -> Any:
        y = self.convolution(x).transpose(1, 2).contiguous()
        q, k, v = (
            part.view(SAMPLES, LENGTH, 4, WIDTH // 4).transpose(1, 2)
            for part in self.attention(y).chunk(3, -1)
        )
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y + self.drop(z.transpose(1, 2).reshape(y.shape))
        return y + self.inside(y)


def step_of(net: nn.Module) -> Callable[[Any], Any]:
    def step(x: Any) -> Any:
        loss = net(x).square().mean()
        loss.backward()
        return loss

    return step


def batch(seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(SAMPLES, 8, LENGTH, generator=generator)


def train(net: nn.Module, step: Any, check: Callable[[], None] | None = None) -> list[Any]:
    """Returns what the steps leave."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    torch.manual_seed(4)
    found = []
    for number in range(STEPS):
        optimizer.zero_grad()
        found.append(step(batch(number)).detach().clone())
        if check is not None:
            check()
        optimizer.step()
    return [*found, *[p.detach().clone() for p in net.parameters()]]


def favouring(graph: Any, kind: str) -> Any:
    """Returns the graph with alternatives of one kind that take no time, and others that do."""
    slow = 10**12
    times: dict[str, int] = {}
    for choice in graph.choices:
        for realization in choice.realizations[1:]:
            for op in realization.ops:
                times[op] = 0 if realization.name == kind else slow
    ops = []
    for op in graph.ops:
        variants = tuple(
            dataclasses.replace(
                variant,
                ns=times.get(
                    op.id,
                    0 if variant.alternative == kind else slow if variant.alternative else 1000,
                ),
            )
            for variant in op.variants
        )
        ops.append(dataclasses.replace(op, variants=variants))
    return dataclasses.replace(graph, ops=tuple(ops))


def forced(step: Any, kind: str) -> Any:
    """Returns rank 0's plan, on all ranks. It uses the alternatives of a kind wherever it can."""
    told: list[Any] = [None]
    if dist.get_rank() == 0:
        plain = reprise.plan(step.graph, time_limit=0.1).plan
        found = reprise.plan(
            favouring(step.graph, kind), planner="graph", time_limit=0.5, allow="rounding"
        ).plan
        assert plain is not None
        assert found is not None
        cost = reprise.simulate(step.graph, found)
        told[0] = dataclasses.replace(
            plain,
            planner=found.planner,
            schedule_class=found.schedule_class,
            termination="feasible",
            lower_bound_ns=0,
            peak_bytes=cost.peak_bytes,
            time_ns=cost.time_ns,
            actions=found.actions,
        ).to_json()
    dist.broadcast_object_list(told)
    return reprise.Plan.from_json(told[0])


def shared_in(step: Any) -> set[str]:
    """Returns the names of the operations that the plan in force shares out."""
    return {
        action.id.split(":")[1].split("@")[0]
        for action in step.planned.plan.actions
        if action.kind == "run" and action.variant.startswith("shared/")
    }


def pieces_in(step: Any) -> int:
    return sum(
        action.kind == "run" and ".shared" in action.id for action in step.planned.plan.actions
    )


def same_on_both_ranks(tensors: list[Any]) -> bool:
    mine = torch.cat([tensor.reshape(-1) for tensor in tensors])
    both = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(both, mine)
    return bool(torch.equal(both[0], both[1]))


def capture(net: nn.Module, **options: Any) -> Any:
    torch.manual_seed(4)
    step: Any = reprise.capture(step_of(net), batch(9), share_work=dist.group.WORLD, **options)
    return step


def check_report(step: Any) -> None:
    report = step.report()
    assert report.predicted_peak_bytes == report.measured_peak_bytes
    assert report.measured_peak_bytes <= (report.budget_bytes or report.measured_peak_bytes)


def equals_plain_training(rank: int, image: Any, expected: list[Any]) -> None:
    net = Network()
    net.load_state_dict(image)
    if rank == 1:  # The ranks get the bits of rank 0.
        nn.init.zeros_(net.attention.weight)
    step = capture(net)
    offered = [v for op in step.graph.ops for v in op.variants if v.alternative == "shared"]
    assert offered
    assert {v.exactness for v in offered} == {"bitwise"}
    step.use(forced(step, "shared"))
    names = shared_in(step)
    assert {"convolution", "convolution_backward", "bmm"} & names
    assert any("attention" in name for name in names)
    assert names & {"addmm", "mm"}
    found = train(net, step, lambda: check_report(step))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    # The planner has all ways, and every rank the same plan.
    step.plan(budget="90%", time_limit=1)
    net.load_state_dict(image)
    found = train(net, step, lambda: check_report(step))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    # Threads of the group may free the memory of this exchange while a step counts its bytes, so
    # no step comes behind it.
    actions: list[Any] = [None, None]
    dist.all_gather_object(actions, step.planned.plan.actions)
    assert actions[0] == actions[1]


def rows_stay_with_their_ranks(image: Any, expected: list[Any]) -> None:
    net = Network()
    net.load_state_dict(image)
    step = capture(net, alternatives=[*BITWISE, "shared-rows"])
    whole = {v.id: v.bytes for v in step.graph.values}
    [hidden] = {
        r for choice in step.graph.choices for r in choice.realizations if r.name == "shared-rows"
    }
    own = [whole[w] for op in step.graph.ops if op.id in hidden.ops for w in op.variants[0].writes]
    assert min(own) <= max(whole.values()) // 2
    step.use(forced(step, "shared-rows"))
    assert pieces_in(step) == len(hidden.ops)
    found = train(net, step, lambda: check_report(step))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert same_on_both_ranks(found)


def ranks_that_disagree(rank: int, image: Any) -> None:
    net = Network()
    net.load_state_dict(image)
    torch.manual_seed(4)
    with pytest.raises(reprise.InputError, match="different inputs or different random states"):
        reprise.capture(step_of(net), batch(rank), share_work=dist.group.WORLD)
    with pytest.raises(reprise.InputError, match="share_work"):
        reprise.capture(
            step_of(net), batch(9), share_work=dist.group.WORLD, process_group=dist.group.WORLD
        )
    step = capture(net)
    plan = forced(step, "shared")
    plain: Any = reprise.plan(step.graph, budget="100%", time_limit=0.1).plan
    with pytest.raises(reprise.InputError, match="another plan than rank 0"):
        step.use(plan if rank == 0 else dataclasses.replace(plain, actions=plain.actions))
    step.use(plan)
    before = copy.deepcopy(net.state_dict())
    torch.manual_seed(rank)
    with pytest.raises(reprise.InputError, match="different inputs or different random states"):
        step(batch(1))
    assert all(p.grad is None for p in net.parameters())
    assert all(
        torch.equal(a, b) for a, b in zip(net.state_dict().values(), before.values(), strict=True)
    )


def rank_that_fails(rank: int, image: Any) -> None:
    net = Network()
    net.load_state_dict(image)
    group = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=TIMEOUT))
    torch.manual_seed(4)
    step: Any = reprise.capture(step_of(net), batch(9), share_work=group)
    step.use(forced(step, "shared"))
    step(batch(0))
    wrong = batch(0)[:2] if rank == 1 else batch(0)
    error, text = (PeerError, "rank 1") if rank == 0 else (reprise.InputError, "something else")
    with pytest.raises(error, match=text):
        step(wrong)


def two_ranks(rank: int) -> None:
    reprise.install_cpu_allocator()
    torch.manual_seed(1)
    net = Network()
    image = copy.deepcopy(net.state_dict())
    expected = train(net, step_of(net))
    equals_plain_training(rank, image, expected)
    rows_stay_with_their_ranks(image, expected)
    ranks_that_disagree(rank, image)
    rank_that_fails(rank, image)


def test_two_ranks() -> None:
    run_ranks(two_ranks, timeout=TIMEOUT)
