"""Saved states: all that a training run needs to go on, with the bits of an uninterrupted run."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import _core
from .._planning.document import Path
from .._planning.plan import Plan
from .._torch import _runtime
from ..errors import InputError
from .parts import Models, Optimizers, Parts
from .ranks import ranks_of, read_ranks, require_all_shards, save_ranks
from .tree import decode

FORMAT, VERSION, TEXT = "reprise.state", "1", "state.json"


@dataclass(frozen=True)
class SavedState:
    """The facts of a saved run that `load_state()` returns.

    Attributes:
        step: The number of steps that were done.
        position: The place in the data, as the program counts.
        plan_sha256: The hash of the plan that was in force, or "".
        notes: The texts of the program's own.
        others: The saved values of `others`, by name. Where an object was given, this is its state.
        ranks: The number of processes that saved the state.
    """

    step: int
    position: int
    plan_sha256: str
    notes: dict[str, str] = field(default_factory=dict)
    others: dict[str, Any] = field(default_factory=dict)
    ranks: int = 1


class StateWriting:
    """A state that is being written beside the training. Made by `save_state(background=True)`."""

    def __init__(self, write: Callable[[], None], after: StateWriting | None) -> None:
        self._error: BaseException | None = None
        self._told = False
        self._thread = threading.Thread(target=self._run, args=(write, after), name="save_state")
        self._thread.start()

    def _run(self, write: Callable[[], None], after: StateWriting | None) -> None:
        try:
            if after is not None:
                after._thread.join()  # States are written in the order in which they were saved.
            write()
        except BaseException as error:
            self._error = error

    def done(self) -> bool:
        """Returns whether the writing is over, with or without an error."""
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Waits until the file is written.

        Raises:
            InputError: The file could not be written. The old one is as it was.
        """
        self._thread.join()
        self._told = True
        if self._error is not None:
            raise self._error


_last: StateWriting | None = None


def _plan_hash(plan: Any) -> str:
    """Returns the hash of a plan, of the plan of a result, or of the plan that a step runs."""
    if plan is None:
        return ""
    found = getattr(plan, "planned", plan)
    found = getattr(found, "plan", found) if not isinstance(found, Plan) else found
    if not isinstance(found, Plan):
        raise InputError(
            f"plan is a plan, a PlanResult, or a step that has a plan, not {type(plan).__name__}"
        )
    return _runtime.plan_sha256(found.to_json())


