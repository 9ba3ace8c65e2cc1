"""Saved states of several processes: two ranks with Gloo, which write one folder together."""

from __future__ import annotations

import os
import pathlib
import shutil
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
import reprise  # noqa: E402
import torch.distributed as dist  # noqa: E402
from test_optimizer import bits  # noqa: E402
from test_saved_state import batch, network  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from two_ranks import run_ranks  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).parent))


def full(tensor: Any) -> Any:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def make(kind: str) -> tuple[Any, Any]:
    model = network()
    if kind == "ddp":
        whole: Any = nn.parallel.DistributedDataParallel(model)
    elif kind == "planned":
        planned = reprise.remat(model, batch(0)[0], budget="200%")
        whole = nn.parallel.DistributedDataParallel(planned)
    else:
        from torch.distributed.fsdp import fully_shard

        mesh: Any = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
        whole = fully_shard(model, mesh=mesh)
    return whole, torch.optim.AdamW(whole.parameters(), lr=1e-2)


def train(whole: Any, optimizer: Any, first: int, last: int) -> None:
    rank = dist.get_rank() if dist.is_initialized() else 0
    for step in range(first, last):
        x, y = batch(10 * step + rank)
        optimizer.zero_grad()
        F.cross_entropy(whole(x), y).backward()
        optimizer.step()


def everything(whole: Any, optimizer: Any) -> Any:
    state = [full(t) for fields in optimizer.state.values() for t in fields.values()]
    return bits(
        {str(i): full(t) for i, t in enumerate([*whole.parameters(), *whole.buffers(), *state])}
        | {"random": torch.rand(3)}
    )


def goes_on(rank: int, kind: str, path: str) -> None:
    torch.manual_seed(1)
    whole, optimizer = make(kind)
    torch.manual_seed(100 + rank)  # Each rank drops out for itself.
    train(whole, optimizer, 0, 2)
    for step in (1, 2):  # The second state replaces the first.
        reprise.save_state(path, model=whole, optimizer=optimizer, step=step, others={"rank": rank})
    train(whole, optimizer, 2, 4)
    expected = everything(whole, optimizer)
    for fresh in (True, False):
        torch.manual_seed(77)
        other, others_optimizer = make(kind)
        if not fresh:
            train(other, others_optimizer, 0, 1)
        done = reprise.load_state(
            path, model=other, optimizer=others_optimizer, others={"rank": None}
        )
        assert (done.step, done.ranks, done.others["rank"]) == (2, 2, rank)
        train(other, others_optimizer, 2, 4)
        assert everything(other, others_optimizer) == expected


@pytest.mark.parametrize("kind", ["ddp", "planned", "fsdp"])
def test_training_goes_on(kind: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "state"
    run_ranks(goes_on, kind, str(path))
    assert len(list(path.iterdir())) == 2  # one state, and the file that names it


def save_with(rank: int, path: str) -> None:
    torch.manual_seed(1)
    whole, optimizer = make("ddp")
    train(whole, optimizer, 0, 2)
    reprise.save_state(path, model=whole, optimizer=optimizer, step=2)
    if rank == 0:
        torch.save({"model": network().state_dict()}, path + ".keys")
        torch.save([full(p) for p in whole.parameters()], path + ".parameters")


def load_with(rank: int, path: str) -> None:
    whole, optimizer = make("ddp")
    done = reprise.load_state(path, model=whole, optimizer=optimizer)
    assert done.ranks == 1
    saved = torch.load(path + ".parameters")
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), saved, strict=True))
    assert len(optimizer.state) == len(saved)


def test_another_number_of_processes_has_the_same_bits(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "state")
    run_ranks(save_with, path)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    done = reprise.load_state(path, model=model, optimizer=optimizer)
    assert (done.step, done.ranks) == (2, 2)
    saved = torch.load(path + ".parameters")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), saved, strict=True))
    # The way back: a file of one process, loaded by two.
    shutil.rmtree(path)
    reprise.save_state(path, model=model, optimizer=optimizer, step=2)
    run_ranks(load_with, path)


