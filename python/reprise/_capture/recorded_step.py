"""The recording behind a captured step: it is made, compared, run, and made again on a miss."""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from .._step.foreseen import ForeseenState
from .._step.interrupt import obeying_interrupts
from .._step.modules import called_modules, outermost
from .._step.overhead import Overheads
from .._step.process_group import telling
from .._step.python_state import PythonState
from .._step.tree import Tree, flatten, rebuild
from .._step.turns import OfThisProcess, Turns
from .._torch import _runtime
from ..errors import InputError, StepMiss
from .guards import Guards
from .recorded import RecordedFunction
from .request import Request

_FIRST = "it is the first one"


class RecordedStep(OfThisProcess):
    """A step that follows the user's function: its recording now, and who notices a difference.

    A call compares what the recording stands for. If something differs, the step is refused or
    recorded again, as the request says.
    """

    # Reasons for work of the runtime that is no news, as `Overheads` takes them.
    _EXPECTED: tuple[str, ...] = (_FIRST, "plan() was called")

    def __init__(
        self, request: Request, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> None:
        self._turns = Turns()
        self._request = request
        self._modules = request.modules
        self._differences: list[str] = []
        self._missed = ""  # the last difference, whoever has found it
        self._plan_options: dict[str, Any] | None = None
        self._overheads = Overheads(f"the step '{request.name}'", self._EXPECTED)
        self._foreseen = ForeseenState(
            self,
            lambda step: (p for module in step._modules for p in module.parameters()),
            request.optimizer,
        )
        self._begin(arguments, keywords)

    def _begin(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self._capture(*flatten((arguments, keywords), "the sample"), _FIRST)

    def _capture(self, tensors: list[torch.Tensor], tree: Tree, why: str) -> None:
        """Records the step for these tensors in this structure, and keeps the recording."""
        with self._overheads.noting("capture", why) as found:
            self._capture_now(tensors, tree)
            found.append(self._found_by_capture())
        self._follow_overheads(captures=False)

    def _found_by_capture(self) -> str:
        """Returns what the runtime says of its last capture."""
        rows = self._native.report()["overheads"]
        return next((row[3] for row in reversed(rows) if row[0] == "capture"), "recorded")

    def _follow_overheads(self, captures: bool = True) -> None:
        """Takes over what the runtime has noted."""
        count = self._native.overhead_count()
        if count != self._overheads.seen:
            self._overheads.follow(self._native.report()["overheads"], count, captures)

    def _capture_now(self, tensors: list[torch.Tensor], tree: Tree) -> None:
        if (before := self.__dict__.get("_native")) is not None:
            before.fetch_parameters()  # The function reads them.
        if not tensors:
            raise InputError("a captured step needs at least one input tensor")
        recorded = RecordedFunction(self._request.step, tree, self._modules)
        self._foreseen.look()
        native, guards = self._record_all(
            recorded, tensors, self._request.options(tensors[0].device, self._foreseen)
        )
        # Nothing can fail any more. If something failed above, the recording before stays whole.
        recorded.after_run = None
        self._device, self._recorded, self._native = tensors[0].device, recorded, native
        self._guards = guards
        self._overheads.begin_anew()
        self._inputs = len(tensors)
        self._structures: dict[int, Tree] = {}  # of results, by number of the outcome
        self._structure()
        self._follow(recorded)
        self._warn_of_cache()

    def _follow(self, recorded: RecordedFunction) -> None:
        """Tells the function when it is compared with its recording, and with which result."""
        # The runtime holds the function, and Python's collector does not see that.
        alive, structures = weakref.ref(self._native), self._structures

        def comparing() -> bool:
            native = alive()
            return native is not None and native.comparing()

        def structure() -> Tree | None:
            native = alive()
            return None if native is None else structures.get(native.outcomes()[0])

        recorded.comparing, recorded.recorded = comparing, structure

    def _record_all(
        self, recorded: RecordedFunction, tensors: list[torch.Tensor], options: dict[str, Any]
    ) -> tuple[_runtime.CapturedStep, Guards]:
        """Records the step. It is recorded again if it calls modules that it does not show."""
        with self._leaving_no_trace():
            with called_modules() as called:
                native, guards = self._record(recorded, tensors, options)
            if not self._take_hidden(called):
                return native, guards
            del native, guards, called
            return self._record(recorded, tensors, options)

    @contextlib.contextmanager
    def _leaving_no_trace(self) -> Iterator[None]:
        """Puts back what the runs of a recording that fails have changed in Python."""
        before = PythonState([*self._functions(), *self._modules])
        try:
            yield
        except BaseException:
            before.put_back()
            raise

    def _take_hidden(self, called: list[torch.nn.Module]) -> bool:
        """Takes over modules that were called and are not known. Returns whether there are any."""
        known = {id(part) for module in self._modules for part in module.modules()}
        hidden = [module for module in called if id(module) not in known]
        self._modules = [*self._modules, *outermost(hidden)]
        return bool(hidden)

    def _capture_outcome(self, tensors: list[torch.Tensor], tree: Tree) -> None:
        """Records what the step does for the numbers that it reads now, beside other outcomes."""
        self._missed = why = "the step reads other numbers out of tensors"
        with self._overheads.noting("capture", why) as found:
            self._capture_outcome_now(tensors, tree)
            found.append(self._found_by_capture())
        self._follow_overheads(captures=False)

    def _capture_outcome_now(self, tensors: list[torch.Tensor], tree: Tree) -> None:
        guards = Guards(self._functions(), self._modules, self._request.unguarded, self._guards)
        self._recorded.after_run = guards.after_run
        with self._leaving_no_trace():
            try:
                with called_modules() as called, guards.recording(), obeying_interrupts():
                    self._native.capture_outcome(tensors)
            finally:
                self._recorded.after_run = None
            try:
                guards.settle()
            except InputError:
                self._native.forget_outcome()
                raise
        self._structure()
        self._warn_of_cache()
        if self._take_hidden(called):
            self._capture_now(tensors, tree)  # The modules are part of what every outcome is for.
        else:
            self._guards = guards

    def _warn_of_cache(self) -> None:
        """Warns if something was wrong with the cache at the capture."""
        if warning := self._native.cache_use()[1]:
            warnings.warn(warning, RuntimeWarning, stacklevel=4)

    def _structure(self) -> Tree:
        """Returns the structure of what the outcome that ran last returns."""
        numbers = self._native.outcomes()
        if numbers[0] not in self._structures:  # It was captured since the last call.
            for number in self._structures.keys() - numbers:
                del self._structures[number]
            assert self._recorded.outputs is not None
            self._structures[numbers[0]] = self._recorded.outputs
        return self._structures[numbers[0]]

    def _record(
        self, recorded: RecordedFunction, tensors: list[torch.Tensor], options: dict[str, Any]
    ) -> tuple[_runtime.CapturedStep, Guards]:
        """Records the step once, and watches what it reads from Python."""
        guards = Guards(self._functions(), self._modules, self._request.unguarded)
        recorded.after_run = guards.after_run
        with guards.recording(), obeying_interrupts(), self._explaining():
            native = self._make(recorded, tensors, options | {"modules": self._modules})
        with telling(native):
            guards.settle()
        return native, guards

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        """Names the modules that make each call of a step differ from the one before."""
        try:
            yield
        except InputError as error:
            counting = [
                name
                for module in self._modules
                for name, part in module.named_modules()
                if isinstance(part, _BatchNorm) and part.momentum is None and part.training
            ]
            if not counting or "host read" not in str(error):
                raise
            raise InputError(
                f"the step cannot be captured: the batch norm {counting[0] or 'of the step'} has "
                "momentum=None, so it reads the number of its batches, which is another one at "
                "each call. Give it a momentum, or run the step in online mode"
            ) from error

    def _functions(self) -> list[Callable[..., Any]]:
        """Returns the user's functions that a call stands for."""
        return [self._request.step]

    def _make(
        self, recorded: RecordedFunction, tensors: list[torch.Tensor], options: dict[str, Any]
    ) -> _runtime.CapturedStep:
        """Makes the recording. It is planned, too, if a plan was asked for before."""
        native = _runtime.CapturedStep(recorded, tensors, **options)
        if self._plan_options is not None:
            native.plan(**self._plan_options)
        return native

    def _call(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        tensors, tree = flatten((arguments, keywords), "the input")
        if difference := self._native.first_difference(self._difference(tree)):
            self._miss(difference, tensors, tree)
        try:
            return self._run_outcomes(tensors, tree)
        finally:
            self._follow_overheads()

    def _difference(self, tree: Tree) -> str:
        """Returns what differs from the capture in Python, or an empty text."""
        if tree != self._recorded.inputs:
            return "its inputs have another structure or other numbers"
        if difference := self._guards.difference():
            return difference
        if not self._native.refresh():
            return "a module has other children, parameters or buffers"
        return ""

    def _run_outcomes(self, tensors: list[torch.Tensor], tree: Tree) -> Any:
        """Runs the recording, and records one more outcome if the step reads other numbers."""
        outputs = self._run(tensors, tree)
        if outputs is None:  # The step reads other numbers out of tensors than it did so far.
            self._capture_outcome(tensors, tree)
            outputs = self._run(tensors, tree)
        if outputs is None:
            raise InputError(
                "the step cannot be captured: a number that it reads out of a tensor changes from "
                "run to run, although the inputs and the random state are the same"
            )
        return rebuild(self._structure(), outputs)

    def _run(self, tensors: list[torch.Tensor], tree: Tree) -> list[torch.Tensor] | None:
        """Runs the recording. Captures the step again if lockstep finds a difference."""
        try:
            with obeying_interrupts():
                return self._native.run(tensors)
        except StepMiss as miss:
            if not self._request.recapture or not miss.of_function:
                raise
            self._missed = str(miss)
            self._differences.append(self._missed)
            warnings.warn(f"{miss}. The step is captured again", RuntimeWarning, stacklevel=3)
        self._capture(tensors, tree, self._differences[-1])
        try:
            return self._native.run(tensors)
        except StepMiss as miss:
            if not miss.of_function:
                raise
            raise InputError(
                "the step cannot be captured, because it does something else right after a "
                f"capture: {miss}"
            ) from miss

    def _miss(self, difference: str, tensors: list[torch.Tensor], tree: Tree) -> None:
        """Refuses a call that differs from the capture, or captures the step again for it."""
        if not self._request.recapture:
            raise StepMiss(f"the step was captured for something else: {difference}")
        self._missed = difference
        self._capture(tensors, tree, difference)
