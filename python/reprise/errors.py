"""The exceptions of Reprise. Expected outcomes (infeasible, out of time) are values: PlanResult."""

from __future__ import annotations

from collections.abc import Callable

# Message, budget, live and requested bytes of the request that the allocator refused last. Where
# PyTorch hands its exception on, only the message survives. Set when the runtime is loaded.
_last_refusal: Callable[[], tuple[str, int, int, int] | None] | None = None


class Error(Exception):
    """All exceptions of this package."""


class InputError(Error, ValueError):
    """The caller's input is wrong: a file, an argument, a model that cannot be used.

    `file`, `pointer` (a JSON pointer) and `line` say where; empty and 0 are unknown.
    """

    def __init__(self, message: str, file: str = "", pointer: str = "", line: int = 0) -> None:
        super().__init__(message)
        self.file = file
        self.pointer = pointer
        self.line = line


class BudgetError(Error, MemoryError):
    """The run asked for more bytes than its budget. The model, its gradients and the random state
    are as they were before the step.

    All in bytes: `budget`, what was `live`, what the refused request asked for (`requested`). For a
    budget that no plan fits, `requested` is the smallest budget that a plan was found for.
    """

    def __init__(self, message: str, budget: int = 0, live: int = 0, requested: int = 0) -> None:
        super().__init__(message)
        if budget == 0 and _last_refusal is not None:
            last = _last_refusal()
            if last is not None and message.startswith(last[0]):
                budget, live, requested = last[1:]
        self.budget = budget
        self.live = live
        self.requested = requested


class InternalError(Error, RuntimeError):
    """A promise of this library is broken; always a defect worth reporting."""
