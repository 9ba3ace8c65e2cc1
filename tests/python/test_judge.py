"""judge(): steps that save memory in their own ways, beside plain training."""

from __future__ import annotations

import copy
import pathlib
import subprocess
import sys
from typing import Any

import pytest
import reprise
from reprise.__main__ import main

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - They need torch.
from torch.utils.checkpoint import (  # noqa: E402
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)


class Layers(nn.Module):
    """Layers that are checkpointed in a way that the caller names."""

    def __init__(self, way: str, dropout: float = 0.2) -> None:
        super().__init__()
        self.way = way
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Dropout(dropout), nn.Linear(256, 64))
            for _ in range(4)
        )

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            if self.way == "plain":
                x = x + layer(x)
            elif self.way == "selective":
                contexts = lambda: create_selective_checkpoint_contexts(save_products)  # noqa: E731
                x = x + checkpoint(layer, x, use_reentrant=False, context_fn=contexts)
            elif self.way == "not replayed":
                x = x + checkpoint(layer, x, use_reentrant=False, preserve_rng_state=False)
            elif self.way == "offload":
                with torch.autograd.graph.save_on_cpu():
                    x = x + layer(x)
            else:
                x = x + checkpoint(layer, x, use_reentrant=self.way == "reentrant")
        return x


def save_products(_context: Any, op: Any, *_arguments: Any, **_keywords: Any) -> Any:
    saved = op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE


def judged(way: str, compare: bool = False, **options: Any) -> Any:
    torch.manual_seed(0)
    model = Layers(way)
    x = torch.randn(512, 64, requires_grad=True)  # A reentrant checkpoint needs an input to learn.

    def step(x: Any) -> Any:
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    return reprise.judge(step, x, compare=compare, repeats=1, **options)


@pytest.mark.parametrize("way", ["not reentrant", "reentrant"])
def test_checkpoints(way: str) -> None:
    found = judged(way)
    assert found.well, found
    plain, step = found.step("plain"), found.step("this step")
    assert step.peak_bytes < 0.8 * plain.peak_bytes
    assert dict(found.again)["aten.addmm"] in (4, 8)  # A checkpoint may stop before its last call.
    assert dict(found.modules) == {f"layers.{n}": 1 for n in range(4)}
    assert step.calls - plain.calls == sum(number for _, number in found.again)
    assert found.findings == ()
    assert "the same" in str(found) and "modules that run again" in str(found)
    assert "<table>" in found._repr_html_()


def test_selective_checkpoints_do_less_again() -> None:
    found, whole = judged("selective"), judged("not reentrant")
    assert found.well, found
    assert "aten.addmm" not in dict(found.again) and "aten.tanh" in dict(found.again)
    assert whole.step("this step").peak_bytes < found.step("this step").peak_bytes
    assert found.step("this step").peak_bytes < found.step("plain").peak_bytes


def test_random_numbers_that_are_not_replayed_are_found_out() -> None:
    found = judged("not replayed")
    assert not found.well
    assert any(name.startswith("gradient of") for name in found.step("this step").different)
    assert "random numbers that are not replayed" in str(found)
    assert "differ" in str(found)


def test_plain_training_saves_nothing() -> None:
    found = judged("plain")
    assert found.well and found.again == () and found.modules == ()
    assert any("100 % of plain" in one.what for one in found.findings), found


def test_offload_has_the_bits_and_computes_nothing_again() -> None:
    found = judged("offload")
    assert found.well and found.modules == (), found
    assert found.again == ()
    assert any("100 % of plain" in one.what for one in found.findings)  # The device is the host.


def test_a_plain_step_can_be_given() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32))
    x = torch.randn(64, 32)

    def plain(x: Any) -> Any:
        loss = model(x).sum()
        loss.backward()
        return loss.detach()

    def other(x: Any) -> Any:
        loss = (model(x) * 2).sum() / 2
        loss.backward()
        return loss.detach() + 1

    found = reprise.judge(other, x, plain=plain, compare=False, repeats=1)
    step = found.step("this step")
    assert step is not None and step.different == ("result 0",)


def test_reprise_within_the_same_memory() -> None:
    found = judged("not reentrant", compare=True)
    ours, step = found.step("reprise"), found.step("this step")
    assert ours is not None, found
    assert ours.different == ()
    assert ours.peak_bytes <= step.peak_bytes
    assert found.well and ours.calls is None


def test_the_peak_holds_what_was_made_before_the_allocator_counted() -> None:
    """The same step has the same peak, in whatever order things were made, but for what PyTorch
    holds for itself."""
    program = """
import sys, torch, reprise
from torch import nn
torch.set_num_threads(1)
if sys.argv[1] == "first":
    reprise.install_cpu_allocator()
model, x = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)), torch.randn(32, 64)
def step(x):
    model(x).sum().backward()
found = reprise.judge(step, x, compare=False, repeats=1)
print(found.step("plain").peak_bytes, sum(4 * p.numel() for p in model.parameters()))
"""
    peaks = []
    for order in ("first", "behind"):
        done = subprocess.run(
            [sys.executable, "-c", program, order], capture_output=True, text=True, check=True
        )
        peak, parameters = map(int, done.stdout.split())
        assert peak > 2 * parameters
        peaks.append(peak)
    assert max(peaks) - min(peaks) < 16384


