"""The ranks of a pipeline: values that all of them hear of, messages, and waits that end."""

from __future__ import annotations

import base64
import contextlib
import datetime
import pickle
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .._step.process_group import name_of_group
from ..errors import InputError, PeerError

# A rank that waits looks so often whether another rank has failed.
_LOOK_S = 0.1
# A rank whose connection broke waits so long for the reason.
_REASON_S = 1.0
_numbers: dict[str, int] = {}


class Peers:
    """The ranks of a process group, as the parts of a pipeline see them.

    Every wait ends: with what was waited for, with the failure of another rank, or after the
    timeout. All ranks make their `Peers` in the same order.
    """

    def __init__(self, process_group: Any, timeout: float | None) -> None:
        distributed: Any = torch.distributed
        if process_group is None and distributed.is_available() and distributed.is_initialized():
            process_group = distributed.group.WORLD
        if process_group is None:
            raise InputError("a pipeline needs torch.distributed.init_process_group()")
        name = name_of_group(process_group)
        self.group = process_group
        self.rank: int = distributed.get_rank(process_group)
        self.size: int = distributed.get_world_size(process_group)
        self.timeout = timeout if timeout is not None else _timeout_of(process_group)
        number = _numbers[name] = _numbers.get(name, -1) + 1
        prefix = f"reprise/pipeline/{name}/{number}"
        self._store = distributed.PrefixStore(prefix, process_group.get_group_store())
        self._rounds = 0
        self._broken = False
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            self._work.get()()

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Lets the other ranks hear of an exception. No call comes after one."""
        if self._broken:
            raise PeerError(
                "this pipeline has failed before: make a new group, and the pipeline anew"
            )
        try:
            yield
        except BaseException as error:
            self._broken = True
            with contextlib.suppress(Exception):
                if not isinstance(error, PeerError) and not self._store.check(["failed"]):
                    text = f"rank {self.rank} has failed: {type(error).__name__}: {error}"
                    self._store.set("failed", text[:2000])
            raise

    def _look(self) -> None:
        """Raises PeerError if another rank has failed."""
        if self._has("failed"):
            raise PeerError(self._store.get("failed").decode())

    def _has(self, key: str) -> bool:
        try:
            return bool(self._store.check([key]))
        except Exception as error:
            raise PeerError(f"the store of the process group is gone: {error}") from error

    def tell(self, key: str, value: Any) -> None:
        """Lets all ranks hear of a value."""
        self._store.set(key, base64.b64encode(pickle.dumps(value)).decode())

    def hear(self, key: str, rank: int) -> Any:
        """Returns a value that a rank has told or will tell."""
        begun = time.monotonic()
        pause = 0.0005
        while not self._has(key):
            self._look()
            if time.monotonic() - begun > self.timeout:
                raise PeerError(f"rank {self.rank} has waited {self.timeout:g} s for rank {rank}")
            time.sleep(pause)
            pause = min(2 * pause, 0.02)
        return pickle.loads(base64.b64decode(self._store.get(key)))

    def gather(self, value: Any) -> list[Any]:
        """Returns the values of all ranks."""
        number = self._rounds
        self._rounds += 1
        self.tell(f"{number}/{self.rank}", value)
        all_values = [self.hear(f"{number}/{rank}", rank) for rank in range(self.size)]
        if number > 1:  # Every rank has told its value of the round before, and read this one.
            self._store.delete_key(f"{number - 2}/{self.rank}")
        return all_values

    def send(self, tensor: torch.Tensor, rank: int) -> Any:
        """Hands a tensor to the link to another rank, and returns the work."""
        return self._messages().isend(tensor, self._global(rank), group=self.group)

    def receive(self, tensor: torch.Tensor, rank: int) -> Any:
        """Lets a tensor be filled by another rank, and returns the work."""
        return self._messages().irecv(tensor, self._global(rank), group=self.group)

    @staticmethod
    def _messages() -> Any:
        return torch.distributed

    def _global(self, rank: int) -> int:
        return int(self._messages().get_global_rank(self.group, rank))

    def wait(self, work: Any, what: str) -> None:
        """Waits for a message. Raises PeerError, which says what was waited for."""
        done = threading.Event()
        failures: list[BaseException] = []

        def wait_for_it() -> None:
            try:
                work.wait()
            except BaseException as error:
                failures.append(error)
            done.set()

        begun = time.monotonic()
        self._work.put(wait_for_it)
        while not done.wait(_LOOK_S):
            self._look()
            if time.monotonic() - begun > self.timeout:
                raise PeerError(f"rank {self.rank} has waited {self.timeout:g} s for {what}")
        if not failures:
            return
        late = time.monotonic() + _REASON_S
        while time.monotonic() < late:
            self._look()
            time.sleep(_LOOK_S)
        first = str(failures[0]).split("\n", 1)[0]
        raise PeerError(f"{what} failed on rank {self.rank}: {first}") from failures[0]


def _timeout_of(process_group: Any) -> float:
    """Returns the timeout of a group in seconds."""
    backend = process_group._get_backend(torch.device("cpu"))
    timeout = getattr(getattr(backend, "options", None), "_timeout", None)
    return timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else 1800.0
