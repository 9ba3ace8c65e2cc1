"""A step that is followed: the user's function runs at every call, and the plan does its work."""

from __future__ import annotations

import dataclasses
import weakref
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils.checkpoint import set_checkpoint_early_stop

from .._planning.result import PlanResult
from .._step.interrupt import note_interrupt, obeying_interrupts
from .._step.share import FixedShare, bytes_of, is_share
from .._step.tree import flatten, without_history
from .._torch import _runtime
from ..errors import InputError
from .captured_step import CapturedStep
from .explanation import StepExplanation
from .host_copies import host_copies


class FollowedFunction:
    """The user's function with the arguments of the call under way.

    The runtime calls it without knowing its arguments, and gets no result: what the function
    returns is kept here, as all else that the program keeps.
    """

    def __init__(self, step: Any) -> None:
        self._step = step
        self.began = False  # Says whether the function of the last call ran, or a part of it.
        self.added_to: set[int] = set()  # the ids of leaves with gradients from before
        self.arguments: tuple[Any, ...] = ()
        self.keywords: dict[str, Any] = {}
        self.result: Any = None

    def __call__(self, _tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        self.began = True
        # A checkpoint that stops early would leave its last operation half-way.
        with set_checkpoint_early_stop(False), host_copies(self.added_to):
            try:
                self.result = self._step(*self.arguments, **self.keywords)
            except BaseException as error:
                note_interrupt(error)
                raise
        return []


class _NoGuards:
    """A followed step compares nothing beforehand."""

    def names(self) -> list[str]:
        return []

    def by_kind(self) -> dict[str, tuple[str, ...]]:
        return {}

    def unwatched(self) -> tuple[str, ...]:
        return ()


class FollowedStep(CapturedStep):
    """A training step whose function runs at every call. Made by `capture(follow=True)`.

    It is called like the function, and all that the function does in Python happens once a call.
    Numbers that it reads out of tensors, and numbers that it gives to operations, are those of the
    call. The first call is recorded while it runs; the calls that follow are planned.

    Attributes:
        share: The share of plain training's peak as bytes, or None if there is none, or none yet.
    """

    share: FixedShare | None

    _EXPECTED = ("it is the first one", "the inputs are others", "the step has other shapes")

    def _begin(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self.share = None
        self._names_share = False
        self._first_bytes: int | None = None  # of the inputs of the first call
        self._guards: Any = _NoGuards()
        self._function = FollowedFunction(self._request.step)
        tensors = self._tensors(arguments, keywords)
        self._device = tensors[0].device
        self._inputs = len(tensors)
        # The runtime does not keep the function alive: Python's collector sees nothing there.
        self._native = _runtime.CapturedStep(
            weakref.proxy(self._function),
            tensors,
            **self._request.options(self._device, self._foreseen),
            modules=self._modules,
            follow=True,
        )

    def _tensors(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> list[torch.Tensor]:
        """Returns the tensors of a call. They tell recordings apart, and the device."""
        try:
            tensors, _ = flatten((arguments, keywords), "the input")
        except InputError:  # Objects of the user's own.
            tensors = []
        if tensors:
            return tensors
        parameters = (p for module in self._modules for p in module.parameters())
        device = next((p.device for p in parameters), torch.device("cpu"))
        return [torch.empty(0, device=device)]

    def plan(self, **options: Any) -> PlanResult | None:  # type: ignore[override]
        """Plans the step for a budget, with the arguments of `CapturedStep.plan()`.

        Before the first call there is no recording. The step is then planned before its second
        call, and None is returned.
        """
        with self._turns:
            return self._plan(**options)

    def _plan(self, **options: Any) -> PlanResult | None:
        self.share = None
        if self._native.is_recorded():
            return super().plan(**options)
        options = self._for_runtime({"budget": None} | options)
        self._names_share = is_share(options["budget"])
        self._native.plan_ahead(**options)
        return None

    def _note_share(self, tensors: list[torch.Tensor]) -> None:
        """Keeps the bytes of the share as soon as a call has them. The first call runs plain."""
        if self._first_bytes is None:
            self._first_bytes = bytes_of(tensors)
            self._foreseen.look()
        if self._names_share and self.share is None:
            budget = self.report().budget_bytes
            self.share = None if budget is None else FixedShare(budget, self._first_bytes)

    def _share_told(self, tensors: list[torch.Tensor]) -> AbstractContextManager[None]:
        """Lets an error of the budget say so if the inputs are larger than those of the share."""
        if not self._names_share or self._first_bytes is None:
            return nullcontext()
        return (self.share or FixedShare(0, self._first_bytes)).told(tensors)

    def _leaves(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Returns the leaves that the step may have gradients for, as far as it shows them."""
        leaves: list[torch.Tensor] = [p for module in self._modules for p in module.parameters()]
        return leaves + [t for t in tensors if t.is_leaf]

    def _last_miss(self) -> str:
        """Returns the difference at the last call that the recordings did not fit, or ""."""
        return self.report().last_difference

    def has_begun(self) -> bool:
        """Says whether the function of the last call ran, or a part of it."""
        return self._function.began

    def explain(self) -> StepExplanation:
        """Says what the step's plan does. Every call is compared with its recording."""
        found = super().explain()
        return dataclasses.replace(found, lockstep="always", lockstep_steps=found.steps)

    def _input_constants(self) -> int:
        return 0  # The function gets them at each call.

    def _call(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        function = self._function
        function.began = False
        tensors = self._tensors(arguments, keywords)
        if not self._native.refresh():
            self._native.use_modules(self._modules)
        if not self._native.is_recorded():
            self._foreseen.look()
        function.arguments, function.keywords = arguments, keywords
        function.added_to = {id(leaf) for leaf in self._leaves(tensors) if leaf.grad is not None}
        try:
            with obeying_interrupts(), self._share_told(tensors):
                self._native.run(tensors)
            self._note_share(tensors)
            return without_history(function.result)
        finally:
            function.arguments, function.keywords, function.result = (), {}, None
            self._follow_overheads()
