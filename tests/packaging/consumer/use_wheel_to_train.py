"""Trains inside budgets with the installed package, and compares the gradients with plain training's."""

import importlib.metadata
import pathlib
import sys

import reprise
import torch
from torch import nn

if pathlib.Path(sys.prefix) not in pathlib.Path(reprise.__file__).parents:
    raise SystemExit(f"reprise is not the installed one: {reprise.__file__}")
torch.manual_seed(0)
model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(8)])
x, y = torch.randn(512, 64), torch.randint(0, 64, (512,))


def train_step(x, y):
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    return loss


def gradients():
    made = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad(set_to_none=True)
    return made


train_step(x, y)
plain = gradients()
captured = reprise.capture(train_step, x, y)
captured.plan(budget="70%")
captured(x, y)
if not all(map(torch.equal, gradients(), plain)):
    raise SystemExit("the captured step has other gradients than the plain one")
report = captured.report()
# The name of the backend is known because the package is installed.
compiled = torch.compile(lambda x, y: nn.functional.cross_entropy(model(x), y), backend="reprise",
                         options={"budget": "80%"})
compiled(x, y).backward()
if not all(map(torch.equal, gradients(), plain)):
    raise SystemExit("the compiled step has other gradients than the plain one")
print(f"reprise {importlib.metadata.version('reprise')} with PyTorch {torch.__version__}: peak of "
      f"{report.measured_peak_bytes:,} bytes within {report.budget_bytes:,}, gradients equal")
