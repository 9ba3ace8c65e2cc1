"""Online mode: any step inside a budget, without recording it first."""

from __future__ import annotations

import contextlib
import weakref
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

import torch

from .. import _core
from .._planning.arguments import Budget, native_options, options_of
from .._planning.html import fields_html
from .._step.memory import budget_for
from .._step.overhead import Overhead, Overheads
from .._step.turns import OfThisProcess
from .._torch import _runtime


@dataclass(frozen=True)
class OnlineReport:
    """The report of the last step in online mode that came to its end.

    Attributes:
        budget_bytes: The budget, or None for no limit.
        measured_peak_bytes: The most bytes that were live. They are never more than the budget.
        time_ns: The time of the step, with all that online mode did.
        calls: The number of operations of the step.
        evictions: The number of times that memory was taken from a tensor.
        evicted_bytes: The sum of these bytes.
        reruns: The number of operations that ran again.
        rerun_cost: The modelled cost of the re-runs, over that of the step's operations.
        kept_values: The number of tensors that the step made and that could not be evicted.
        steps: The number of steps that came to their end so far.
        planned: The step followed a plan from its begin to its end.
        matched_calls: The number of operations, from the first one on, that were as in a plan.
        planned_calls: The number of operations of the plan that was followed last; 0 without one.
        unplanned_evictions: The number of evictions that the plan did not foresee.
        why_not_planned: Why the step was not planned, or not to its end; "" if it was, or if steps
            are not planned.
        planning_time_ns: The time of the searches behind the step, or of the one in the background
            whose answer was there when the step began. It is no part of `time_ns`.
        overheads: The last searches: why, how long, and what they found. Each one is also a line of
            the log "reprise".
    """

    budget_bytes: int | None
    measured_peak_bytes: int
    time_ns: int
    calls: int
    evictions: int
    evicted_bytes: int
    reruns: int
    rerun_cost: float
    kept_values: int
    steps: int
    planned: bool
    matched_calls: int
    planned_calls: int
    unplanned_evictions: int
    why_not_planned: str
    planning_time_ns: int
    overheads: tuple[Overhead, ...] = ()

    def __str__(self) -> str:
        if self.steps == 0:
            return "not run yet"
        budget = "none" if self.budget_bytes is None else _core.format_bytes(self.budget_bytes)
        return (
            f"step {self.steps}: peak {_core.format_bytes(self.measured_peak_bytes)}, "
            f"budget {budget}, {_core.format_duration(self.time_ns)}; {self.evictions} evictions, "
            f"{self.reruns} of {self.calls} operations ran again{self._planned()}"
        )

    def _planned(self) -> str:
        if self.planned:
            return "; as planned"
        if not self.why_not_planned:
            return ""
        return f"; not planned: {self.why_not_planned}"

    def _repr_html_(self) -> str:
        return fields_html(self)


class Online(contextlib.ContextDecorator, OfThisProcess):
    """Runs training steps in online mode. Made by `online()`.

    Each `with` block, or each call of a decorated function, is one step.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self._overheads = Overheads("online mode", ("the same operations",))
        device = torch.device(options["device"])
        budget = budget_for(options["budget"], device)
        options = options | {"budget": budget, "device": str(device)}
        self._native = _runtime.Online(**native_options(options))
        # No thread may be left when the interpreter exits, although objects may be left then.
        weakref.finalize(self, self._native.stop_planning)

    def __enter__(self) -> Online:
        self._native.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Literal[False]:
        if error is not None:
            self._native.fail(str(error))  # It raises the reason if there is a better one.
            return False
        try:
            self._native.end()
        except BaseException:
            self._native.undo()
            raise
        if taken := self._native.report()["planning_time_ns"]:
            why = "the same operations were seen before"
            found = self.report().why_not_planned or "the steps that repeat them follow a plan"
            self._overheads.add(Overhead("plan", why, taken, found))
        return False

    def wait_for_plan(self) -> None:
        """Waits for the search in the background, if one is under way.

        The next step follows the plan that it finds. Call it between two steps that are to be
        measured, or where two runs have to do the same.
        """
        self._native.wait_for_plan()

    def report(self) -> OnlineReport:
        """Returns the peak, the evictions, the re-runs and the time of the last step."""
        return OnlineReport(**self._native.report(), overheads=self._overheads.last())

    def __repr__(self) -> str:
        return f"Online({self.report()})"

    def _repr_html_(self) -> str:
        return fields_html(self.report())


def online(
    *,
    budget: Budget = None,
    heuristic: str = "dtr",
    smallest: int = 512,
    device: torch.device | str = "cpu",
    plan_after: int = 2,
    plans: int = 8,
    time_limit: float | str = 1.0,
    planning_share: float = 0.25,
    plan_in_background: bool = False,
) -> Online:
    """Returns a context manager in which any training step stays inside a budget.

    The step runs as it is written: forward, backward, and more if you like. When memory runs short,
    tensors are evicted that can be made again, and they are made again before an operation reads
    them (Dynamic Tensor Rematerialization). Loss, gradients, buffers and the random state are equal
    to those of plain training to the last bit. Branches and sizes may depend on data.

    A step that does what an earlier one did is planned: once the same operations on the same shapes
    were seen `plan_after` times, the step is planned when it ends, and the steps that repeat it
    follow the plan. Steps with branches follow a plan on each branch that was seen. At the first
    operation that is not the planned one, the step goes on with another plan of the same beginning,
    or without one. Plans change the time alone.

    After an exception, parameters, buffers, gradients and the random state are as before the step.
    Gradients that the step drops before it reads their parameters may be gone.

    It needs PyTorch 2.13 or newer. One step runs at a time in a process, and it runs on one thread;
    its operations may use more. On another device than the CPU the package has to be built for
    CUDA, and the backward pass runs on the thread of the step, too.

    Args:
        budget: All bytes of tensors on the device during the step: parameters, gradients, optimizer
            state, inputs, and whatever else is live. It is a number of bytes, a text such as
            "8 GiB", "auto" for what the device has free, or None for no limit. A share such as
            "60%" is refused, because the peak of plain training is not known.
        heuristic: The way to choose what is evicted: "dtr", "dtr_eq", "local", "lru" or "size".
        smallest: Tensors of fewer bytes are not evicted.
        device: The device whose bytes the budget counts. Tensors elsewhere are never evicted.
        plan_after: How often the same operations must have been seen before they are planned.
            With 0 no step is planned, and neither is one without a budget.
        plans: The number of plans that are kept. The one that was not followed for the longest time
            makes room for a new one.
        time_limit: The time of each search for a plan: seconds, or a text such as "2s".
        planning_share: Behind the first search, another one begins only if searches have taken no
            more than this part of the time of all steps. A search in the background counts when it
            is over, with its time on the clock.
        plan_in_background: A search runs on a thread of its own, one at a time, and steps go on
            without its plan. The first step that begins when the search is over follows the plan.
            Otherwise a search runs on this thread, behind the step.

    Returns:
        The context manager. It may be used for many steps, and as a decorator of the step.

    Raises:
        InputError: An argument is wrong, PyTorch is older than 2.13, or the memory of the device
            cannot be limited.

    Examples:
        >>> online = reprise.online(budget="700 MiB")
        >>> with online:
        ...     loss = nn.functional.cross_entropy(plain(x), y)
        ...     loss.backward()
        >>> evictions = online.report().evictions
    """
    return Online(options_of(online, locals()))