def _count(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise InputError(f"{name} is a number from 0 on, not {value!r}")
    return int(value)


def _metadata() -> dict[str, str]:
    writer = f"reprise {_core.__version__}, Python, PyTorch {torch.__version__}"
    return {"format": FORMAT, "version": VERSION, "writer": writer}


def save_state(
    path: Path,
    *,
    model: Models = None,
    optimizer: Optimizers = None,
    step: int = 0,
    position: int = 0,
    plan: Any = None,
    others: Mapping[str, Any] | None = None,
    notes: Mapping[str, str] | None = None,
    background: bool = False,
    process_group: Any = None,
) -> StateWriting | None:
    """Saves all that a training run needs to go on with the same bits.

    The state has parameters and buffers, the options and the state of the optimizer, and the random
    states of PyTorch (the CPU, and the devices of the model), of Python and of NumPy. Other objects
    that you give are in it, too. One process writes one file in the format safetensors. Several
    processes that `torch.distributed` has started write one folder together, by
    `torch.distributed.checkpoint`; all of them must call this function.

    An optimizer that `capture(..., shard_optimizer=True)` has sharded is saved by all its ranks.

    However the process ends, the path has the old state or the new one. Call the function between
    two steps.

    Args:
        path: The path of the file, or of the folder if there are several processes.
        model: A module, or a dict of modules. A module that `remat()`, DistributedDataParallel
            or `torch.compile()` has made of a model stands for the model itself.
        optimizer: An optimizer of any class, or a dict of optimizers.
        step: The number of steps that were done.
        position: The place in the data, as your program counts.
        plan: The plan in force: a plan, a `PlanResult`, or a step or module that has one.
            Its hash is saved.
        others: Further objects and values by names. Objects with `state_dict()` and
            `load_state_dict()` are saved by these, such as schedules, loaders and scalers. Random
            generators are saved, too, and plain values: numbers, texts, tensors, lists, dicts.
        notes: Texts by names, for people.
        background: Whether a thread writes the file beside the next steps. Everything is copied
            first, and the budget counts the copy until the file is written. Only one process can
            do so.
        process_group: The processes that save together. None stands for all of them.

    Returns:
        The writing that is under way, or None without `background`.

    Raises:
        InputError: An object cannot be saved, or the file cannot be written.

    Examples:
        >>> reprise.save_state("state.safetensors", model=model, optimizer=optimizer, step=10)
    """
    global _last
    parts = Parts(model, optimizer, others or {})
    text: dict[str, Any] = {
        "step": _count(step, "step"),
        "position": _count(position, "position"),
        "plan": _plan_hash(plan),
        "notes": {str(name): str(note) for name, note in (notes or {}).items()},
    }
    group = ranks_of(process_group)
    if group is not None:
        if background:
            raise InputError("background=True is for one process; several save together at once")
        save_ranks(os.fspath(path), parts, text, _metadata(), group)
        return None
    require_all_shards(parts, None)
    own, tensors = parts.encode()
    tensors = {**parts.tensors, **tensors}
    for name, tensor in tensors.items():
        _runtime.tensor_type(tensor, name)  # It raises InputError where files have no such type.
    tensors[TEXT] = _bytes_of(json.dumps({**text, **own}))
    target, rows = os.fspath(path), [(name, t.detach()) for name, t in tensors.items()]
    if not background:
        if _last is not None:
            _last._thread.join()
        _runtime.write_tensors(target, _metadata(), rows)
        return None
    rows = [(name, tensor.clone()) for name, tensor in rows]
    before, _last = _last, None
    if before is not None and before.done() and not before._told:
        before.wait()
    copies = [rows]  # The thread drops the copies as soon as they are written.
    del rows

    def write() -> None:
        written = copies.pop()
        try:
            _runtime.write_tensors(target, _metadata(), written)
        finally:
            # A step that is under way has counted them, so they stay until it is over.
            _runtime.drop_between_steps([tensor for _, tensor in written])

    _last = StateWriting(write, before)
    return _last


def load_state(
    path: Path,
    *,
    model: Models = None,
    optimizer: Optimizers = None,
    others: Mapping[str, Any] | None = None,
    random: bool = True,
    process_group: Any = None,
) -> SavedState:
    """Loads a saved state into models, optimizers and other objects, in place.

    Everything is compared before anything is written: names, shapes and types of tensors, the class
    and the groups of the optimizer, and the checksums of the file. Objects that you do not give
    stay as they are.

    Args:
        path: The path of the file or folder.
        model: As for `save_state()`.
        optimizer: As for `save_state()`. Its learning rates and other options are loaded, too.
        others: Objects as for `save_state()`, by the same names. Their states are put into them.
        random: Whether to put the random states back.
        process_group: The processes that load together. None stands for all of them.

    Returns:
        The step, the position, and what else was saved.

    Raises:
        InputError: The file cannot be read, is damaged, is of another version, or has the state of
            another model or optimizer. Nothing is changed then.

    Examples:
        >>> reprise.save_state("state.safetensors", model=model, optimizer=optimizer, step=10)
        >>> done = reprise.load_state("state.safetensors", model=model, optimizer=optimizer)
        >>> first = done.step + 1
    """
    if _last is not None:
        _last._thread.join()
    parts = Parts(model, optimizer, others or {})
    target, group = os.fspath(path), ranks_of(process_group)
    if os.path.isdir(target):
        text, found = read_ranks(target, parts, group, VERSION, random)
        ranks = text["ranks"]
        others_read = found
    else:
        text, others_read = _load_file(target, parts, random and (group is None or group.rank == 0))
        ranks = 1
    return SavedState(
        text["step"], text["position"], text["plan"], text["notes"], others_read, ranks
    )


def _load_file(path: str, parts: Parts, random: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Loads a file of one process. Returns its text, and the values of others."""
    file = _runtime.TensorFile(path)
    metadata = file.metadata()
    if metadata.get("format") != FORMAT:
        raise InputError(
            f"{path}: is no saved state: its metadata does not name the format {FORMAT}", path
        )
    if metadata.get("version") != VERSION:
        raise InputError(
            f"{path}: is a state of version {metadata.get('version')!r}, and this version of "
            f"Reprise reads version {VERSION}; it was written by {metadata.get('writer')!r}",
            path,
        )
    file.verify()
    rows = {name: (kind, tuple(shape)) for name, kind, shape in file.tensors()}
    if TEXT not in rows:
        raise InputError(f"{path}: is no saved state: it has no text {TEXT}", path)
    text = json.loads(bytes(file.read(TEXT).tolist()))

    def differs(name: str, tensor: torch.Tensor) -> str | None:
        if name not in rows:
            return None
        kind, shape = rows[name]
        ours = _runtime.tensor_type(tensor, name)
        if (ours, tuple(tensor.shape)) == (kind, shape):
            return ""
        return (
            f"has shape {list(tensor.shape)} and type {ours}, and {list(shape)} and {kind} in the "
            "state"
        )

    parts.keep_shards(text)
    try:
        parts.compare_tensors(list(rows), differs)
        todo = parts.plan_load(text, file.read)
        if random:
            todo += parts.plan_random(text["random"], file.read)
    except InputError as error:
        raise InputError(f"{path}: {error}", path) from error
    for name, tensor in parts.tensors.items():
        file.read_into(name, tensor.detach())
    for put in todo:
        put()
    return text, {name: decode(value, file.read) for name, value in text["others"].items()}


def _bytes_of(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
