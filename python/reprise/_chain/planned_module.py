"""Planned modules stand for the modules of a user's model. They have one base class."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from .._planning.arguments import Budget, checked_budget, observe
from .._planning.result import PlanResult, result_of
from .._step.foreseen import ForeseenState
from .._step.interrupt import obeying_interrupts
from .._step.memory import budget_for
from .._step.modules import modules_of
from .._step.overhead import Overheads
from .._step.recording import refuse_planned_model
from .._step.report import StepReport
from .._step.share import is_share
from .._step.stages import NamedStages
from .._step.turns import Turns, in_turn
from ..errors import InputError

# The state_dict() of a module is made from these attributes. A planned module shares them with its
# model.
_SHARED = (
    "_parameters",
    "_buffers",
    "_modules",
    "_non_persistent_buffers_set",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


class PlannedModule(nn.Module):
    """The base class of modules that run planned stages."""

    def __init__(self, source: Any, root: nn.Module | None, options: dict[str, Any]) -> None:
        super().__init__()
        # As children, these two would change the names of the parameters.
        self.__dict__["_root"] = root
        self.__dict__["_source"] = source
        self._options = options
        self._turns = Turns()
        self._overheads = Overheads("the planned model", ("it is the first", "there is no plan"))
        # The runtime's model is made at the first step, for these arguments. It is not saved.
        self._native: Any = None
        self._made_for: Any = None
        self._share_bytes: int | None = None  # that a share of the budget has become
        # A copy knows how many strangers its original had, see _stages(). An original has None.
        self._strangers_of_original: int | None = None
        if root is not None:
            for name in _SHARED:
                self.__dict__[name] = root.__dict__[name]
            self.training = root.training
        else:
            self._register(self._stages())

    def _named(self) -> NamedStages:
        """Returns all stages of the source, with names."""
        raise NotImplementedError

    def _stages(self) -> NamedStages:
        """Returns the stages. Raises InputError in a copy whose stages use the original."""
        stages = self._named()
        of_original = self._strangers_of_original
        if of_original is not None and self._strangers(stages) > of_original:
            raise InputError(
                "this is a copy of a planned model, and a function among its stages uses modules "
                "of the original: a copy of a function is the function itself. Copy the model, "
                "and make the planned one of the copy"
            )
        return stages

    def _strangers(self, stages: NamedStages) -> int:
        """Counts the modules that the stages use and that are no part of this module."""
        root = self.__dict__["_root"]
        own = {id(m) for whole in (self, root) if whole is not None for m in whole.modules()}
        return sum(id(m) not in own for _, stage in stages for m in modules_of(stage))

    def _register(self, stages: NamedStages) -> None:
        """Registers each module of the stages as a child once, under the name of its stage."""
        seen: set[int] = set()
        for name, stage in stages:
            modules = [m for m in modules_of(stage) if id(m) not in seen]
            for i, found in enumerate(modules):
                seen.add(id(found))
                plain = name.replace(".", "_")
                self.add_module(plain if len(modules) == 1 else f"{plain}_{i}", found)

    def _make_native(
        self,
        make: Callable[..., Any],
        *stages: Any,
        loss: Any,
        device: torch.device,
        **more: Any,
    ) -> None:
        """Makes the runtime's model of these stages, with the options of this module."""
        options = dict(self._options)
        foreseen = ForeseenState(self, lambda module: module.parameters())
        foreseen.look()
        self._overheads.begin_anew()
        if self._share_bytes is not None:  # The stages are others now, and the budget is the same.
            options["budget"] = self._share_bytes
        self._native = make(
            *stages,
            budget=budget_for(options.pop("budget"), device),
            loss=loss,
            observer=observe(options.pop("observer")),
            foreseen=foreseen,
            **{name: value for name, value in options.items() if name != "loss"},
            **more,
        )

    @in_turn
    def set_budget(self, budget: Budget) -> None:
        """Sets the budget for the next steps. The measured costs are kept.

        The next step plans for the budget, and it raises BudgetError if no plan fits.

        Args:
            budget: As for the function that made the module.

        Raises:
            InputError: The value is no budget.
        """
        self._options["budget"] = checked_budget(budget)
        self._share_bytes = None
        if self._native is not None:
            device = next((p.device for p in self.parameters()), torch.device("cpu"))
            self._native.set_budget(budget_for(budget, device))

    def _planned_native(self) -> Any:
        if self._native is None:
            raise InputError("nothing is planned yet; run a step or call plan_for() first")
        return self._native

    @property
    def planned(self) -> PlanResult:
        """The plan in force. Reading it raises InputError while nothing is planned."""
        return result_of(self._planned_native().planned())

    def report(self) -> StepReport:
        """Returns the peaks and the budget of the last step that ran forward and backward.

        Raises:
            InputError: Nothing is planned yet.
        """
        report = self._planned_native().report()
        return StepReport(**(report | {"overheads": self._overheads.last()}))

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        """Takes over what the runtime notes in the scope. Interrupts end the scope."""
        refuse_planned_model()
        try:
            with obeying_interrupts():
                yield
            if self._share_bytes is None and is_share(self._options["budget"]):
                self._share_bytes = self._native.planned()["budget_bytes"]
        finally:
            count = self._native.overhead_count()
            if count != self._overheads.seen:
                self._overheads.follow(self._native.report()["overheads"], count)

    def train(self, mode: bool = True) -> PlannedModule:
        """Sets the train flag of this module and of the model."""
        super().train(mode)
        root = self.__dict__["_root"]
        if root is not None:
            root.training = mode
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Returns the model and the options. A copy measures and plans for itself."""
        strangers = self._strangers(self._named())
        return self.__dict__ | {
            "_native": None,
            "_made_for": None,
            "_strangers_of_original": strangers,
        }
