"""A pipeline whose parts were measured on their ranks, as a problem for the planner."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from .. import _core
from .._planning.arguments import Budget
from ..errors import BudgetError, InputError, InternalError


@dataclass(frozen=True)
class MeasuredPart:
    """A rank says this about one of its parts.

    Attributes:
        chain: The stages of the part as a `reprise.chain`.
        stages: What a `reprise.pipeline` says about them: their weight parts.
        not_split: The stages whose backward cannot be split, with the reasons.
        output_gradient_bytes: The bytes of the gradients that it wants for its outputs.
    """

    chain: dict[str, Any]
    stages: list[dict[str, Any]]
    not_split: list[tuple[str, str]]
    output_gradient_bytes: int


@dataclass(frozen=True)
class RankFacts:
    """A rank says this about itself.

    Attributes:
        level: The live bytes when a step begins.
        budget: The budget of the rank.
    """

    level: int
    budget: Budget


def number_of_stages(part: MeasuredPart) -> int:
    """Returns the number of stages of a part."""
    return len(part.chain["stages"])


def cuts_of(parts: list[MeasuredPart]) -> list[int]:
    """Returns the first stage of each part but the first one."""
    cuts: list[int] = []
    for part in parts[:-1]:
        cuts.append((cuts[-1] if cuts else 0) + number_of_stages(part))
    return cuts


def input_bytes(parts: list[MeasuredPart], micro_batches: int) -> int:
    """Returns the bytes of the inputs of all micro-batches."""
    return int(parts[0].chain["input"]["bytes"]) * micro_batches


def problem_of(
    name: str,
    parts: list[MeasuredPart],
    ranks: list[RankFacts],
    micro_batches: int,
    link_bytes_per_second: int,
) -> str:
    """Returns the pipeline as the text of a `reprise.pipeline` file.

    Part number q lies on rank q modulo the number of ranks.

    Raises:
        InputError: Two neighbouring parts do not fit together.
    """
    stages: list[dict[str, Any]] = []
    facts_of_stages: list[dict[str, Any]] = []
    for q, part in enumerate(parts):
        if q > 0:
            _join(q, parts[q - 1], part, stages[-1])
        stages += [{**stage, "name": f"{q}.{stage['name']}"} for stage in part.chain["stages"]]
        facts_of_stages += [{**facts, "fixed_bytes": 0} for facts in part.stages]
    for rank, facts in enumerate(ranks):
        own = input_bytes(parts, micro_batches) if rank == 0 else 0
        first = ([0] + cuts_of(parts))[rank]
        facts_of_stages[first]["fixed_bytes"] = max(0, facts.level - own)
    devices = [_device(rank, facts) for rank, facts in enumerate(ranks)]
    size = len(ranks)
    pairs = {(q % size, (q + 1) % size) for q in range(len(parts) - 1)} if size > 1 else set()
    both = sorted(pairs | {(b, a) for a, b in pairs})
    links = [
        {"from": f"rank{a}", "to": f"rank{b}", "bytes_per_second": link_bytes_per_second}
        for a, b in both
    ]
    chain = {
        "format": "reprise.chain",
        "version": 1,
        "name": name,
        "input": parts[0].chain["input"],
        "stages": stages,
        "loss": parts[-1].chain["loss"],
    }
    problem = {
        "format": "reprise.pipeline",
        "version": 1,
        "name": name,
        "micro_batches": micro_batches,
        "chain": chain,
        "stages": facts_of_stages,
        "devices": devices,
        "links": links,
    }
    return json.dumps(problem)


def _device(rank: int, facts: RankFacts) -> dict[str, Any]:
    device: dict[str, Any] = {"name": f"rank{rank}"}
    if facts.budget is not None and not _is_share(facts.budget):
        device["bytes"] = _core.resolve_budget(facts.budget, None)
    return device


def _is_share(budget: Budget) -> bool:
    return isinstance(budget, str) and budget.strip().endswith("%")


def _join(q: int, before: MeasuredPart, part: MeasuredPart, last: dict[str, Any]) -> None:
    """Checks that what part q - 1 sends has the bytes of what part q reads, both ways."""
    got = part.chain["input"]
    pairs = (
        (last["output_bytes"], got["bytes"], "output", "input"),
        (
            before.output_gradient_bytes,
            got.get("gradient_bytes", 0),
            "output's",
            "input's gradient",
        ),
    )
    for one, other, mine, theirs in pairs:
        if one != other:
            raise InputError(
                f"the {mine} of part {q - 1} has {one} bytes, and the {theirs} of part {q} has "
                f"{other}: messages are whole contiguous tensors, and every one of them that needs "
                "a gradient gets one of its own size. Cut the model at another stage"
            )
    last["output_gradient_bytes"] = got.get("gradient_bytes", 0)


def plan_of(
    problem: str,
    parts: list[MeasuredPart],
    ranks: list[RankFacts],
    planner: str | None,
    time_limit_ns: int,
) -> str:
    """Plans a pipeline, and returns the text of a `reprise.pipeline_plan`.

    Raises:
        BudgetError: No plan fits.
        InputError: An argument cannot be used.
    """
    shares = {facts.budget for facts in ranks if _is_share(facts.budget)}
    if len(shares) > 1 or (shares and any(facts.budget not in shares for facts in ranks)):
        raise InputError(
            f"a share of the plain pipeline's peak is the budget of all ranks, and these have "
            f"{[facts.budget for facts in ranks]}"
        )
    if planner == "zb_h1" and not any("weight_part" in s for part in parts for s in part.stages):
        raise InputError(f"zb_h1 splits backwards, and none can be split: {_reasons(parts)}")
    each = -(-len(parts) // len(ranks))
    text, reason, needed = _core.plan_pipeline(
        problem,
        "pipeline",
        budget=shares.pop() if shares else None,
        planner=planner or ("pipeline" if each == 1 else "interleaved"),
        cuts=cuts_of(parts),
        parts_per_device=each,
        time_limit_ns=time_limit_ns,
    )
    if not text:
        raise BudgetError(reason, 0, 0, needed)
    check_layout(json.loads(text), parts, len(ranks))
    return text


def _reasons(parts: list[MeasuredPart]) -> str:
    found = [
        f"stage '{q}.{stage}': {why}"
        for q, part in enumerate(parts)
        for stage, why in part.not_split
    ]
    return "; ".join(found) or "no stage has weights"


def check_layout(plan: dict[str, Any], parts: list[MeasuredPart], size: int) -> None:
    """Raises InternalError if the plan has other parts, or has them elsewhere."""
    expected = [(f"rank{q % size}", number_of_stages(part)) for q, part in enumerate(parts)]
    found = [(part["device"], part["stages"]) for part in plan["parts"]]
    if found != expected:
        raise InternalError(f"the plan has the parts {found}, and the pipeline has {expected}")
