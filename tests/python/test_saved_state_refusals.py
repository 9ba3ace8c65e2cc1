"""Saved state: what does not fit is refused, full disks, and writing in the background."""

from __future__ import annotations

import os
import pathlib
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
import reprise  # noqa: E402
from reprise._torch import _runtime  # noqa: E402
from test_optimizer import bits  # noqa: E402
from test_saved_state import everything, network, train  # noqa: E402
from torch import nn  # noqa: E402


def unchanged_by(load: Callable[[Any, Any], Any], words: str) -> None:
    """A load that is refused changes no bit of model, optimizer and random states."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, 0, 1)
    torch.manual_seed(4)
    random.seed(4)
    before = everything(model, optimizer)
    torch.manual_seed(4)
    random.seed(4)
    with pytest.raises(reprise.InputError, match=words):
        load(model, optimizer)
    assert everything(model, optimizer) == before


def test_what_does_not_fit_is_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "state.safetensors"
    model = network()
    adam = torch.optim.AdamW(model.parameters())

    def load(model: Any, optimizer: Any) -> Any:
        return reprise.load_state(path, model=model, optimizer=optimizer)

    unchanged_by(load, "cannot read")
    wide = network(13)
    reprise.save_state(path, model=wide, optimizer=torch.optim.AdamW(wide.parameters()))
    unchanged_by(load, r"different: 0\.0\.weight has shape \[12, 12\] and type F32, and \[13, 13\]")
    reprise.save_state(path, model=model[:2], optimizer=torch.optim.AdamW(model[:2].parameters()))
    unchanged_by(load, r"not in the state: 2\.0\.weight, .* and 4 more")
    reprise.save_state(path, model=model, optimizer=torch.optim.SGD(model.parameters()))
    unchanged_by(load, "that of the optimizer SGD, and the program has AdamW")
    groups = [{"params": [p]} for p in model.parameters()]
    reprise.save_state(path, model=model, optimizer=torch.optim.AdamW(groups))
    unchanged_by(load, "14 groups of parameters, and the program's 1")
    backwards = torch.optim.AdamW(list(model.parameters())[::-1])
    reprise.save_state(path, model=model, optimizer=backwards)
    unchanged_by(load, "group 0 of the saved optimizer has other parameters")
    reprise.save_state(path, model=model)
    unchanged_by(load, "no optimizer ''; it has none")
    reprise.save_state(path, model=model, optimizer=adam)
    unchanged_by(
        lambda m, o: reprise.load_state(path, model=m, optimizer=o, others={"loader": 1}),
        "no 'loader' among others; it has none",
    )
    whole = path.read_bytes()
    for at in (20, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        unchanged_by(load, str(path))
    path.write_bytes(whole[: len(whole) // 2])
    unchanged_by(load, "belong to it")
    from reprise._torch import _runtime

    _runtime.write_tensors(
        str(path), {"format": "reprise.state", "version": "7", "writer": "reprise 9"}, []
    )
    unchanged_by(load, "version '7'.*reads version 1; it was written by 'reprise 9'")
    _runtime.write_tensors(str(path), {}, [])
    unchanged_by(load, "is no saved state")
    path.write_bytes(b"\x80\x04pickle of somebody")
    unchanged_by(load, "is no file of tensors")


def test_what_cannot_be_saved_is_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "state"
    model = network()
    reprise.save_state(path, model=model, step=1)
    before = path.read_bytes()
    for arguments, words in (
        ({"others": {"x": {"inner": object()}}}, r"others\.x\.inner is of the type object"),
        ({"step": -1}, "step is a number from 0 on"),
        ({"position": 1.5}, "position is a number"),
        ({"model": "net"}, "model is str, and Module is expected"),
        ({"optimizer": model}, "optimizer is Sequential"),
        ({"plan": 3}, "plan is a plan"),
        ({"process_group": 1}, "init_process_group"),
        ({"others": {"s": torch.eye(2).to_sparse()}}, r'"others\.s" cannot be saved: it is sparse'),
    ):
        with pytest.raises(reprise.InputError, match=words):
            reprise.save_state(path, **arguments)
    with pytest.raises(reprise.InputError, match="cannot write"):
        reprise.save_state(tmp_path / "missing" / "state", model=model)
    assert path.read_bytes() == before


def test_a_full_disk_leaves_the_old_state(tmp_path: pathlib.Path) -> None:
    """No file of the child may be longer than 64 KiB."""
    path = tmp_path / "state"
    reprise.save_state(path, model=nn.Linear(8, 8), step=4)
    program = (
        "import resource, signal, reprise, torch\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))\n"
        "try:\n"
        f"    reprise.save_state({str(path)!r}, model=torch.nn.Linear(512, 512))\n"
        "except reprise.InputError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "cannot write" in done.stdout, done
    assert reprise.load_state(path, model=nn.Linear(8, 8)).step == 4
    assert os.listdir(tmp_path) == ["state"]


def test_a_copy_stays_until_the_step_is_over(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that has counted the copy predicts its peak to the byte, whenever it is written."""
    reprise.install_cpu_allocator()
    net = network()
    may_end, x = threading.Event(), torch.randn(64, 12)
    writing: Any = None

    def wait_for_file(y: Any) -> Any:
        if writing is not None:
            may_end.set()
            while not writing.done():
                time.sleep(0.001)
        return y

    planned = reprise.remat([net, wait_for_file], x, loss=lambda y: y.square().mean())
    write = _runtime.write_tensors

    def slow(*arguments: Any) -> None:
        may_end.wait()
        write(*arguments)

    monkeypatch.setattr(_runtime, "write_tensors", slow)
    before = reprise.live_bytes()
    writing = reprise.save_state(tmp_path / "state", model=net, background=True)
    planned(x).square().mean().backward()
    net.zero_grad()
    report = planned.report()
    assert report.predicted_peak_bytes == report.measured_peak_bytes
    assert reprise.live_bytes() == before


