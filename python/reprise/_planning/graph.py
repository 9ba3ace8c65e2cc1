"""Graphs: the general form of a problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from .document import Document


@dataclass(frozen=True)
class Value:
    """A piece of data that ops read and write.

    Attributes:
        id: The name of the value. It is unique in the graph.
        bytes: The size in bytes of device memory.
        kind: "input", "activation", "saved", "gradient" or "state". An input belongs to the caller:
            it is live from the start, and a plan never frees it at its home.
        home: The memory where an input is when the step begins, and a result when it ends. It is
            empty for the device.
    """

    id: str
    bytes: int
    kind: str = "activation"
    home: str = ""


@dataclass(frozen=True)
class Variant:
    """One way to run an op.

    Attributes:
        ns: The time of one run in nanoseconds.
        name: The name of the variant. It is unique in its op.
        workspace_bytes: The bytes that a run needs beyond the values that it reads and writes.
        reads: The ids of the values that a run reads.
        writes: The ids of the values that a run writes.
        reuses: Pairs (written, read) of values of equal size. The written value takes over the
            memory of the read value, which is gone afterwards.
        consumes: The ids of the read values that the run itself gives back. They are gone at its
            end and are not counted while it runs.
        role: The runs of the op that the variant may serve: "first" for the first run only,
            "replay" for later runs only, or "any".
        exactness: The distance from plain training's result: "bitwise", "rounding" or
            "approximate".
        alternative: The alternative that added the variant. It is empty for other variants.
        error_ppm: Of an approximate variant: the bound on the error of an element that it writes,
            over the largest element, in parts per million, for the data that it was measured on. It
            is 0 where none is known.
        at: The memory of the machine where the variant runs. None stands for the first memory.
    """

    ns: int
    name: str = "default"
    workspace_bytes: int = 0
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    reuses: tuple[tuple[str, ...], ...] = ()
    consumes: tuple[str, ...] = ()
    role: str = "any"
    exactness: str = "bitwise"
    alternative: str = ""
    error_ppm: int = 0
    at: str | None = None


@dataclass(frozen=True)
class Op:
    """A unit of work that a plan runs once or several times.

    Attributes:
        id: The name of the op. It is unique in the graph.
        variants: The ways to run the op. At least one may serve the first run.
        phase: "forward", "loss" or "backward". Ops of the loss and of the backward run once.
        once: Whether a plan must run the op exactly once.
        random: Whether a later run must see the random numbers of the first run.
        owner: The path of the module that the op belongs to. It is empty if no module owns the op.
    """

    id: str
    variants: tuple[Variant, ...]
    phase: str = "forward"
    once: bool = False
    random: bool = False
    owner: str = ""


@dataclass(frozen=True)
class Realization:
    """One set of ops that does the work of a choice.

    Attributes:
        ops: The ids of the ops.
        name: The alternative that added the realization. It is empty for plain training's.
    """

    ops: tuple[str, ...]
    name: str = ""


@dataclass(frozen=True)
class Choice:
    """Work that can be done by several sets of ops.

    Attributes:
        id: The name of the choice.
        realizations: A plan runs all ops of exactly one realization. The first realization is that
            of plain training. A tuple of ids of ops stands for a realization without a name.
    """

    id: str
    realizations: tuple[Realization, ...]

    def __post_init__(self) -> None:
        known = (
            one if isinstance(one, Realization) else Realization(tuple(one))
            for one in self.realizations
        )
        object.__setattr__(self, "realizations", tuple(known))


@dataclass(frozen=True)
class Graph(Document):
    """A problem as ops over values. The ops stand in the order of plain training.

    Attributes:
        name: The name of the problem. Plans repeat it.
        values: All values of the step.
        ops: All ops of the step, in the order of plain training.
        results: The ids of the values that must be live at the end of the step.
        fixed_bytes: The bytes that are held during the whole step, for example by parameters.
        choices: The work that can be done by several sets of ops.
    """

    FORMAT: ClassVar[str] = "reprise.graph"
    VERSION: ClassVar[int] = 3
    name: str
    values: tuple[Value, ...]
    ops: tuple[Op, ...]
    results: tuple[str, ...]
    fixed_bytes: int = 0
    choices: tuple[Choice, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON form as a dict, without checking it."""
        result = super().to_dict()
        # A graph that names no memory stays readable for older programs.
        if any(variant.at is not None for op in self.ops for variant in op.variants):
            result["version"] = 3
        return result

    def __repr__(self) -> str:
        return f"Graph({self.name!r}, {len(self.ops)} ops, {len(self.values)} values)"
