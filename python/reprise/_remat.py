"""Chain mode: an nn.Sequential or a list of stages as one module that trains inside a budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from ._model import Chain, Path, Profile, RunLog
from ._planning import (
    Budget,
    Observer,
    PlanResult,
    checked,
    nanoseconds,
    observe,
    report_html,
    result_of,
)
from ._torch import StepReport, _runtime, budget_for, modules_of
from ._tree import Tree, flatten, rebuild
from .errors import InputError

Stages = nn.Sequential | nn.ModuleList | Sequence[Callable[..., Any]]
NamedStages = list[tuple[str, Callable[..., Any]]]

# What makes state_dict() of a module; the planned module shares them with the model.
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


def named_stages(model: Any, prefix: str = "") -> NamedStages:
    """The stages of a Sequential or a list, those of inner Sequentials in their place."""
    items = model._modules.items() if isinstance(model, nn.Module) else enumerate(model)
    stages: NamedStages = []
    for name, stage in items:
        if not callable(stage):
            raise InputError(
                f"stage {prefix}{name} is no module or function but a {type(stage).__name__}"
            )
        if _is_plain_sequential(stage):
            stages += named_stages(stage, f"{prefix}{name}.")
        else:
            stages.append((f"{prefix}{name}", stage))
    return stages


def _is_plain_sequential(stage: Any) -> bool:
    """A Sequential that does nothing but call its children."""
    return (
        isinstance(stage, nn.Sequential)
        and type(stage).forward is nn.Sequential.forward
        and not (stage._forward_hooks or stage._forward_pre_hooks)
        and not (stage._backward_hooks or stage._backward_pre_hooks)
    )


def _check_model(model: Any) -> None:
    listed = _is_plain_sequential(model) or isinstance(model, nn.ModuleList)
    if isinstance(model, nn.Module) and not listed:
        raise InputError(
            f"a {type(model).__name__} does not say what its stages are: give an nn.Sequential "
            "without hooks, or the list of its stages with `module=`, or use reprise.capture()"
        )
    if not isinstance(model, (nn.Module, list, tuple)):
        raise InputError(f"a model is an nn.Sequential or a list of stages, not {type(model)!r}")
    if not named_stages(model):
        raise InputError("the model has no stage")


class _StageCall:
    """A stage between lists of tensors. `trees` has the structure of each boundary: this one reads
    that of its input and writes that of its output."""

    def __init__(
        self, name: str, stage: Callable[..., Any], position: int, trees: list[Tree | None]
    ) -> None:
        self.name = name
        self.stage = stage
        self.position = position
        self.trees = trees

    def __call__(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        tree = self.trees[self.position]
        assert tree is not None
        value = rebuild(tree, tensors)
        try:
            # The first is called as the model is; the others as nn.Sequential calls its children.
            output = self.stage(*value[0], **value[1]) if self.position == 0 else self.stage(value)
        except Exception as error:
            if hasattr(error, "add_note"):  # Python 3.11
                error.add_note(f"in stage '{self.name}' of a planned model")
            raise
        what = f"what stage '{self.name}' returns"
        result, tree = flatten(output, what)
        if tree.constants():
            raise InputError(f"{what} holds {tree.constants()[0]!r}; stages hand over tensors only")
        self.trees[self.position + 1] = tree
        return result


class _Loss:
    """The user's loss, on the list of output tensors."""

    def __init__(self, loss: Callable[[Any], torch.Tensor], trees: list[Tree | None]) -> None:
        self.loss = loss
        self.trees = trees

    def __call__(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        tree = self.trees[-1]
        assert tree is not None
        loss: Any = self.loss(rebuild(tree, tensors))
        if not isinstance(loss, torch.Tensor):
            raise InputError(f"loss= must return a tensor, not {loss!r}")
        return loss


def _stage_arguments(
    stages: NamedStages, trees: list[Tree | None]
) -> list[tuple[str, Callable[..., Any], list[nn.Module]]]:
    return [
        (name, _StageCall(name, stage, i, trees), modules_of(stage))
        for i, (name, stage) in enumerate(stages)
    ]


def _loss_argument(loss: Any, trees: list[Tree | None]) -> Any:
    return None if loss is None else _Loss(loss, trees)


def as_arguments(sample: Any) -> tuple[Any, ...]:
    return tuple(sample) if isinstance(sample, (tuple, list)) else (sample,)


class Remat(nn.Module):
    """A model that trains inside a budget. Parameters, state_dict keys, to(), train() and eval()
    are the model's, and changes of the one are changes of the other. Without gradients forward()
    just runs the stages. Another shape, type or flag is measured and planned when it comes. Made by
    remat()."""

    def __init__(self, model: Any, module: nn.Module | None, options: dict[str, Any]) -> None:
        super().__init__()
        root = model if module is None and isinstance(model, nn.Module) else module
        # Not as children, which would change the names of parameters.
        self.__dict__["_root"] = root
        self.__dict__["_source"] = model if isinstance(model, nn.Module) else list(model)
        self._options = options
        self._native: Any = None  # made at the first step, and not saved
        self._made_for: Any = None
        self._trees: list[Tree | None] = []
        self._strangers_of_original: int | None = None  # of a copy
        if root is not None:
            for name in _SHARED:
                self.__dict__[name] = root.__dict__[name]
            self.training = root.training
        else:
            self._register(self._stages())

    def _stages(self) -> NamedStages:
        stages = named_stages(self.__dict__["_source"])
        of_original = self._strangers_of_original
        if of_original is not None and self._strangers(stages) > of_original:
            raise InputError(
                "this is a copy of a planned model, and a function among its stages uses modules "
                "of the original: a copy of a function is the function itself. Copy the model, "
                "and make the planned one of the copy"
            )
        return stages

    def _strangers(self, stages: NamedStages) -> int:
        """Modules that the stages use and that are no part of this one."""
        root = self.__dict__["_root"]
        own = {id(m) for whole in (self, root) if whole is not None for m in whole.modules()}
        return sum(id(m) not in own for _, stage in stages for m in modules_of(stage))

    def _register(self, stages: NamedStages) -> None:
        """The modules of a list of stages as children, each once, under the stages' names."""
        seen: set[int] = set()
        for name, stage in stages:
            modules = [m for m in modules_of(stage) if id(m) not in seen]
            for i, found in enumerate(modules):
                seen.add(id(found))
                plain = name.replace(".", "_")
                self.add_module(plain if len(modules) == 1 else f"{plain}_{i}", found)

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        if not torch.is_grad_enabled():
            return self._run_plain(arguments, keywords)
        native, tensors = self._ready(arguments, keywords)
        outputs = native.forward(tensors)
        tree = self._trees[-1]
        assert tree is not None
        return rebuild(tree, outputs)

    def _run_plain(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        stages = self._stages()
        value = stages[0][1](*arguments, **keywords)
        for _, stage in stages[1:]:
            value = stage(value)
        return value

    def _ready(
        self, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[Any, list[torch.Tensor]]:
        """The runtime's model for these stages and inputs: a new one when either has changed."""
        tensors, tree = flatten((arguments, keywords), "the input")
        if not tensors:
            raise InputError("the model was given no tensor")
        stages = self._stages()
        made_for = (tree, [(name, id(stage)) for name, stage in stages])
        if self._native is None or self._made_for != made_for or not self._native.refresh():
            self._trees = [tree] + [None] * len(stages)
            options = dict(self._options)
            self._native = _runtime.Remat(
                _stage_arguments(stages, self._trees),
                budget=budget_for(options.pop("budget"), tensors[0].device),
                loss=_loss_argument(options.pop("loss"), self._trees),
                observer=observe(options.pop("observer")),
                **options,
            )
            self._made_for = made_for
        return self._native, tensors

    def plan_for(self, *arguments: Any, **keywords: Any) -> PlanResult:
        """Measures and plans for inputs like these, without running a step. BudgetError when no
        plan fits, with the smallest budget that has one."""
        native, tensors = self._ready(arguments, keywords)
        native.plan_for(tensors)
        return result_of(native.planned())

    def set_budget(self, budget: Budget) -> None:
        """From the next step on, which plans for it: BudgetError then, if no plan fits. What was
        measured is kept."""
        self._options["budget"] = checked(budget)
        if self._native is not None:
            device = next((p.device for p in self.parameters()), torch.device("cpu"))
            self._native.set_budget(budget_for(budget, device))

    def _planned_native(self) -> Any:
        if self._native is None:
            raise InputError("nothing is planned yet; run a step or call plan_for() first")
        return self._native

    @property
    def planned(self) -> PlanResult:
        """The plan in force. InputError when nothing was planned yet."""
        return result_of(self._planned_native().planned())

    @property
    def chain(self) -> Chain:
        """What was measured, as a problem."""
        return Chain.from_json(self._planned_native().chain())

    def profile(self) -> Profile:
        """What was measured, and how."""
        return Profile.from_json(self._planned_native().profile())

    def save_report(self, path: Path) -> None:
        """The plan in force as a page to look at: see report_html()."""
        plan = self.planned.plan
        if plan is None:
            raise InputError(
                "nothing is planned yet for this budget; run a step or call plan_for() first"
            )
        report_html(self.profile(), plan, run_log=self.run_log(), path=path)

    def log_steps(self, steps: int = 5) -> None:
        """Measures the next so many steps run by run, for run_log() and the report."""
        self._planned_native().log_steps(steps)

    def run_log(self) -> RunLog | None:
        """What the runs of the plan in force took in those steps; None before the first."""
        text = self._planned_native().run_log()
        return None if text is None else RunLog.from_json(text)

    def report(self) -> StepReport:
        """What the last step that ran forward and backward took."""
        return StepReport(**self._planned_native().report())

    def train(self, mode: bool = True) -> Remat:
        super().train(mode)
        root = self.__dict__["_root"]
        if root is not None:
            root.training = mode
        return self

    def __getstate__(self) -> dict[str, Any]:
        """The model and what was asked for; a copy measures and plans for itself."""
        strangers = self._strangers(named_stages(self.__dict__["_source"]))
        return self.__dict__ | {
            "_native": None,
            "_made_for": None,
            "_trees": [],
            "_strangers_of_original": strangers,
        }


def remat(
    model: Stages,
    sample: Any,
    *,
    budget: Budget = None,
    module: nn.Module | None = None,
    loss: Callable[[Any], torch.Tensor] | None = None,
    alternatives: Sequence[str] | None = None,
    planner: str = "chain",
    time_limit: float | str = 10.0,
    enforce: bool = True,
    output_held: bool = True,
    name: str = "model",
    observer: Observer | None = None,
) -> Remat:
    """A module that computes what the model does and trains inside a budget of all device bytes:
    parameters, gradients, optimizer state, the batch, and whatever else is live.

    `model`: an nn.Sequential (inner ones become stages, too), or a list of stages: modules or
    functions, each called with what the one before returned. `sample`: an input, or a tuple of
    them; it is measured on, and not changed. `budget`: bytes, "8 GiB", "60%" of plain training's
    peak, "auto" (what the device has free), or None for no limit.

    `module`: of a list of stages, the module that they are parts of; parameters and state_dict keys
    are then its. `loss`: what training does with the output; its memory is planned for (default:
    cross-entropy). `enforce`: on the CPU, a request beyond the budget raises BudgetError and leaves
    the model as it was. `output_held=False`: the output does not outlive the loss, as in
    `loss = f(model(x))`. `alternatives`: the kinds (names of alternatives() that are `in_chain`) of
    ways for a stage to keep less for its backward, from which the planner chooses for each; None is
    all of them, [] none. They leave the same bits.

    BudgetError when no plan fits, with the smallest budget that has one.
    """
    _check_model(model)
    options = {
        "budget": budget,
        "loss": loss,
        "alternatives": alternatives,
        "planner": planner,
        "time_limit_ns": nanoseconds(time_limit),
        "enforce": enforce,
        "output_held": output_held,
        "name": name,
        "observer": observer,
    }
    planned = Remat(model, module, options)
    planned.plan_for(*as_arguments(sample))
    return planned


def profile(
    model: Stages,
    sample: Any,
    *,
    loss: Callable[[Any], torch.Tensor] | None = None,
    alternatives: Sequence[str] | None = None,
    output_held: bool = True,
    name: str = "model",
    observer: Observer | None = None,
) -> Profile:
    """Measures a model (as for remat()) into a chain, without planning for a budget."""
    _check_model(model)
    tensors, tree = flatten((as_arguments(sample), {}), "the sample")
    stages = named_stages(model)
    trees: list[Tree | None] = [tree] + [None] * len(stages)
    return Profile.from_json(
        _runtime.profile(
            _stage_arguments(stages, trees),
            tensors,
            loss=_loss_argument(loss, trees),
            alternatives=alternatives,
            name=name,
            output_held=output_held,
            observer=observe(observer),
        )
    )
