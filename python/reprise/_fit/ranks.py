"""Estimates steps on 8 to 4,096 devices, from one measured chain."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from .. import _core
from .._planning.arguments import Observer, Progress, nanoseconds
from .._planning.chain import Chain
from .._planning.files import load
from .._planning.measured import Profile
from .._planning.problems import Problem, text_of
from ..errors import InputError
from .ranks_answer import RanksFit, RanksRow
from .rates import rate

# The deepest pipeline that is looked at where the caller names no depths.
_DEEPEST = 64
# So many micro-batches are simulated for a pipeline of few parts.
_FEW = 8


class _Links(NamedTuple):
    """Bytes a second between neighbours, and between replicas.

    A message between replicas has a latency, and a sum over them so many bytes.
    """

    pipeline: int
    replicas: int
    latency_ns: int
    bucket: int


def fit_ranks(
    chain: Problem,
    *,
    ranks: Sequence[int],
    memory: int | str,
    micro_batches: int,
    depths: Sequence[int] | None = None,
    link: float | str = "25GB",
    network: float | str | None = None,
    latency: float | str = 10e-6,
    bucket: int | str = "25MiB",
    planner: str = "1f1b",
    time_limit: float | str = 2.0,
    observer: Observer | None = None,
) -> RanksFit:
    """Says how long a step takes on more devices than there are, as pipelines and replicas.

    The chain is a step of one micro-batch on one device, measured (`profile()`) or written down.
    R devices are R / p replicas of a pipeline of p parts, and each replica has an equal share of
    the micro-batches. A pipeline is planned as `reprise pipeline` plans it, within the memory of a
    device, and simulated: messages, waiting and recomputation are in its time. Each part adds up
    its gradients over the replicas in buckets. The sum of a bucket starts when the last
    micro-batch has gone back through the stages of the bucket, and it runs beside the rest of the
    backward. It is a ring, which takes 2 (d - 1) (bytes / d / bandwidth + latency) for d replicas
    (Patarasu, Yuan, "Bandwidth optimal all-reduce algorithms", JPDC 2009, section 4). A device
    carries one ring after the other, beside the messages of its pipeline. With more than 2 p
    micro-batches a pipeline is simulated for 2 p and for p of them, and each further one takes as
    long as one between these two: the middle of a pipeline repeats itself. The fixed bytes of the
    chain (parameters and their state) are divided over its stages as their weight gradients are.

    Args:
        chain: The chain: a path, a dict in the file format, or a `Chain` or `Profile`.
        ranks: The numbers of devices.
        memory: The bytes of each device, or a text such as "80GB".
        micro_batches: The micro-batches of a step, over all replicas. Numbers of replicas that do
            not divide it are left out.
        depths: The numbers of parts of a pipeline. None stands for the powers of two up to 64. A
            depth that does not divide the ranks, or that is above the number of stages, is left
            out.
        link: The bytes a second between neighbours of a pipeline: a number, or a text ("25GB").
        network: The same between replicas. None stands for `link`.
        latency: The time of a message beside its bytes: seconds, or a text such as "10us".
        bucket: The bytes of gradients that are added up at once, at least: a number of bytes, or a
            text. The last bucket of a device has what is left.
        planner: A planner of pipelines that takes one part a device.
        time_limit: The time of each search: seconds, or a text such as "2s".
        observer: A function that is called with `Progress`.

    Returns:
        The answer. `print()` shows a table, and `html()` or `save()` makes a page.

    Raises:
        InputError: An argument is wrong, or no number of ranks can be divided as asked.

    Examples:
        >>> found = reprise.fit_ranks(chain, ranks=[2, 4], memory="1GB", micro_batches=8)
        >>> print(found.best(4).ranks)
        4
    """
    problem = _chain_of(chain)
    bytes = _core.parse_bytes(memory) if isinstance(memory, str) else memory
    links = _Links(
        int(rate(link, 0.0, "link")),
        max(1, int(rate(link if network is None else network, 0.0, "network"))),
        nanoseconds(latency),
        _core.parse_bytes(bucket) if isinstance(bucket, str) else bucket,
    )
    _check_numbers({"ranks": ranks, "depths": depths or [1], "micro_batches": [micro_batches]})
    limit = nanoseconds(time_limit)
    stages = len(problem["stages"])
    alone = micro_batches * _plain_time(problem)
    rows: list[RanksRow] = []
    # The micro-batches of a pipeline say how many replicas there are.
    pipelines: dict[tuple[int, int], RanksRow] = {}
    for number, depth in _divisions(ranks, depths, stages, micro_batches):
        replicas = number // depth
        each = micro_batches // replicas
        if observer is not None:
            text = f"{number} ranks: {replicas} x {depth}, {each} micro-batches"
            observer(Progress("fit", None, text))
        if (depth, each) not in pipelines:
            search = _Search(problem, bytes, links, replicas, planner, limit)
            pipelines[depth, each] = _long_pipeline(search, depth, each)
        rows.append(_with_replicas(pipelines[depth, each], number, replicas, alone))
    if not rows:
        raise InputError(
            f"none of the ranks {list(ranks)} can be divided into pipelines of at most {stages} "
            f"parts and replicas that divide {micro_batches} micro-batches"
        )
    return RanksFit(str(problem["name"]), bytes, micro_batches, alone, tuple(rows))


def _chain_of(given: Any) -> dict[str, Any]:
    """Returns the chain as a dict in the file format."""
    text_of(given, "problem")  # It says what is wrong with the argument.
    if isinstance(given, (str, os.PathLike)):
        given = load(given)
    if isinstance(given, dict):
        given = given.get("problem", given)
        given = Chain.from_dict(given) if given.get("format") == Chain.FORMAT else given
    if isinstance(given, Profile):
        given = given.problem
    if not isinstance(given, Chain):
        kind = given.get("format") if isinstance(given, dict) else type(given).__name__
        raise InputError(
            f"pipelines are cut out of a chain of stages, and this is a {kind}; "
            "reprise.profile(stages, sample) measures a chain"
        )
    found: dict[str, Any] = given.to_dict()
    return found


def _check_numbers(lists: dict[str, Sequence[int]]) -> None:
    for name, numbers in lists.items():
        for one in numbers:
            if isinstance(one, bool) or not isinstance(one, int) or one < 1:
                raise InputError(f"{name} takes whole numbers from 1 on, not {one!r}")
        if not numbers:
            raise InputError(f"{name} is empty")


def _divisions(
    ranks: Sequence[int], depths: Sequence[int] | None, stages: int, micro_batches: int
) -> Iterator[tuple[int, int]]:
    """Yields the numbers of ranks with the depths that go with them."""
    powers = [2**k for k in range(_DEEPEST.bit_length()) if 2**k <= _DEEPEST]
    for number in dict.fromkeys(ranks):
        for depth in dict.fromkeys(powers if depths is None else depths):
            divides = number % depth == 0 and micro_batches % (number // depth) == 0
            if divides and depth <= stages:
                yield number, depth


def _plain_time(chain: dict[str, Any]) -> int:
    """Returns the time of one micro-batch on one device, with nothing made again."""
    time: int = chain.get("loss", {}).get("ns", 0)
    for stage in chain["stages"]:
        time += min(o["forward"]["ns"] + o["backward"]["ns"] for o in stage["options"])
    return time


def _shares(chain: dict[str, Any]) -> list[int]:
    """Returns the fixed bytes of each stage."""
    weights = [stage.get("weight_gradient_bytes", 0) for stage in chain["stages"]]
    if not any(weights):
        weights = [1] * len(weights)
    fixed, total = chain.get("fixed_bytes", 0), sum(weights)
    return [-(-fixed * one // total) for one in weights]


class _Search(NamedTuple):
    """The pipelines of one search have these values in common."""

    chain: dict[str, Any]
    memory: int
    links: _Links
    replicas: int
    planner: str
    limit_ns: int


def _long_pipeline(search: _Search, depth: int, micro_batches: int) -> RanksRow:
    """Plans one pipeline, of more micro-batches than are worth a simulation, too."""
    most = max(_FEW, 2 * depth)
    row = _pipeline(search, depth, min(micro_batches, most))
    if micro_batches <= most or row.pipeline_ns is None:
        return row._replace(micro_batches=micro_batches)
    before = _pipeline(search, depth, most // 2)
    if before.pipeline_ns is None:
        return row._replace(micro_batches=micro_batches)
    more = (row.pipeline_ns - before.pipeline_ns) * (micro_batches - most) // (most - most // 2)
    return row._replace(micro_batches=micro_batches, pipeline_ns=row.pipeline_ns + more)


def _pipeline(search: _Search, depth: int, micro_batches: int) -> RanksRow:
    """Plans one pipeline, and simulates its replicas."""
    chain = search.chain
    shares = _shares(chain)
    problem = {
        "format": "reprise.pipeline",
        "version": 1,
        "name": chain["name"],
        "micro_batches": micro_batches,
        "chain": chain | {"fixed_bytes": 0},
        "stages": [{"fixed_bytes": share} for share in shares],
        "devices": [{"name": f"rank{k}", "bytes": search.memory} for k in range(depth)],
        "links": [
            {"from": f"rank{a}", "to": f"rank{b}", "bytes_per_second": search.links.pipeline}
            for k in range(depth - 1)
            for a, b in ((k, k + 1), (k + 1, k))
        ],
    }
    asked = json.dumps(problem)
    text, reason, needed = _core.plan_pipeline(
        asked,
        "pipeline",
        budget=None,
        planner=search.planner,
        cuts=[],
        parts_per_device=1,
        time_limit_ns=search.limit_ns,
    )
    row = RanksRow(depth, depth, 1, micro_batches)
    if not text:
        return row._replace(needed_bytes=needed, why=reason.partition("\n")[0])
    plan = json.loads(text)
    gradients, first = 0, 0
    for part in plan["parts"]:
        inside = chain["stages"][first : first + part["stages"]]
        gradients = max(gradients, sum(s.get("weight_gradient_bytes", 0) for s in inside))
        first += part["stages"]
    time, busy = _core.simulate_replicas(
        asked,
        text,
        count=search.replicas,
        bytes_per_second=search.links.replicas,
        latency_ns=search.links.latency_ns,
        bucket_bytes=search.links.bucket,
    )
    return row._replace(
        pipeline_ns=plan["time_ns"],
        ring_ns=time - plan["time_ns"],
        ring_busy_ns=busy,
        peak_bytes=max(device["peak_bytes"] for device in plan["devices"]),
        gradient_bytes=gradients,
    )


def _with_replicas(row: RanksRow, ranks: int, replicas: int, alone: int) -> RanksRow:
    """Returns the row for a number of ranks."""
    row = row._replace(ranks=ranks, replicas=replicas)
    if row.pipeline_ns is None:
        return row
    time = row.pipeline_ns + row.ring_ns
    return row._replace(time_ns=time, efficiency=alone / ranks / max(1, time))
