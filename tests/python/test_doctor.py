"""doctor() on a healthy installation, on a user's model, and on a model that lies."""

from __future__ import annotations

import subprocess
import sys

import pytest
import reprise
import torch
from models import GptConfig, GptLMHeadModel
from torch import nn


def test_a_healthy_installation() -> None:
    found = reprise.doctor()
    assert found.well, str(found)
    assert [trial.mode for trial in found.trials] == ["chain", "graph"]
    for trial in found.trials:
        assert trial.different == ()
        assert trial.plain_peak_bytes is not None and trial.budget_bytes is not None
        assert trial.measured_peak_bytes <= trial.budget_bytes < trial.plain_peak_bytes
        assert trial.measured_peak_bytes == trial.predicted_peak_bytes
    chain, graph = found.trials
    assert chain.explanation is None and graph.explanation is not None
    assert "deterministic algorithms" in graph.explanation.compared["settings"]
    assert "compared before each call" in str(found)
    assert found.versions["torch"] == torch.__version__
    assert "all is well" in str(found)
    assert "<table>" in found._repr_html_()


def test_a_model_of_the_user_is_left_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.Dropout(0.1), nn.Linear(64, 4))
    x = torch.randn(128, 32)
    model(x).sum().backward()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    gradients = [p.grad for p in model.parameters()]
    copies = [g.clone() for g in gradients if g is not None]
    random = torch.get_rng_state()
    found = reprise.doctor(model, x, loss=lambda y: y.abs().mean())
    assert found.well, str(found)
    assert len(found.trials) == 2
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(p.grad is g for p, g in zip(model.parameters(), gradients, strict=True))
    assert all(torch.equal(g, c) for g, c in zip(gradients, copies, strict=True) if g is not None)
    assert torch.equal(torch.get_rng_state(), random)


def test_a_model_that_is_no_chain_and_a_whole_step() -> None:
    model = GptLMHeadModel(GptConfig(layers=1))
    ids = torch.randint(0, 97, (2, 12))

    def step(ids: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(ids, labels=ids).loss
        loss.backward()
        return loss

    for found in (
        reprise.doctor(model, ids, loss=lambda out: out.logits.square().mean()),
        reprise.doctor(step=step, sample=ids),
    ):
        assert found.well, str(found)
        assert [trial.mode for trial in found.trials] == ["graph"]


def test_state_that_no_guard_sees_is_said() -> None:
    model = nn.Linear(4, 4)
    table = [1.0] * 70_000

    def step(x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(x).sum() * table[0]
        loss.backward()
        return loss

    found = reprise.doctor(step=step, sample=torch.randn(3, 4))
    assert found.well, str(found)
    assert any("table: 70,000 items" in finding.what for finding in found.findings), str(found)


class Forgetful(nn.Module):
    """A module that counts its calls where nobody can see it."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Forgetful.calls += 1
        return x * (1 + Forgetful.calls)


def test_a_model_that_does_other_work_each_time_is_found_out() -> None:
    found = reprise.doctor(nn.Sequential(nn.Linear(8, 8), Forgetful()), torch.randn(4, 8))
    assert not found.well
    chain, graph = found.trials
    assert chain.different is None and "when it runs again" in (chain.error or "")
    assert graph.different is None and "changes from run to run" in (graph.error or "")


def test_a_budget_that_cannot_be_is_said() -> None:
    found = reprise.doctor(nn.Sequential(nn.Linear(8, 8)), torch.randn(4, 8), budget=64)
    assert not found.well
    assert all(trial.different is None and "64" in (trial.error or "") for trial in found.trials)


def test_a_sample_is_needed() -> None:
    with pytest.raises(reprise.InputError, match="sample"):
        reprise.doctor(nn.Linear(2, 2))


def test_without_pytorch_it_says_so() -> None:
    code = "import sys; sys.modules['torch'] = None; import reprise; print(reprise.doctor())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "torch" in done.stdout and "not installed" in done.stdout
    assert "planning and checking work" in done.stdout


def test_without_pytorch_a_model_has_no_frontier() -> None:
    code = "import sys; sys.modules['torch'] = None; import reprise; reprise.frontier([abs], [1])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "InputError: training needs PyTorch" in done.stderr
