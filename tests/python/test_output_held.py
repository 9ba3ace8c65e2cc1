"""Whether the caller holds the output is found out, so the peak is predicted to the byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
import reprise  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

LOSSES: dict[str, Callable[[Any, Any], Any]] = {
    "cross entropy": lambda y, target: F.cross_entropy(y, target),
    "square": lambda y, target: y.square().mean(),
    "dropout": lambda y, target: F.dropout(y, 0.5).logsumexp(1).mean(),
}


def network(last: str) -> nn.Sequential:
    torch.manual_seed(0)
    ends = {"linear": nn.Linear(64, 512), "tanh": nn.Sequential(nn.Linear(64, 512), nn.Tanh())}
    return nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)), ends[last])


@pytest.mark.parametrize("budget", [None, "95%"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("last", ["linear", "tanh"])
def test_the_peak_is_predicted_to_the_byte(last: str, loss: str, budget: Any) -> None:
    reprise.install_cpu_allocator()
    net, x = network(last), torch.randn(256, 64)
    target = torch.randint(512, (256,))
    compute = LOSSES[loss]
    model = reprise.remat(net, x, budget=budget, loss=lambda y: compute(y, target[: len(y)]))
    peaks = []
    for held in (True, False, True, False):
        if held:
            y = model(x)
            compute(y, target).backward()
            del y
        else:
            compute(model(x), target).backward()
        net.zero_grad()
        report = model.report()
        assert report.predicted_peak_bytes == report.measured_peak_bytes
        peaks.append(report.measured_peak_bytes)
    assert peaks[0] == peaks[2] >= peaks[1] == peaks[3]


def test_the_outputs_of_branches_may_be_dropped() -> None:
    reprise.install_cpu_allocator()
    net, x = network("linear"), torch.randn(256, 64)
    stages = list(net)

    def contrast(outputs: Any) -> Any:
        return (outputs[0] - outputs[1]).square().mean()

    join = reprise.remat_join({"a": stages, "b": stages}, (x, x + 1), module=net, loss=contrast)
    for held in (True, False):
        outputs = join(x, x + 1)
        loss = contrast(outputs)
        if not held:
            outputs = None
        loss.backward()
        del outputs, loss
        net.zero_grad()
        report = join.report()
        assert report.predicted_peak_bytes == report.measured_peak_bytes
