"""The report of the last step of a planned model or of a captured step."""

from __future__ import annotations

from dataclasses import dataclass

from .. import _core
from .._planning.html import fields_html
from .overhead import Overhead


@dataclass(frozen=True)
class OtherDevice:
    """What a device of `capture(other_devices=...)` did in the last step.

    Attributes:
        device: Its name, such as "cuda:1".
        runs: The number of operations that it ran.
        predicted_peak_bytes: The most bytes that the step holds there by the plan.
        measured_peak_bytes: The most bytes that it held there.
    """

    device: str
    runs: int
    predicted_peak_bytes: int
    measured_peak_bytes: int


@dataclass(frozen=True)
class StepReport:
    """The peaks and the budget of the last step. On the CPU both peaks are equal to the byte.

    The fields of the arena are 0 in chain mode, and in graph mode while there is no arena.

    Attributes:
        budget_bytes: The budget, or None for no limit.
        predicted_peak_bytes: The peak that the plan predicts.
        measured_peak_bytes: The peak that was measured during the step.
        steps: The number of steps so far.
        plans: The number of plans that were made so far.
        arena_height_bytes: The size of the arena, which holds all memory of a captured step.
        arena_live_bytes: The most bytes of the arena that are live at one time. No arena can be
            smaller.
        served: The number of allocations that the arena served at their planned places.
        fallbacks: The number of allocations that the heap served although there is an arena.
        moved_out_bytes: The bytes that the step moved to the memory of `offload`, or to other
            devices.
        moved_in_bytes: The bytes that it brought back.
        waited_ns: The time that it waited for copies and sums over ranks, in nanoseconds.
        offload_choice: What `offload="auto"` picked, and why, or "" for another `offload`.
        compared: The number of steps so far that lockstep compared with the function.
        graphed: The number of steps so far that ran as a device graph (a CUDA graph).
        left: The number of steps so far that left all recordings: in a followed step
            (`capture(follow=True)`), those that ran as plain training runs them.
        last_difference: Why the last of them did, or "".
        no_device_graph: Why the plan in force does not run as a device graph, or "" if it does, or
            was not asked to.
        other_devices: What the devices of `capture(other_devices=...)` did.
        overheads: The last captures, measurements and searches for plans: why, how long, and what
            they found. Each one is also a line of the log "reprise".
    """

    budget_bytes: int | None
    predicted_peak_bytes: int
    measured_peak_bytes: int
    steps: int
    plans: int
    arena_height_bytes: int = 0
    arena_live_bytes: int = 0
    served: int = 0
    fallbacks: int = 0
    moved_out_bytes: int = 0
    moved_in_bytes: int = 0
    waited_ns: int = 0
    offload_choice: str = ""
    compared: int = 0
    graphed: int = 0
    left: int = 0
    last_difference: str = ""
    no_device_graph: str = ""
    other_devices: tuple[OtherDevice, ...] = ()
    overheads: tuple[Overhead, ...] = ()

    def __str__(self) -> str:
        if self.steps == 0:
            return "not run yet"
        budget = "none" if self.budget_bytes is None else _core.format_bytes(self.budget_bytes)
        return (
            f"step {self.steps}: measured peak {_core.format_bytes(self.measured_peak_bytes)}, "
            f"predicted {_core.format_bytes(self.predicted_peak_bytes)}, budget {budget}, "
            f"{self.plans} plan{'' if self.plans == 1 else 's'} so far"
        )

    def _repr_html_(self) -> str:
        return fields_html(self)
