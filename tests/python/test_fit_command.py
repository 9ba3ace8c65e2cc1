"""fit(): what fake tensors cannot do is refused, and the command."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import reprise
from conftest import SOURCE
from reprise.__main__ import main

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

ON_META = torch.empty(2, device="meta")


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda x: x[x > 0].sum(), "size depends on numbers"),
        (lambda x: x.sum() if int(x.max() > 0) else x, "reads a number out of a tensor"),
        (lambda x: x * x.sum().item(), "uses the number"),
        (lambda x: x.to_sparse().sum(), ""),
        (lambda x: x.sum() + ON_META.sum(), 'device "meta"'),
    ],
    ids=["mask", "whole number", "item", "sparse", "meta"],
)
def test_what_fake_tensors_cannot_do_is_refused(use: Callable[..., Any], text: str) -> None:
    def step(x: Any) -> Any:
        return use(x)

    with pytest.raises(reprise.InputError) as refused:
        reprise.fit(step, torch.randn(8, requires_grad=True), memory="1GB")
    assert text in str(refused.value)
    if "number out of" in text or "size depends" in text:
        assert "test_fit_command.py:" in str(refused.value)
        assert 'times="measured"' in str(refused.value)


def test_an_operator_without_sizes_is_refused() -> None:
    library = torch.library.Library("reprise_tests", "DEF")
    library.define("opaque(Tensor x) -> Tensor")
    library.impl("opaque", lambda x: x.clone(), "CPU")
    opaque = torch.ops.reprise_tests.opaque

    with pytest.raises(reprise.InputError, match=r"reprise_tests.*opaque.*register_fake"):
        reprise.fit(lambda x: opaque(x), torch.randn(8), memory="1GB")


def test_a_fake_model_is_converted_as_a_real_one() -> None:
    with reprise.fake_tensors():
        model = nn.Sequential(nn.Embedding(8, 8), nn.Linear(8, 8), nn.BatchNorm1d(8))
        model[1].weight = model[0].weight
        for convert in (lambda: model.to(torch.bfloat16), model.double, model.half):
            assert convert() is model
        assert model[1].weight is model[0].weight
        assert all(p.dtype == torch.float16 and p.is_leaf for p in model.parameters())
        assert model[2].running_mean.dtype == torch.float16
        model.requires_grad_(False).float()
        assert not any(p.requires_grad for p in model.parameters())
    real = nn.Linear(2, 2)
    weight = real.weight
    assert real.double().weight is weight


def test_fake_tensors_of_two_scopes_are_refused() -> None:
    with reprise.fake_tensors():
        one = torch.randn(8)
    with reprise.fake_tensors():
        other = torch.randn(8)
    with pytest.raises(reprise.InputError, match="two scopes"):
        reprise.fit(lambda x: x * other, one, memory="1GB")


PROGRAM = """
import torch
from torch import nn

def make():
    model = nn.Sequential(nn.Linear(1000, 1000), nn.Tanh(), nn.Linear(1000, 1000))
    def step(x):
        model(x).sum().backward()
    return step, torch.randn(64, 1000)

def as_dict():
    step, x = make()
    return {"step": step, "sample": x, "name": "named"}

def no_sample():
    return make()[0]

def nothing():
    return 3
"""


def test_the_command(tmp_path: pathlib.Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "user_program.py").write_text(PROGRAM)
    common = ["--memory", "1GB,9MB", "--time-limit", "0.2s", "--batch", "64"]
    assert (
        main(["fit", "user_program.py:make", *common, "--html", "a.html", "--json", "a.json"]) == 0
    )
    shown = capsys.readouterr()
    assert "make, 2 M parameters" in shown.out and "1 GB" in shown.out
    assert "an assumed device of 100 Tflop/s" in shown.out
    assert "reprise: batch 64" in shown.err
    assert "<!doctype html>" in (tmp_path / "a.html").read_text()
    assert json.loads((tmp_path / "a.json").read_text())["batches"][0]["batch"] == 64
    assert main(["fit", "user_program:as_dict", *common, "--quiet"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("named") and shown.err == ""


def test_the_example(monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(SOURCE)
    common = ["--memory", "40MB,4MB", "--time-limit", "0.3s", "--quiet", "--batch", "4"]
    assert main(["fit", "examples/python/llama_like.py:tiny", *common]) == 0
    assert "tiny, 228 k parameters" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["missing.py:make"], 'no file "missing.py"'),
        (["missing_module:make"], 'no module "missing_module"'),
        (["user_program.py:mak"], 'no function "mak"; it has as_dict, make'),
        (["user_program.py:no_sample"], "without a sample"),
        (["user_program.py:nothing"], "returns a int"),
        (["missing.json"], "is no file"),
        ([":"], "is no file"),
        (["user_program.py:make", "--html", "/dev/full"], "No space left"),
        (["user_program.py:make", "--batch", "x"], "--batch takes whole numbers"),
        (["user_program.py:make", "--json", "a.txt"], "ends with .json"),
        (["user_program.py:make", "--memory", "8QB"], "8QB"),
    ],
)
def test_errors_of_the_command(
    arguments: list[str], text: str, tmp_path: pathlib.Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "user_program.py").write_text(PROGRAM)
    common = ["--memory", "1GB", "--time-limit", "0.1s", "--quiet"]
    assert main(["fit", *common, *arguments]) == 2
    shown = capsys.readouterr()
    assert text in shown.err and shown.out == ""