def refused(rank: int, path: str) -> None:
    torch.manual_seed(1)
    whole, optimizer = make("ddp")
    train(whole, optimizer, 0, 1)
    reprise.save_state(path, model=whole, optimizer=optimizer, step=1)
    # An object of one rank cannot be saved: all ranks are told.
    with pytest.raises(reprise.InputError, match=r"rank 1: others\.x is of the type object"):
        reprise.save_state(
            path, model=whole, optimizer=optimizer, step=2, others={"x": object() if rank else 1}
        )
    # The folder cannot be written.
    with pytest.raises(reprise.InputError, match="rank 0"):
        reprise.save_state("/proc/no/such/folder", model=whole, step=2)
    # One rank has another model, another optimizer: nothing is loaded anywhere.
    before = everything(whole, optimizer)
    wrong = torch.optim.SGD(whole.parameters()) if rank else optimizer
    with pytest.raises(
        reprise.InputError, match="rank 1: the state is that of the optimizer AdamW"
    ):
        reprise.load_state(path, model=whole, optimizer=wrong)
    other = network(13) if rank else whole
    with pytest.raises(reprise.InputError, match="rank 1: the state is that of another model"):
        reprise.load_state(path, model=other)
    with pytest.raises(reprise.InputError, match="background"):
        reprise.save_state(path, model=whole, background=True)
    after = everything(whole, optimizer)
    del before["random"], after["random"]
    assert after == before
    assert reprise.load_state(path, model=whole, optimizer=optimizer).step == 1


def test_what_one_rank_refuses_all_refuse(tmp_path: pathlib.Path) -> None:
    run_ranks(refused, str(tmp_path / "state"))


def dies(rank: int, path: str, call: int) -> None:
    """Rank 0 writes no further than a call of its own; the process then ends at once."""
    from reprise._saved import ranks

    whole, optimizer = make("ddp")
    calls = 0
    write = ranks._core.write_file  # type: ignore[attr-defined]

    def counted(*arguments: Any) -> None:
        nonlocal calls
        if calls == call:
            os._exit(0)
        calls += 1
        write(*arguments)

    class Core:
        write_file = staticmethod(counted)
        read_file = staticmethod(ranks._core.read_file)  # type: ignore[attr-defined]

    ranks._core = Core  # type: ignore[assignment,attr-defined]
    try:
        reprise.save_state(path, model=whole, optimizer=optimizer, step=9)
    except (reprise.InputError, RuntimeError):
        os._exit(0)  # The other rank is gone.


@pytest.mark.parametrize("call", [0, 1, 2])
def test_a_process_that_dies_leaves_a_whole_state(call: int, tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "state")
    run_ranks(save_with, path)
    run_ranks(dies, path, call, may_die=[0, 1])
    model = network()
    done = reprise.load_state(path, model=model)
    assert done.step == (9 if call == 2 else 2)


def test_damage_is_noticed(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "state"
    run_ranks(save_with, str(path))
    folder = next(entry for entry in path.iterdir() if entry.is_dir())
    for file in sorted(folder.iterdir()):
        whole = file.read_bytes()
        file.write_bytes(whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:])
        model = network()
        before = bits(model.state_dict())
        with pytest.raises(reprise.InputError):
            reprise.load_state(path, model=model)
        assert bits(model.state_dict()) == before
        file.write_bytes(whole)
    manifest = folder / "reprise.json"
    manifest.write_text(manifest.read_text().replace('"version": "1"', '"version": "8"'))
    with pytest.raises(reprise.InputError, match="version '8'"):
        reprise.load_state(path, model=network())
    (path / "current").unlink()
    with pytest.raises(reprise.InputError, match="has no saved state"):
        reprise.load_state(path, model=network())
