"""Runs a function in two processes that know each other: Gloo on the loopback, bounded waits."""

from __future__ import annotations

import datetime
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable, Collection
from typing import Any


def _work(
    rank: int,
    store: str,
    timeout: float,
    function: Callable[..., None],
    arguments: Any,
    told: Any,
) -> None:
    import torch
    import torch.distributed as dist

    try:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo",
            store=dist.FileStore(store, 2),  # type: ignore[attr-defined]
            rank=rank,
            world_size=2,
            timeout=datetime.timedelta(seconds=timeout),
        )
        function(rank, *arguments)
        told.put((rank, ""))
    except BaseException:
        told.put((rank, traceback.format_exc()))
    finally:
        told.close()
        told.join_thread()
        os._exit(0)  # The other rank may be gone, and a group that is destroyed waits for it.


def run_ranks(
    function: Callable[..., None],
    *arguments: Any,
    seconds: float = 200,
    timeout: float = 60,
    may_die: Collection[int] = (),
) -> None:
    """Calls `function(rank, *arguments)` in two processes. Fails with the text of their errors.

    `timeout` is that of the group, and `seconds` is how long a process may take. The ranks
    `may_die` may end without a word; all others have to say that they are done.
    """
    # The processes are copies of one that has imported PyTorch and has done nothing else.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed", "reprise._runtime"])
    told = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        children = [
            context.Process(target=_work, args=(rank, store, timeout, function, arguments, told))
            for rank in range(2)
        ]
        for child in children:
            child.start()
        for child in children:
            child.join(seconds)
        late = [rank for rank, child in enumerate(children) if child.is_alive()]
        for child in children:
            child.kill()
            child.join()
    errors = [f"rank {rank} did not end within {seconds} s" for rank in late]
    silent = {0, 1} - {*may_die, *late}
    while not told.empty():
        rank, text = told.get()
        silent.discard(rank)
        if text:
            errors.append(f"rank {rank}:\n{text}")
    errors += [f"rank {r} ended without a word, code {children[r].exitcode}" for r in silent]
    assert not errors, "\n".join(errors)
