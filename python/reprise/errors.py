"""The exceptions of Reprise.

An outcome that has to be expected is a value and no exception. A budget that no plan fits, and a
search that ran out of time, are answers: see `PlanResult.termination`.
"""

from __future__ import annotations

from collections.abc import Callable

# Returns the message and the budget, live and requested bytes of the last request that the
# allocator refused. PyTorch keeps only the message of an exception that it hands on; a BudgetError
# finds its numbers here. The module `_torch` sets the function when it loads the runtime.
_last_refusal: Callable[[], tuple[str, int, int, int] | None] | None = None


class Error(Exception):
    """The base class of all exceptions of this package."""


class InputError(Error, ValueError):
    """The caller's input is wrong: a file, an argument, or a model that cannot be used.

    Attributes:
        file: The file that holds the input. It is empty if the input is in no file.
        pointer: The place in the file, as a JSON pointer. It is empty if the place is unknown.
        line: The line of the file, counted from 1. It is 0 if the line is unknown.
    """

    file: str
    pointer: str
    line: int

    def __init__(self, message: str, file: str = "", pointer: str = "", line: int = 0) -> None:
        super().__init__(message)
        self.file = file
        self.pointer = pointer
        self.line = line


class StepMiss(InputError):
    """A captured step was called for something else than it was captured for.

    The inputs, the Python state that the step reads, the numbers that it reads out of tensors, what
    its function does, or the gradients that are there before are not those of a capture. Nothing
    was changed.

    Attributes:
        of_reads: Whether only numbers differ that the step reads out of tensors.
        of_function: Whether lockstep has found that the function does something else.
        of_gradients: Whether there are gradients before the step, which has to be without.
    """

    of_reads: bool
    of_function: bool
    of_gradients: bool

    def __init__(
        self,
        message: str,
        of_reads: bool = False,
        of_function: bool = False,
        of_gradients: bool = False,
    ) -> None:
        super().__init__(message)
        self.of_reads = of_reads
        self.of_function = of_function
        self.of_gradients = of_gradients


class PeerError(Error, RuntimeError):
    """Another process of the step's group has failed, has ended, or does not answer in time.

    The message names the rank and what was waited for. The captured step or the pipeline cannot be
    used any more: all ranks make a new group, load model and optimizer, and make the step again.
    """


class BudgetError(Error, MemoryError):
    """A step asked for more bytes than its budget, or no plan fits the budget.

    After a step that failed, the parameters, gradients, buffers and the random state are as they
    were before the step. A step that was captured with an optimizer may have updated some
    parameters by then; its exception names them.

    Attributes:
        budget: The budget in bytes.
        live: The bytes that were live when the request was refused.
        requested: The bytes that the refused request asked for. If no plan fits the budget, this is
            the smallest budget that a plan was found for, or 0 if none was found.
    """

    budget: int
    live: int
    requested: int

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
    """A promise of this library is broken. This is always a defect of Reprise; please report it."""
