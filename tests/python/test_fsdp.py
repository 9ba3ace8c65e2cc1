"""Planned stages whose parameters `fully_shard` shards over two ranks (FSDP2)."""

from __future__ import annotations

import gc
import tempfile
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
if not torch.distributed.is_available():
    pytest.skip("PyTorch was built without torch.distributed", allow_module_level=True)
import reprise  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from two_ranks import run_ranks  # noqa: E402

ROWS, WIDTH, CLASSES, STEPS = 512, 64, 97, 2
TIMEOUT = 20.0  # of the group, in seconds


class Block(nn.Module):
    """Adds to its input. It has a dropout, and a norm whose statistics advance once a step."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH),
            nn.BatchNorm1d(2 * WIDTH),
            nn.GELU(),
            nn.Dropout(0.2),
            nn.Linear(2 * WIDTH, WIDTH),
        )

    def forward(self, x: Any) -> Any:
        return x + self.inside(x)


def network() -> Any:
    """The last stage has 97 rows of weights, which do not divide by two."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH), *[Block() for _ in range(4)], nn.Flatten()
    ).append(nn.Linear(WIDTH, CLASSES))


def sharded(**options: Any) -> Any:
    net: Any = network()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for stage in net:
        if any(True for _ in stage.parameters()):
            fully_shard(stage, mesh=mesh, **options)
    return fully_shard(net, mesh=mesh)


def batch(rank: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(7 + rank)
    x = torch.randn(ROWS, WIDTH, generator=generator)
    return x, torch.randint(0, CLASSES, (ROWS,), generator=generator)


def train(net: Any, model: Any, rank: int, check: Any = None) -> list[Any]:
    """Returns what each step leaves on this rank."""
    x, y = batch(rank)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    torch.manual_seed(50 + rank)
    found = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        gc.collect()  # What PyTorch leaves in circles would go at any time in the step.
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        if check is not None:
            check()
        found.append(loss.detach())
        found += [p.grad.to_local().clone() for p in net.parameters()]
        optimizer.step()
        found += [p.to_local().clone() for p in net.parameters()]
        found += [b.clone() for b in net.buffers()]
    return found


def assert_equal(a: list[Any], b: list[Any]) -> None:
    assert len(a) == len(b)
    for one, other in zip(a, b, strict=True):
        assert torch.equal(one, other)


def runs(model: Any) -> int:
    plan = model.planned.plan
    return sum(action.kind == "run" for action in plan.actions)


def planned(rank: int, net: Any, **options: Any) -> Any:
    return reprise.remat([*net], batch(rank)[0], module=net, output_held=False, **options)


def two_ranks(rank: int) -> None:
    reprise.install_cpu_allocator()
    net = sharded()
    expected = train(net, net, rank)

    def trained(budget: Any, **options: Any) -> tuple[Any, int]:
        net = sharded()
        model = planned(rank, net, budget=budget, **options)
        assert all(p.grad is None for p in net.parameters())  # though backwards were measured
        peaks = []

        def check() -> None:
            report = model.report()
            assert report.predicted_peak_bytes == report.measured_peak_bytes
            assert report.budget_bytes is None or report.measured_peak_bytes <= report.budget_bytes
            peaks.append(report.measured_peak_bytes)

        assert_equal(train(net, model, rank, check), expected)
        return model, max(peaks)

    free, peak = trained(None)
    # Each rank has a budget of its own, and the smallest one holds.
    budget = peak * 85 // 100
    trained(budget)  # Stages keep less.
    with tempfile.TemporaryDirectory() as folder:  # Values move, too.
        disk = {"offload": f"disk:{folder}", "planner": "offload_only"}
        moving, _ = trained(peak * 95 // 100, alternatives=[], **disk)
        assert moving.report().moved_out_bytes > 0
        del moving  # Its memory would count beside the next models.
    tight, lower = trained(budget + 4096 * rank, alternatives=[])
    assert runs(tight) > runs(free)
    budgets: list[Any] = [None, None]
    dist.all_gather_object(budgets, tight.report().budget_bytes)
    assert budgets[0] == budgets[1]
    assert lower <= budgets[0] <= budget + 4096
    with pytest.raises(reprise.BudgetError):
        tight.set_budget(1000)
        tight(batch(rank)[0])
    tight.set_budget(budget)  # The ranks go on together.
    tight(batch(rank)[0]).sum().backward()

    x = batch(rank)[0]
    with pytest.raises(reprise.InputError, match="given inputs that they know"):
        tight(x if rank == 0 else x[:256])
    with pytest.raises(
        reprise.errors.PeerError, match="has failed"
    ):  # The ranks may be out of step.
        tight(x)


def test_two_ranks() -> None:
    run_ranks(two_ranks, timeout=TIMEOUT)


@pytest.mark.usefixtures("alone")
def test_what_cannot_be_counted_is_refused() -> None:
    with pytest.raises(reprise.InputError, match=r"stage '0' keeps gathered parameters"):
        planned(0, sharded(reshard_after_forward=False))
    net = network()
    fully_shard(net, mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(reprise.InputError, match="class written in Python"):
        planned(0, net)
    fully_shard_some = network()
    mesh = init_device_mesh("cpu", (1,))
    fully_shard(fully_shard_some[0], mesh=mesh)
    fully_shard(fully_shard_some, mesh=mesh)
    with pytest.raises(
        reprise.InputError, match=r"'inside.0.weight' of stage '1'.*call fully_shard on"
    ):
        planned(0, fully_shard_some)
    net = sharded()
    net[0].set_modules_to_forward_prefetch([net[1]])
    with pytest.raises(reprise.InputError, match=r"stage '0' gathers .* early"):
        planned(0, net)
    net = sharded()
    model = planned(0, net)
    net.set_requires_gradient_sync(False)
    with pytest.raises(reprise.InputError, match=r"stage '0' keeps whole gradients"):
        model(batch(0)[0])


@pytest.mark.usefixtures("alone")
def test_stages_without_a_sharded_model_around_them() -> None:
    """Then each stage gives back what it has gathered, though FSDP2 takes it for a whole model."""
    net = network()
    mesh = init_device_mesh("cpu", (1,))
    for stage in net:
        if any(True for _ in stage.parameters()):
            fully_shard(stage, mesh=mesh)
    x, y = batch(0)
    model = reprise.remat(net, x, budget="80%", output_held=False)
    nn.functional.cross_entropy(model(x), y).backward()
    report: Any = model.report()
    assert report.predicted_peak_bytes == report.measured_peak_bytes
    assert report.measured_peak_bytes <= report.budget_bytes
