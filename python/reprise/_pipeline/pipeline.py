"""Pipelines: a model in parts on several processes, which run the plan of a pipeline."""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import _core
from .._planning.arguments import Budget, checked_budget, nanoseconds
from .._planning.document import Path
from .._planning.html import fields_html
from .._step.process_group import name_of_group, telling, telling_group
from .._step.stages import (
    Stages,
    as_arguments,
    check_model,
    loss_argument,
    named_stages,
    stage_arguments,
)
from .._step.tree import Tree, flatten, rebuild
from .._step.turns import OfThisProcess, Turns, in_turn
from .._torch import _runtime
from ..errors import InputError

# The loss of training: it makes a tensor of one element of the last output and the target.
PipelineLoss = Callable[[Any, Any], torch.Tensor]


@dataclass(frozen=True)
class PipelineReport:
    """The last step of a pipeline on this rank. On the CPU both peaks are equal to the byte.

    Attributes:
        budget_bytes: The budget of this rank, or None for no limit.
        predicted_peak_bytes: The peak that the plan predicts for this rank.
        measured_peak_bytes: The peak that was measured on this rank.
        predicted_time_ns: The time of the step that the plan predicts.
        measured_time_ns: The time of the step on this rank.
        steps: The number of steps so far.
        plans: The number of plans that were made so far.
    """

    budget_bytes: int | None
    predicted_peak_bytes: int
    measured_peak_bytes: int
    predicted_time_ns: int
    measured_time_ns: int
    steps: int
    plans: int

    def __str__(self) -> str:
        budget = "none" if self.budget_bytes is None else _core.format_bytes(self.budget_bytes)
        return (
            f"step {self.steps}: measured peak {_core.format_bytes(self.measured_peak_bytes)}, "
            f"predicted {_core.format_bytes(self.predicted_peak_bytes)}, budget {budget}, "
            f"{self.plans} plan{'' if self.plans == 1 else 's'} so far"
        )

    def _repr_html_(self) -> str:
        return fields_html(self)


class _Structures:
    """The containers around the tensors of the parts of this rank, which the runtime does not know.

    `parts` has the structures of the boundaries of each part, by its number.
    """

    def __init__(self, loss: PipelineLoss | None, target: Any) -> None:
        self.parts: dict[int, list[Tree | None]] = {}
        self._loss = loss
        self.set_target(target)

    def set_target(self, target: Any) -> list[torch.Tensor]:
        """Notes the structure of a target and returns its tensors."""
        tensors, self._target = flatten(target, "the target")
        return tensors

    def of_output(self, part: int) -> str:
        """Returns the structure of a part's output as a text."""
        return base64.b64encode(pickle.dumps(self.parts[part][-1])).decode()

    def set_input(self, part: int, text: str) -> None:
        """Takes the structure that the part before has told."""
        # `flatten(((value,), {}), ...)` has this structure for a value of the tree that was told.
        before: Tree = pickle.loads(base64.b64decode(text))
        arguments = Tree(tuple, (0,), (before,))
        self.parts[part][0] = Tree(tuple, (0, 1), (arguments, Tree(dict)))

    def loss(self, outputs: list[torch.Tensor], targets: list[torch.Tensor]) -> torch.Tensor:
        """Returns the loss of one micro-batch."""
        target = rebuild(self._target, targets)
        assert self._loss is not None
        own = self._loss
        call = loss_argument(lambda output: own(output, target), self.parts[max(self.parts)])
        found: torch.Tensor = call(outputs)
        return found


class PipelinedStep(OfThisProcess):
    """A training step in parts on several ranks. Made by `pipeline()`."""

    def __init__(self, native: _runtime.PipelinedStep, structures: _Structures) -> None:
        self._native = native
        self._structures = structures
        self._turns = Turns()

    @property
    def problem(self) -> dict[str, Any]:
        """The measured pipeline, in the form of `reprise.pipeline` files."""
        found: dict[str, Any] = json.loads(self._native.problem())
        return found

    @property
    def plan(self) -> dict[str, Any]:
        """The plan in force, in the form of `reprise.pipeline_plan` files."""
        found: dict[str, Any] = json.loads(self._native.plan())
        return found

    @in_turn
    def step(self, *inputs: Any, target: Any = None) -> torch.Tensor | None:
        """Runs a step and leaves the gradients of this rank's parameters in `.grad`.

        All ranks call it together. Tensors are cut into micro-batches along their first dimension.

        Args:
            *inputs: The whole batch, as arguments of the first part. On the rank of the first part.
            target: The whole target of the loss. On the rank of the last part.

        Returns:
            The losses of the micro-batches on the rank of the last part, and None on the others.

        Raises:
            BudgetError: No plan fits, or a request for memory was refused.
            InputError: The batch or the state of the parts does not fit what was measured.
            PeerError: Another rank has failed, has ended, or does not answer in time.
        """
        with telling(self._native):
            if not self._native.refresh():
                raise InputError(
                    "a part has other modules, parameters or buffers than when it was measured; "
                    "make the pipeline anew"
                )
            batch = flatten(inputs, "the input")[0]
            targets = self._structures.set_target(target)
            return self._native.run(batch, targets)

    @in_turn
    def use(self, plan: dict[str, Any]) -> None:
        """Puts another plan in force, until memory changes so much that a new one is made.

        Args:
            plan: The plan, in the form of `reprise.pipeline_plan` files. All ranks call this
                function together with the same plan.

        Raises:
            InputError: The plan is not valid for the problem, or the ranks have different ones. The
                plan in force stays.
            PeerError: Another rank has failed, has ended, or does not answer in time.
        """
        self._native.use(json.dumps(plan))

    def not_split(self) -> list[str]:
        """Returns the stages whose backward cannot be split, with the reasons."""
        return self._native.not_split()

    def report(self) -> PipelineReport:
        """Returns the report on the last step.

        Raises:
            InputError: No step has run yet.
        """
        return PipelineReport(**self._native.report())

    def save(self, problem: Path, plan: Path) -> None:
        """Writes the measured pipeline and the plan in force to files for `reprise check`.

        Raises:
            InputError: A file cannot be written.
        """
        _core.write_file(str(problem), self._native.problem())
        _core.write_file(str(plan), self._native.plan())