def test_in_the_background(tmp_path: pathlib.Path) -> None:
    """The state is that of the call, whatever happens to the model afterwards."""
    reprise.install_cpu_allocator()
    path = tmp_path / "state"
    torch.manual_seed(1)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, 0, 2)
    before = reprise.live_bytes()
    writings = []
    for step in range(2, 8):
        writing = reprise.save_state(
            path, model=model, optimizer=optimizer, step=step, background=True
        )
        assert writing is not None
        writings.append(writing)
        train(model, optimizer, step, step + 1)
    expected = everything(model, optimizer)
    for writing in writings:
        writing.wait()
        assert writing.done()
    assert reprise.live_bytes() == before  # The copies are gone.
    other = network()
    others_optimizer = torch.optim.AdamW(other.parameters())
    assert reprise.load_state(path, model=other, optimizer=others_optimizer).step == 7
    train(other, others_optimizer, 7, 8)
    found = everything(other, others_optimizer)
    assert found["m"] == expected["m"]
    assert found["o"] == expected["o"]


def test_the_budget_counts_the_copy_in_the_background(tmp_path: pathlib.Path) -> None:
    reprise.install_cpu_allocator()
    model = nn.Linear(256, 256)
    path = tmp_path / "pipe"
    os.mkfifo(path)  # Nobody reads yet, so that the writing waits.
    before = reprise.live_bytes()
    writing = reprise.save_state(path, model=model, background=True)
    assert writing is not None
    copied, done = reprise.live_bytes() - before, writing.done()
    with open(path, "rb") as pipe:
        written = len(pipe.read())
    writing.wait()
    assert not done
    assert copied >= sum(p.nbytes for p in model.parameters())
    assert written > copied
    assert reprise.live_bytes() == before


def test_an_error_in_the_background_is_told(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "state"
    writing = reprise.save_state(path, model=nn.Linear(2, 2), background=True)
    assert writing is not None
    writing.wait()
    missing = tmp_path / "missing" / "state"
    lost = reprise.save_state(missing, model=nn.Linear(2, 2), background=True)
    assert lost is not None
    with pytest.raises(reprise.InputError, match="cannot write"):
        lost.wait()
    told = reprise.save_state(missing, model=nn.Linear(2, 2), background=True)
    assert told is not None
    told._thread.join()
    with pytest.raises(reprise.InputError, match="cannot write"):
        reprise.save_state(path, model=nn.Linear(2, 2), background=True)


def test_only_the_model(tmp_path: pathlib.Path) -> None:
    """A part that is not given stays as it is, also the random states on request."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, 0, 1)
    reprise.save_state(tmp_path / "s", model=model, optimizer=optimizer)
    torch.manual_seed(5)
    expected = torch.rand(1).item()
    torch.manual_seed(5)
    other = network()
    torch.manual_seed(5)
    reprise.load_state(tmp_path / "s", model=other, random=False)
    assert torch.rand(1).item() == expected
    assert bits(other.state_dict()) == bits(model.state_dict())
