"""Chain mode: a model that is a sequence of stages, as one module that trains inside a budget."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from .._planning.arguments import Budget, Observer, native_options, options_of
from .._planning.chain import Chain
from .._planning.document import Path
from .._planning.measured import Profile, RunLog
from .._planning.report import report_html
from .._planning.result import PlanResult, result_of
from .._step.stages import (
    NamedStages,
    Stages,
    as_arguments,
    check_model,
    loss_argument,
    named_stages,
    stage_arguments,
)
from .._step.tree import Tree, flatten, rebuild
from .._step.turns import in_turn
from .._torch import _runtime
from ..errors import InputError
from .planned_module import PlannedModule
from .sharded import ShardedStages
from .shared_work import shared_argument


class Remat(PlannedModule):
    """A model that trains inside a budget. Made by `remat()`.

    Parameters, buffers, children, `state_dict()`, `to()`, `train()` and `eval()` are those of the
    model: a change of the one is a change of the other. Under `no_grad()` a call runs the stages
    and no plan. When inputs of another shape or type come, or a train flag has changed, the module
    measures and plans again.
    """

    _trees: list[Tree | None]  # The structures of the boundaries.
    _sharded: ShardedStages | None  # Of the runtime's model.

    def __init__(
        self, model: Any, module: nn.Module | None, options: dict[str, Any], group: Any = None
    ) -> None:
        root = model if module is None and isinstance(model, nn.Module) else module
        self.__dict__["_trees"] = []
        self.__dict__["_sharded"] = None
        self.__dict__["_group"] = group
        super().__init__(model if isinstance(model, nn.Module) else list(model), root, options)

    def _named(self) -> NamedStages:
        return named_stages(self.__dict__["_source"])

    @in_turn
    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        """Runs the model. With gradients enabled this is the forward half of a planned step.

        Args:
            *arguments: The arguments of the first stage.
            **keywords: The keyword arguments of the first stage.

        Returns:
            The value that the last stage returns.

        Raises:
            BudgetError: No plan fits, or a request for memory was refused.
            InputError: The inputs or a stage cannot be used.
        """
        if not torch.is_grad_enabled():
            return self._run_plain(arguments, keywords)
        native, tensors = self._ready(arguments, keywords)
        with self._noting():
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
        """Returns the runtime's model, and the tensors of the arguments.

        The runtime's model is made anew if the stages, the structure of the arguments, or the
        parameters and buffers of a module have changed.
        """
        tensors, tree = flatten((arguments, keywords), "the input")
        if not tensors:
            raise InputError("the model was given no tensor")
        stages = self._stages()
        if self._sharded is not None:
            self._sharded.settle()
        made_for = (tree, [(name, id(stage)) for name, stage in stages])
        if self._native is None or self._made_for != made_for or not self._native.refresh():
            self._trees = [tree] + [None] * len(stages)
            self._sharded = ShardedStages.find(stages, self.__dict__["_root"])
            found = stage_arguments(stages, self._trees)
            calls: list[Callable[..., Any]] = [call for _, call, _ in found]
            if self._sharded is not None:
                calls = self._sharded.calls(calls)
            self._make_native(
                _runtime.Remat,
                [(name, call, own) for (name, _, own), call in zip(found, calls, strict=True)],
                loss=loss_argument(self._options["loss"], self._trees),
                device=tensors[0].device,
                sharded=None if self._sharded is None else self._sharded.argument(),
                shared=self._shared_work(stages, calls, tensors),
            )
            self._made_for = made_for
        return self._native, tensors

    def _shared_work(
        self, stages: NamedStages, calls: list[Callable[..., Any]], sample: list[torch.Tensor]
    ) -> Any:
        """Returns how the ranks share out the work of stages, or None if they do not."""
        group = self.__dict__["_group"]
        if group is None:
            return None
        if self._sharded is not None:
            raise InputError(
                "process_group= shares out the work of stages that are whole on each rank, and "
                "fully_shard was applied to these; leave process_group= out"
            )
        return shared_argument(stages, calls, group, sample)

    @in_turn
    def plan_for(self, *arguments: Any, **keywords: Any) -> PlanResult:
        """Measures and plans for inputs like these, without running a step.

        Raises:
            BudgetError: No plan fits. Its attribute `requested` is the smallest budget that has a
                plan.
            InputError: The inputs or a stage cannot be used.

        Examples:
            >>> result = model.plan_for(torch.randn(4096, 128))
        """
        native, tensors = self._ready(arguments, keywords)
        with self._noting():
            native.plan_for(tensors)
        return result_of(native.planned())

    @property
    def chain(self) -> Chain:
        """The measured chain. Reading it raises InputError while nothing is planned."""
        return Chain.from_json(self._planned_native().chain())

    def profile(self) -> Profile:
        """Returns the measured chain, and how it was measured.

        Raises:
            InputError: Nothing is planned yet.
        """
        return Profile.from_json(self._planned_native().profile())

    def save_report(self, path: Path) -> None:
        """Writes the plan in force to a file as an HTML page, as `report_html()` does.

        Raises:
            InputError: There is no plan yet, or the file cannot be written.
        """
        plan = self.planned.plan
        if plan is None:
            raise InputError(
                "nothing is planned yet for this budget; run a step or call plan_for() first"
            )
        machine = self.machine()
        report_html(self.profile(), plan, run_log=self.run_log(), machine=machine, path=path)

    def machine(self) -> dict[str, Any] | None:
        """Returns the measured memories and channels, in the form of `reprise.machine` files.

        Returns:
            The machine, or None if values cannot move.

        Raises:
            InputError: Nothing is planned yet.
        """
        text = self._planned_native().machine()
        return None if text is None else dict(json.loads(text))

    def log_steps(self, steps: int = 5) -> None:
        """Measures the next steps run by run, for `run_log()` and for the report.

        Args:
            steps: The number of steps to measure.

        Raises:
            InputError: Nothing is planned yet.
        """
        self._planned_native().log_steps(steps)

    def run_log(self) -> RunLog | None:
        """Returns the measured times and bytes of the runs of the plan in force.

        Returns:
            The run log, or None if no step of this plan was measured.

        Raises:
            InputError: Nothing is planned yet.
        """
        text = self._planned_native().run_log()
        return None if text is None else RunLog.from_json(text)

    def __getstate__(self) -> dict[str, Any]:
        """Returns the model and the options. A copy measures and plans for itself."""
        return super().__getstate__() | {"_trees": [], "_sharded": None}


def remat(
    model: Stages,
    sample: Any,
    *,
    budget: Budget = None,
    module: nn.Module | None = None,
    loss: Callable[[Any], torch.Tensor] | None = None,
    alternatives: Sequence[str] | None = None,
    planner: str | None = None,
    time_limit: float | str = 10.0,
    enforce: bool = True,
    output_held: bool = True,
    offload: str | None = None,
    machine: Path | dict[str, Any] | None = None,
    process_group: Any = None,
    name: str = "model",
    observer: Observer | None = None,
) -> Remat:
    """Makes a module that computes what the model does and trains inside a budget.

    Gradients, loss, buffers and the random state are those of plain training to the last bit. On
    the CPU the measured peak is never above the budget.

    Args:
        model: An nn.Sequential, whose inner nn.Sequentials are taken apart, or a list of stages.
            Stages are modules or functions. Each stage is called with what the stage before
            returned: tensors in tuples, lists, dicts or dataclasses.
        sample: An input, or a tuple of inputs. The model is measured on it; it is not changed.
        budget: All device bytes during a step: parameters, gradients, optimizer state, the batch,
            and whatever else is live. It is a number of bytes, a text such as "8 GiB", a share
            such as "60%" of plain training's peak, "auto" for what the device has free, or None
            for no limit.
        module: The module that the stages of a list belong to. Parameters and state_dict keys are
            then those of this module.
        loss: The function that training applies to the output. It returns a tensor of one element,
            and its memory is planned for. None stands for cross-entropy over dimension 1, or for
            the mean square if the output has fewer than two dimensions.
        alternatives: The kinds of alternatives that the planner may use, by the names of
            `alternatives()` that are `in_chain`. None stands for all that leave the same bits, and
            an empty list for none.
        planner: The name of a planner of chains. None stands for "chain", or for "levels" with
            `offload`.
        time_limit: The time for planning: seconds, or a text such as "10s".
        enforce: Whether a request beyond the budget raises BudgetError and leaves the
            model as it was.
        output_held: Whether the output may outlive the loss. Say False if it does not, as in
            `loss = f(model(x))`; then its bytes are used for something else.
        offload: Where values may move while nothing reads them: "disk:DIRECTORY" for a temporary
            file there, for models on the CPU; "host" for pinned memory of the host, for models on
            other devices. The plan decides for each value whether it stays, is made again, or
            moves. If a copy fails, the step raises InputError and leaves the model as it was.
            "auto" plans without a second memory, too, and takes one only if the step is then
            predicted to be faster by more than the measurement can tell: "host" on a device, and on
            the CPU a disk in the temporary directory, or with "auto:DIRECTORY" in that one.
            `report()` says what it picked, and why.
        machine: The bandwidths of that memory: a `reprise.machine` file, or a dict in its form.
            None measures them.
        process_group: A group of torch.distributed whose ranks all call this, with equal stages and
            the same inputs. The plan may then let them share out the work of linear layers and
            convolutions, where that is faster or saves memory. Gradients are those of plain
            training up to rounding, and equal on all ranks. Parameters and buffers get the bits of
            rank 0.
        name: The name of the chain in reports.
        observer: A function that is called with `Progress`.

    Returns:
        The planned module. It shares parameters, buffers and children with the model.

    Raises:
        BudgetError: No plan fits. Its attribute `requested` is the smallest budget that has a plan.
        InputError: The model, the sample or another argument cannot be used.

    Examples:
        >>> model = reprise.remat(plain, x, budget="60%")
        >>> nn.functional.cross_entropy(model(x), y).backward()
    """
    check_model(model)
    options = native_options(options_of(remat, locals())) | {"observer": observer}
    del options["module"], options["process_group"]
    planned = Remat(model, module, options, process_group)
    planned.plan_for(*as_arguments(sample))
    return planned