def pipeline(
    parts: Sequence[Stages],
    sample: Any = None,
    *,
    micro_batches: int,
    loss: PipelineLoss | None = None,
    target: Any = None,
    budget: Budget = None,
    planner: str | None = None,
    process_group: Any = None,
    link_bytes_per_second: int = 1_000_000_000,
    time_limit: float | str = 10.0,
    timeout: float | None = None,
    name: str = "pipeline",
) -> PipelinedStep:
    """Plans a training step in parts on several processes, each within the budget of its rank.

    All ranks of the group call it together, as they call `step()` of what is returned. Each rank
    measures its parts. Rank 0 plans, and every rank verifies the plan before the first step.
    Gradients and losses are those of one process that accumulates over the same micro-batches, to
    the last bit, if no stage draws random numbers. On the CPU the measured peak of a rank is the
    predicted one, and never above its budget.

    Args:
        parts: The parts of this rank, each an nn.Sequential or a list of stages as for `remat()`.
            Part k of a rank is number rank + k * ranks of the model. Every rank has as many.
        sample: The input of one micro-batch, or a tuple of inputs, on the rank of the first part.
        micro_batches: The number of micro-batches in a step.
        loss: The function of the last part's output and the target. It returns a tensor of one
            element. The losses of the micro-batches are summed, so divide by the whole batch.
        target: The target of one micro-batch, on the rank of the last part.
        budget: All bytes of this rank during a step: a number of bytes, a text such as "8 GiB", or
            None for no limit. A share such as "60%" is of the plain pipeline's largest peak, and
            then it is the budget of all ranks.
        planner: The name of a planner of pipelines. None stands for "pipeline" if each rank has one
            part, and for "interleaved" otherwise.
        process_group: The ranks, or None for all processes.
        link_bytes_per_second: The bandwidth between two ranks, for the predicted time.
        time_limit: The time for planning: seconds, or a text such as "10s".
        timeout: The longest wait for another rank in seconds, or None for that of the group.
        name: The name of the pipeline in reports.

    Returns:
        The step.

    Raises:
        BudgetError: No plan fits. Its attribute `requested` is what was needed on the rank in the
            way.
        InputError: A part, the sample or another argument cannot be used.
        PeerError: Another rank has failed, has ended, or does not answer in time.
    """
    distributed: Any = torch.distributed
    if process_group is None and distributed.is_available() and distributed.is_initialized():
        process_group = distributed.group.WORLD
    group = name_of_group(process_group)
    if not group:
        raise InputError("a pipeline needs torch.distributed.init_process_group()")
    rank, size = distributed.get_rank(process_group), distributed.get_world_size(process_group)
    structures = _Structures(loss, target)
    with telling_group(group):
        given, tree = flatten((() if sample is None else as_arguments(sample), {}), "the sample")
        stages = []
        for k, model in enumerate(parts):
            check_model(model)
            named = named_stages(model)
            trees: list[Tree | None] = [tree] + [None] * len(named)
            structures.parts[rank + k * size] = trees
            stages.append(stage_arguments(named, trees))
        options: dict[str, Any] = {
            "budget": checked_budget(budget),
            "time_limit_ns": nanoseconds(time_limit),
            "timeout": None if timeout is None else float(timeout),
        }
        targets = structures.set_target(target)
    native = _runtime.PipelinedStep(
        stages,
        micro_batches=micro_batches,
        sample=given,
        loss=None if loss is None else structures.loss,
        target=targets,
        planner=planner,
        group=group,
        link_bytes_per_second=link_bytes_per_second,
        name=name,
        output_structure=structures.of_output,
        input_structure=structures.set_input,
        **options,
    )
    return PipelinedStep(native, structures)
