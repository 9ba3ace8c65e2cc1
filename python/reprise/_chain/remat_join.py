"""Chain mode for several branches that meet in one loss, as one module that trains in a budget."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from .._planning.arguments import Budget, Observer, native_options, options_of
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


def _as_items(trees: list[list[Tree | None]]) -> Tree:
    """Returns the structure of a tuple with what each branch returns."""
    items = tuple(own[-1] for own in trees)
    assert all(tree is not None for tree in items)
    return Tree(tuple, tuple(range(len(items))), items)  # type: ignore[arg-type]


class _FirstOfTail:
    """The first stage of a tail. It is called with what each branch returns."""

    def __init__(
        self,
        call: Callable[[list[torch.Tensor]], list[torch.Tensor]],
        branches: list[list[Tree | None]],
        tail: list[Tree | None],
    ) -> None:
        self.call = call
        self.branches = branches
        self.tail = tail

    def __call__(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        self.tail[0] = Tree(tuple, (0, 1), (_as_items(self.branches), Tree(dict)))
        return self.call(tensors)


class RematJoin(PlannedModule):
    """Branches that meet in one loss and train inside a budget. Made by `remat_join()`.

    A call takes one argument for each branch: an input, or a tuple with the arguments of the first
    stage. Under `no_grad()` it runs the stages and no plan. When inputs of another shape or type
    come, or a train flag has changed, the module measures and plans again.
    """

    # These are the structures of the boundaries, by branch. Those of the tail come last.
    _trees: list[list[Tree | None]]

    def __init__(
        self,
        branches: Mapping[str, Stages],
        tail: Stages,
        module: nn.Module | None,
        options: dict[str, Any],
    ) -> None:
        kept = {
            name: stages if isinstance(stages, nn.Module) else list(stages)
            for name, stages in branches.items()
        }
        behind = tail if isinstance(tail, nn.Module) else list(tail)
        self.__dict__["_trees"] = []
        super().__init__((kept, behind), module, options)

    def _parts(self) -> list[tuple[str, NamedStages]]:
        """Returns the name and the stages of each branch, and those of the tail, last."""
        branches, tail = self.__dict__["_source"]
        return [(name, named_stages(own)) for name, own in branches.items()] + [
            ("tail", named_stages(tail))
        ]

    def _named(self) -> NamedStages:
        return [
            (f"{part}.{name}", stage) for part, stages in self._parts() for name, stage in stages
        ]

    @in_turn
    def forward(self, *inputs: Any) -> Any:
        """Runs the branches and the tail. With gradients this is the forward half of a step.

        Args:
            *inputs: The input of each branch, or a tuple of inputs.

        Returns:
            The value that the tail returns, or a tuple of what each branch returns.

        Raises:
            BudgetError: No plan fits, or a request for memory was refused.
            InputError: The inputs or a stage cannot be used.
        """
        if not torch.is_grad_enabled():
            return self._run_plain(inputs)
        native, tensors = self._ready(inputs)
        with self._noting():
            outputs = native.forward(tensors)
        *branches, tail = self._trees
        tree = _as_items(branches) if len(tail) == 1 else tail[-1]
        assert tree is not None
        return rebuild(tree, outputs)

    def _run_plain(self, inputs: tuple[Any, ...]) -> Any:
        self._stages()
        self._check_number(inputs)
        *branches, (_, tail) = self._parts()
        outputs = []
        for (_, stages), given in zip(branches, inputs, strict=True):
            value = stages[0][1](*as_arguments(given))
            for _, stage in stages[1:]:
                value = stage(value)
            outputs.append(value)
        if not tail:
            return tuple(outputs)
        value = tail[0][1](*outputs)
        for _, stage in tail[1:]:
            value = stage(value)
        return value

    def _check_number(self, inputs: tuple[Any, ...]) -> None:
        branches = list(self.__dict__["_source"][0])
        if len(inputs) != len(branches):
            raise InputError(
                f"the model has {len(branches)} branches ({', '.join(branches)}) and was given "
                f"{len(inputs)} inputs: give one for each branch, or a tuple"
            )

    def _ready(self, inputs: tuple[Any, ...]) -> tuple[Any, list[list[torch.Tensor]]]:
        """Returns the runtime's model, and the tensors of each branch's input."""
        self._check_number(inputs)
        tensors: list[list[torch.Tensor]] = []
        trees: list[Tree] = []
        *branches, (_, tail) = self._parts()
        for (name, _), given in zip(branches, inputs, strict=True):
            own, tree = flatten((as_arguments(given), {}), f"the input of branch '{name}'")
            if not own:
                raise InputError(f"branch '{name}' was given no tensor")
            tensors.append(own)
            trees.append(tree)
        made_for = (trees, [(name, id(stage)) for name, stage in self._stages()])
        if self._native is None or self._made_for != made_for or not self._native.refresh():
            self._make(trees, branches, tail, tensors[0][0].device)
            self._made_for = made_for
        return self._native, tensors

    def _make(
        self,
        trees: list[Tree],
        branches: list[tuple[str, NamedStages]],
        tail: NamedStages,
        device: torch.device,
    ) -> None:
        own: list[list[Tree | None]] = [
            [tree, *([None] * len(stages))]
            for tree, (_, stages) in zip(trees, branches, strict=True)
        ]
        behind: list[Tree | None] = [None] * (len(tail) + 1)
        self.__dict__["_trees"] = [*own, behind]
        tail_arguments = stage_arguments(tail, behind)
        if tail_arguments:
            name, call, modules = tail_arguments[0]
            tail_arguments[0] = (name, _FirstOfTail(call, own, behind), modules)
        loss = self._options["loss"]
        self._make_native(
            _runtime.RematJoin,
            [
                (name, stage_arguments(stages, inner))
                for (name, stages), inner in zip(branches, own, strict=True)
            ],
            tail_arguments,
            loss=loss_argument(loss, behind) if tail else _LossOfBranches(loss, own),
            device=device,
        )

    @in_turn
    def plan_for(self, *inputs: Any) -> PlanResult:
        """Measures and plans for inputs like these, without running a step.

        Args:
            *inputs: As for a call.

        Raises:
            BudgetError: No plan fits. Its attribute `requested` is the smallest budget that has a
                plan.
            InputError: The inputs or a stage cannot be used.

        Examples:
            >>> result = siamese.plan_for(torch.randn(64, 128), torch.randn(64, 128))
        """
        native, tensors = self._ready(inputs)
        with self._noting():
            native.plan_for(tensors)
        return result_of(native.planned())

    @property
    def join(self) -> dict[str, Any]:
        """The measured join, in the form of `reprise.join` files.

        Reading it raises InputError while nothing is planned.
        """
        return dict(json.loads(self._planned_native().join()))

    def __getstate__(self) -> dict[str, Any]:
        """Returns the model and the options. A copy measures and plans for itself."""
        return super().__getstate__() | {"_trees": []}


class _LossOfBranches:
    """The user's loss as a function of the output tensors of all branches."""

    def __init__(
        self, loss: Callable[[Any], torch.Tensor], branches: list[list[Tree | None]]
    ) -> None:
        self.loss = loss
        self.branches = branches

    def __call__(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        return loss_argument(self.loss, [_as_items(self.branches)])(tensors)  # type: ignore[no-any-return]


def remat_join(
    branches: Mapping[str, Stages],
    sample: Sequence[Any],
    *,
    tail: Stages = (),
    budget: Budget = None,
    module: nn.Module | None = None,
    loss: Callable[[Any], torch.Tensor] | None = None,
    alternatives: Sequence[str] | None = None,
    time_limit: float | str = 10.0,
    enforce: bool = True,
    output_held: bool = True,
    name: str = "model",
    observer: Observer | None = None,
) -> RematJoin:
    """Makes a module of branches that meet in one loss and train inside a budget.

    Siamese networks and cross-modal networks are such models. Gradients, loss, buffers and the
    random state are those of plain training to the last bit, where plain training runs the
    branches in their order and then the tail. On the CPU the measured peak is never above the
    budget. The method is that of O. Beaumont, J. Herrmann, G. Pallez, A. Shilova, "Optimal
    memory-aware backpropagation of deep join networks", 2020.

    Args:
        branches: The branches by name, two to six. Each is an nn.Sequential or a list of stages, as
            for `remat()`. Branches may share modules: a Siamese network gives the same one twice.
        sample: The sample inputs: one for each branch, or a tuple of them. The model is measured on
            them; they are not changed.
        tail: The stages behind the place where the branches meet. The first one is called with
            what each branch returns. They run once in a step, with the loss.
        budget: As for `remat()`: a number of bytes, a text such as "8 GiB", a share such as "60%"
            of plain training's peak, "auto", or None for no limit.
        module: The module that the stages belong to. Parameters and state_dict keys are then those
            of this module. Without it, they have the names of branches and stages.
        loss: The function that training applies to what the module returns: a tuple of what each
            branch returns, or the value of the tail. It returns a tensor of one element, and its
            memory is planned for. It must be given if there is no tail. With a tail, None stands
            for what it stands for in `remat()`.
        alternatives: As for `remat()`.
        time_limit: The time for planning: seconds, or a text such as "10s".
        enforce: Whether a request beyond the budget raises BudgetError and leaves the
            model as it was.
        output_held: Whether the output may outlive the loss. Say False if it does not, as in
            `loss = f(model(a, b))`; then its bytes are used for something else.
        name: The name of the join in reports.
        observer: A function that is called with `Progress`.

    Returns:
        The planned module. It shares parameters, buffers and children with the branches.

    Raises:
        BudgetError: No plan fits. Its attribute `requested` is the smallest budget that has a plan.
        InputError: A branch, the sample or another argument cannot be used.

    Examples:
        >>> tower, loss = plain[:2], lambda outputs: nn.functional.mse_loss(*outputs)
        >>> branches = {"left": tower, "right": tower}
        >>> pair = reprise.remat_join(branches, (x, x + 1), loss=loss, budget="70%")
        >>> loss(pair(x, x + 1)).backward()
    """
    for stages in branches.values():
        check_model(stages)
    if len(tail) > 0:
        check_model(tail)
    elif loss is None:
        raise InputError("branches meet in a loss: give loss=, or give a tail")
    options = native_options(options_of(remat_join, locals())) | {"observer": observer}
    del options["tail"], options["module"]
    planned = RematJoin(branches, tail, module, options)
    planned.plan_for(*as_arguments(sample))
    return planned