def test_everything_is_left_as_it_was() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Layers("not reentrant"), nn.BatchNorm1d(64))
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(32, 64)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step(x)
    state = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    random = torch.get_rng_state()
    found = reprise.judge(step, x, repeats=1)
    assert found.well, found
    assert all(torch.equal(a, state[0][n]) for n, a in model.state_dict().items())
    for number, values in optimizer.state_dict()["state"].items():
        assert all(torch.equal(v, state[1]["state"][number][k]) for k, v in values.items())
    now = [p.grad for p in model.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(now, gradients, strict=True))
    assert torch.equal(torch.get_rng_state(), random)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(reprise.InputError, match="needs a sample"):
        reprise.judge(print)
    with pytest.raises(reprise.InputError, match="repeats"):
        reprise.judge(print, torch.zeros(1), repeats=0)


def test_an_exception_of_the_step_is_handed_on_and_all_is_put_back() -> None:
    linear = nn.Linear(4, 4)
    weight = linear.weight.detach().clone()

    def step(x: Any) -> None:
        with torch.no_grad():
            linear.weight.add_(1)
        raise RuntimeError("of my own")

    with pytest.raises(RuntimeError, match="of my own"):
        reprise.judge(step, torch.randn(2, 4))
    assert torch.equal(linear.weight, weight)


PROGRAM = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

def made(**options):
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Sequential(nn.Linear(64, 256), nn.Dropout(0.2), nn.Linear(256, 64))
                           for _ in range(4))
    def step(x):
        for layer in layers:
            x = x + checkpoint(layer, x, use_reentrant=False, **options)
        x.square().mean().backward()
    return step, torch.randn(256, 64)

def make():
    return made()

def as_dict():
    step, x = made()
    return {"step": step, "sample": x, "plain": step, "compare": False}

def not_replayed():
    return made(preserve_rng_state=False)

def no_sample():
    return make()[0]

def fails():
    def step(x):
        raise RuntimeError("of my own")
    return step, torch.randn(2)
"""


@pytest.fixture
def program(tmp_path: pathlib.Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "judged_program.py").write_text(PROGRAM)


@pytest.mark.usefixtures("program")
def test_the_command(capsys: Any) -> None:
    assert main(["judge", "judged_program.py:make", "--repeats", "1"]) == 0
    head, plain, step, ours = capsys.readouterr().out.splitlines()[1:5]
    assert " ".join(head.split()) == "bits peak reserved step against plain calls again"
    assert plain.startswith("plain") and ours.startswith("reprise")
    assert step.startswith("this step  the same  ")
    assert int(step.split()[-2]) > int(plain.split()[-1])
    assert int(step.split()[-1]) == int(step.split()[-2]) - int(plain.split()[-1])
    # The plain step of this dict is the step itself, so that nothing runs again.
    assert main(["judge", "judged_program:as_dict", "--repeats", "1"]) == 0
    shown = capsys.readouterr().out
    assert "reprise" not in shown and "runs again" not in shown


@pytest.mark.usefixtures("program")
def test_the_command_says_by_its_exit_code_that_bits_differ(capsys: Any) -> None:
    assert main(["judge", "judged_program:not_replayed", "--repeats", "1", "--no-compare"]) == 1
    shown = capsys.readouterr()
    assert "differ" in shown.out and "random numbers that are not replayed" in shown.out
    assert "reprise" not in shown.out and shown.err == ""


@pytest.mark.usefixtures("program")
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["missing.py:make"], 'no file "missing.py"'),
        (["judged_program:mak"], 'no function "mak"; it has as_dict'),
        (["judged_program:no_sample"], "without a sample"),
        (["judged_program.py"], "name a function in it"),
        (["judged_program"], "is no file"),
        (["judged_program:make", "--repeats", "0"], "repeats is a number of runs"),
    ],
)
def test_errors_of_the_command(arguments: list[str], text: str, capsys: Any) -> None:
    assert main(["judge", "--no-compare", *arguments]) == 2
    shown = capsys.readouterr()
    assert text in shown.err and shown.out == ""


@pytest.mark.usefixtures("program")
def test_an_exception_of_the_step_is_no_verdict(capsys: Any) -> None:
    assert main(["judge", "judged_program:fails"]) == 2
    shown = capsys.readouterr()
    assert "in step\n" in shown.err
    assert shown.err.endswith("reprise: the step raised RuntimeError: of my own\n")
    assert shown.out == ""
