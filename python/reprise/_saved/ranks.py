"""Saved states of several processes: one folder, written by `torch.distributed.checkpoint`.

The folder has a subfolder for each state, and the file `current`, which names the one that is
whole. `current` is replaced atomically once everything is written, so that a crash at any point
leaves the old state or the new one. Each process has a text and random states of its own.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch

from .. import _core
from .._torch import _runtime
from ..errors import Error, InputError
from .parts import Parts
from .tree import Tensors, decode, tensors_in

CURRENT, MANIFEST, PREFIX = "current", "reprise.json", "state-"
T = TypeVar("T")


class Ranks(NamedTuple):
    """The processes that save or load together, seen from one of them."""

    rank: int
    size: int
    group: Any


def ranks_of(process_group: Any) -> Ranks | None:
    """Returns the processes of a group, or None if this process is alone."""
    distributed: Any = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        if process_group is not None:
            raise InputError("process_group= needs torch.distributed.init_process_group()")
        return None
    size = distributed.get_world_size(process_group)
    if size < 2:
        return None
    return Ranks(distributed.get_rank(process_group), size, process_group)


def together(ranks: Ranks | None, work: Callable[[], T]) -> T:
    """Runs a function in all processes. If it fails in one of them, all raise the same error.

    Raises:
        InputError: The function has failed in some process. The message names the processes.
    """
    result, failure = None, None
    try:
        result = work()
    except (Error, OSError, RuntimeError, ValueError, KeyError) as error:
        if ranks is None:
            raise
        failure = str(error) or type(error).__name__
    if ranks is not None:
        distributed: Any = torch.distributed
        told: list[str | None] = [None] * ranks.size
        distributed.all_gather_object(told, failure, group=ranks.group)
        failures = [f"rank {r}: {text}" for r, text in enumerate(told) if text is not None]
        if failures:
            raise InputError("\n".join(failures))
    return result  # type: ignore[return-value]


def _share(ranks: Ranks, value: Any) -> Any:
    """Returns the value of the first process in all processes."""
    distributed: Any = torch.distributed
    values = [value]
    source = 0 if ranks.group is None else distributed.get_global_rank(ranks.group, 0)
    distributed.broadcast_object_list(values, src=source, group=ranks.group)
    return values[0]


def _own_name(rank: int, name: str) -> str:
    """Returns the name that a tensor of one process has in the folder."""
    return f"rank{rank}.{name}"


def _text_name(rank: int) -> str:
    return _own_name(rank, "state.json")


def _is_common(name: str) -> bool:
    """Says whether a tensor may be that of all processes."""
    return name.startswith(("model.", "optimizer."))


def _sum_of(tensor: torch.Tensor) -> Any:
    """Returns what is equal for tensors of the same bits; None for one that is sharded."""
    if hasattr(tensor, "full_tensor"):
        return None
    return tuple(tensor.shape), str(tensor.dtype), _runtime.tensor_checksum(tensor)


def _names_in_folder(tensors: Tensors, ranks: Ranks) -> Tensors:
    """Returns the tensors under the names that they have in the folder.

    A model's or an optimizer's tensor that has other bits here than in the first process that has
    it, such as a statistic of a batch norm, is saved for this process.
    """
    mine = {name: _sum_of(tensor) for name, tensor in tensors.items() if _is_common(name)}
    distributed: Any = torch.distributed
    sums: list[Any] = [None] * ranks.size
    distributed.all_gather_object(sums, mine, group=ranks.group)
    found: Tensors = {}
    for name, tensor in tensors.items():
        first = next((of[name] for of in sums if name in of), None) if name in mine else ()
        same = name in mine and first == mine[name]
        found[name if same else _own_name(ranks.rank, name)] = tensor
    return found


def _text_tensor(text: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(json.dumps(text).encode()), dtype=torch.uint8)


def require_all_shards(parts: Parts, ranks: Ranks | None) -> None:
    """Raises InputError if the processes that save have not all shards of an optimizer."""
    size = 1 if ranks is None else ranks.size
    for shard in parts.sharded().values():
        if shard.ranks > size:
            raise InputError(
                f"the state of the optimizer is sharded over {shard.ranks} processes, and {size} "
                "of them save it: save with the process group that the step was captured with"
            )


def _join_shards(optimizers: dict[str, Any], parts: Parts, ranks: Ranks) -> None:
    """Puts the texts of all shards of an optimizer into that of each process."""
    mine = {key: optimizers[key]["state"] for key in parts.sharded()}
    distributed: Any = torch.distributed
    of_all: list[Any] = [None] * ranks.size
    distributed.all_gather_object(of_all, mine, group=ranks.group)
    for key, state in mine.items():
        for shards in of_all:
            for name, fields in shards.get(key, {}).items():
                state.setdefault(name, fields)


def save_ranks(
    path: str, parts: Parts, text: dict[str, Any], metadata: dict[str, str], ranks: Ranks
) -> None:
    """Saves the state of several processes. All of them call this function at the same time.

    Raises:
        InputError: An object cannot be saved, or a process cannot write. All processes raise it,
            and the state that was there before is as it was.
    """
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException

    def encode() -> tuple[dict[str, Any], Tensors]:
        require_all_shards(parts, ranks)
        return parts.encode()

    own, tensors = together(ranks, encode)
    _join_shards(own["optimizers"], parts, ranks)

    def prepare() -> Tensors:
        whole = {**text, **own, "ranks": ranks.size, "model": list(parts.tensors)}
        return {**parts.tensors, **tensors, "state.json": _text_tensor(whole)}

    state = _names_in_folder(together(ranks, prepare), ranks)
    name = _share(ranks, f"{PREFIX}{text['step']}-{secrets.token_hex(4)}")
    folder = os.path.join(path, name)
    together(ranks, lambda: os.makedirs(folder) if ranks.rank == 0 else None)

    def write() -> None:
        try:
            writer = dcp.FileSystemWriter(folder, sync_files=True)  # type: ignore[attr-defined]
            dcp.save(state, storage_writer=writer, process_group=ranks.group)  # type: ignore[attr-defined]
        except CheckpointException as error:  # This is no subclass of Exception.
            raise InputError(f"{folder}: cannot write: {error}", folder) from None

    def finish() -> None:
        if ranks.rank == 0:
            _write_manifest(folder, metadata, ranks)
            _core.write_file(os.path.join(path, CURRENT), name)

    try:
        together(ranks, write)
        together(ranks, finish)
    except InputError:
        if ranks.rank == 0 and _current(path) != name:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    if ranks.rank == 0:
        for entry in os.listdir(path):
            if entry.startswith(PREFIX) and entry != name:
                shutil.rmtree(os.path.join(path, entry), ignore_errors=True)


def _current(path: str) -> str:
    try:
        return _core.read_file(os.path.join(path, CURRENT))
    except InputError:
        return ""


def _write_manifest(folder: str, metadata: dict[str, str], ranks: Ranks) -> None:
    """Writes the sizes and checksums of all files of a state."""
    files = {
        entry: _runtime.file_checksum(os.path.join(folder, entry))
        for entry in sorted(os.listdir(folder))
    }
    manifest = {**metadata, "ranks": ranks.size, "files": files}
    _core.write_file(os.path.join(folder, MANIFEST), json.dumps(manifest, indent=2))


def _check(path: str, version: str, ranks: Ranks | None) -> str:
    """Returns the folder of the state. Each process checks some of its files.

    Raises:
        InputError: The folder has no state, its version is another one, or a file is damaged.
    """
    name = _current(path)
    if not name:
        raise InputError(f"{path}: has no saved state: it has no file {CURRENT}", path)
    folder = os.path.join(path, name)
    try:
        manifest = json.loads(_core.read_file(os.path.join(folder, MANIFEST)))
        found, files = manifest["version"], sorted(manifest["files"].items())
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{folder}: is damaged: {MANIFEST}", folder) from None
    if found != version:
        raise InputError(
            f"{folder}: is a state of version {found!r}, and this version of Reprise reads version "
            f"{version}",
            folder,
        )
    first, every = (0, 1) if ranks is None else (ranks.rank, ranks.size)
    for entry, expected in files[first::every]:
        file = os.path.join(folder, entry)
        if list(_runtime.file_checksum(file)) != expected:
            raise InputError(f"{file}: is damaged: its bytes are not those that were written", file)
    return folder


def read_ranks(
    path: str, parts: Parts, ranks: Ranks | None, version: str, random: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Loads the state of a folder, at the same number of processes or another one.

    Returns:
        The text of the state, and the saved values of `others`, by name.

    Raises:
        InputError: The state cannot be read, or it belongs to another model or optimizer.
    """
    import torch.distributed.checkpoint as dcp

    folder = together(ranks, lambda: _check(path, version, ranks))
    rows: Any = {}
    rank = 0 if ranks is None else ranks.rank

    def stored(name: str) -> str:
        own = _own_name(rank, name)
        return own if own in rows else name

    def load(state: Tensors) -> None:
        named = {stored(name): tensor for name, tensor in state.items()}
        if named:
            dcp.load(named, storage_reader=dcp.FileSystemReader(folder), no_dist=True)  # type: ignore[attr-defined]

    def empty(name: str, like: torch.Tensor | None = None) -> torch.Tensor:
        size, kind = rows[stored(name)].size, rows[stored(name)].properties.dtype
        if like is not None and like.shape == size:
            return torch.zeros_like(like, dtype=kind, requires_grad=False)
        return torch.empty(size, dtype=kind)

    def differs(name: str, tensor: torch.Tensor) -> str | None:
        if stored(name) not in rows:
            return None
        size, kind = rows[stored(name)].size, rows[stored(name)].properties.dtype
        if tensor.shape == size and tensor.dtype == kind:
            return ""
        return (
            f"has shape {list(tensor.shape)} and type {tensor.dtype}, and {list(size)} and {kind} "
            "in the state"
        )

    def prepare() -> tuple[dict[str, Any], list[Callable[[], None]], dict[str, Any]]:
        nonlocal rows, rank
        rows = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata  # type: ignore[attr-defined]
        known = _text_name(rank) in rows
        if not known:
            rank = 0  # There were fewer processes. The random state here stays as it is.
        content = empty("state.json")
        load({"state.json": content})
        text = json.loads(bytes(content.tolist()))
        parts.keep_shards(text)
        parts.compare_tensors(text["model"], differs)
        beside = parts.hints(text)
        names = [text["optimizers"], text["random"], text["others"], text.get("extra", {})]
        state = {name: empty(name, beside.get(name)) for name in tensors_in(names)}
        load(state)
        todo = parts.plan_load(text, state.__getitem__)
        if random and known:
            todo += parts.plan_random(text["random"], state.__getitem__)
        others = {name: decode(value, state.__getitem__) for name, value in text["others"].items()}
        return text, todo, others

    text, todo, others = together(ranks, prepare)

    def put() -> None:
        load(parts.tensors)
        for each in todo:
            each()

    together(ranks, put)
    return text, others
