"""Pipelines: a model in parts on several processes, which run the plan of a pipeline."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import _core
from .._planning.arguments import Budget, checked_budget, nanoseconds
from .._planning.document import Path
from .._planning.html import fields_html
from .._step.modules import modules_of
from .._step.stages import (
    Stages,
    as_arguments,
    check_model,
    loss_argument,
    named_stages,
    stage_arguments,
)
from .._step.tree import Tree, flatten, rebuild
from .._step.turns import OfThisProcess, Turns
from .._torch import _runtime
from ..errors import BudgetError, InputError
from .peers import Peers
from .problem import (
    MeasuredPart,
    RankFacts,
    input_bytes,
    plan_of,
    problem_of,
)
from .walk import Part, PipelineLoss, Walk, cut


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


class PipelinedStep(OfThisProcess):
    """A training step in parts on several ranks. Made by `pipeline()`.

    Attributes:
        problem: The measured pipeline, in the form of `reprise.pipeline` files.
        plan: The plan in force, in the form of `reprise.pipeline_plan` files.
    """

    problem: dict[str, Any]
    plan: dict[str, Any]

    def __init__(
        self,
        peers: Peers,
        parts: list[Part],
        all_parts: list[MeasuredPart],
        options: dict[str, Any],
    ) -> None:
        self._turns = Turns()
        self._peers = peers
        self._parts = {part.number: part for part in parts}
        self._all_parts = all_parts
        self._options = options
        self._last = len(all_parts) - 1
        self._steps = self._plans = 0
        self._report: PipelineReport | None = None

    # --- Planning ------------------------------------------------------------------------------

    def _level(self) -> int:
        """Returns the bytes that are live now, those that the allocator does not count included."""
        uncounted = sum(part.native.uncounted() for part in self._parts.values())
        return int(_runtime.live_bytes() + uncounted)

    def _make_plan(self, level: int) -> None:
        """Plans for these live bytes at the beginning of a step. All ranks call it together."""
        ranks = self._peers.gather(RankFacts(level, self._options["budget"]))
        micro_batches = self._options["micro_batches"]
        problem = problem_of(
            self._options["name"], self._all_parts, ranks, micro_batches, self._options["link"]
        )
        made: Any = None
        if self._peers.rank == 0:
            try:
                made = plan_of(
                    problem,
                    self._all_parts,
                    ranks,
                    self._options["planner"],
                    self._options["time_limit_ns"],
                )
            except (BudgetError, InputError) as error:
                made = error
        made = self._peers.gather(made)[0]
        if isinstance(made, Exception):
            raise made
        wrong = _core.verify_pipeline(problem, made)
        if wrong:
            raise InputError(f"the plan is not valid: {wrong}")
        for part in self._parts.values():
            part.native.use(made, part.number)
        self._peers.gather("valid")
        self.problem, self.plan = json.loads(problem), json.loads(made)
        inputs = input_bytes(self._all_parts, micro_batches) if self._peers.rank == 0 else 0
        self._planned_level = max(level, inputs)
        self._plans += 1
        mine = self.plan["devices"][self._peers.rank]
        self._order = mine["order"]
        # A share is of the first plan's baseline: memory that comes later does not raise it.
        if self._options["budget"] is not None:
            self._options["budget"] = int(mine["budget_bytes"])

    def _predicted(self, level: int) -> int:
        peak = int(self.plan["devices"][self._peers.rank]["peak_bytes"])
        return peak + level - self._planned_level

    def _agree(self, level: int) -> None:
        """Plans again if the plan in force needs too much memory on some rank."""
        budget = self._options["budget"]
        fits = budget is None or self._predicted(level) <= budget
        if not all(self._peers.gather(fits)):
            self._make_plan(level)

    # --- A step --------------------------------------------------------------------------------

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
        with self._turns, self._peers.telling():
            begun = time.perf_counter_ns()
            self._check_parts()
            batches = cut(inputs, "the input", self._options["micro_batches"]) if inputs else []
            targets = cut(target, "the target", self._options["micro_batches"])
            if 0 in self._parts and not batches:
                raise InputError("the rank of the first part needs the inputs of the step")
            losses = None
            if self._last in self._parts:
                losses = self._losses()
            level = self._level()
            self._agree(level)
            uncounted = level - _runtime.live_bytes()
            budget = self._options["budget"]
            limit = None if budget is None else budget - uncounted
            try:
                for part in self._parts.values():
                    part.native.begin_step(limit)
                _runtime.reset_peak()
                walk = Walk(
                    self._peers,
                    self._parts,
                    self._last,
                    self._options["loss"],
                    batches,
                    targets,
                    losses,
                )
                walk.run(self._order)
                del walk
                peak = _runtime.peak_bytes() + uncounted
            except BaseException:
                for part in self._parts.values():
                    part.native.abort_step()
                raise
            for part in self._parts.values():
                part.native.end_step()
            self._steps += 1
            self._report = PipelineReport(
                budget_bytes=budget,
                predicted_peak_bytes=self._predicted(level),
                measured_peak_bytes=peak,
                predicted_time_ns=int(self.plan["time_ns"]),
                measured_time_ns=time.perf_counter_ns() - begun,
                steps=self._steps,
                plans=self._plans,
            )
        return losses

    def _losses(self) -> torch.Tensor:
        """Returns room for the losses of the micro-batches."""
        return torch.zeros(self._options["micro_batches"], dtype=self._options["loss_dtype"])

    def _check_parts(self) -> None:
        for part in self._parts.values():
            if not part.native.refresh():
                raise InputError(
                    f"part {part.number} has other modules, parameters or buffers than when it "
                    "was measured; make the pipeline anew"
                )
        for parameter in self._options["parameters"]:
            if parameter.grad is not None:
                raise InputError(
                    "a parameter has a gradient already, and a step of a pipeline makes it anew: "
                    "call optimizer.zero_grad() before the step"
                )

    def report(self) -> PipelineReport:
        """Returns the report on the last step.

        Raises:
            InputError: No step has run yet.
        """
        if self._report is None:
            raise InputError("no step of the pipeline has run yet")
        return self._report

    def save(self, problem: Path, plan: Path) -> None:
        """Writes the measured pipeline and the plan in force to files for `reprise check`."""
        for path, value in ((problem, self.problem), (plan, self.plan)):
            with open(path, "w", encoding="utf-8") as file:
                json.dump(value, file)


def _alone(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor, or a copy if its memory holds more than the tensor."""
    if tensor.untyped_storage().nbytes() == tensor.nbytes:
        return tensor
    return tensor.detach().clone()


def _sample_of(outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Returns tensors of the shapes and types of these, which have no bytes."""
    generator = torch.Generator().manual_seed(0)
    samples = []
    for output in outputs:
        if output.is_floating_point():
            sample = torch.randn(output.shape, generator=generator).to(output.dtype)
        else:
            sample = torch.zeros(output.shape, dtype=output.dtype)
        samples.append(sample.requires_grad_(output.requires_grad))
    return samples


def _measured(part: Part) -> MeasuredPart:
    alone = json.loads(part.native.alone())
    return MeasuredPart(
        chain=alone["chain"],
        stages=alone["stages"],
        not_split=part.native.not_split(),
        output_gradient_bytes=part.native.output_gradient_bytes(),
    )


def _measure_parts(
    peers: Peers, models: Sequence[Stages], sample: Any, target: Any, options: dict[str, Any]
) -> tuple[list[Part], list[MeasuredPart]]:
    """Measures the parts of this rank when their inputs are known, one part after the other."""
    counts = peers.gather(len(models))
    if len(set(counts)) != 1:
        raise InputError(f"each rank has as many parts as the others, and these have {counts}")
    count = len(models) * peers.size
    own: list[Part] = []
    for k, model in enumerate(models):
        number = peers.rank + k * peers.size
        check_model(model)
        stages = named_stages(model)
        if number == 0:
            given, tree = flatten((as_arguments(sample), {}), "the sample")
            tensors = [_alone(tensor) for tensor in given]
        else:
            shapes, before = peers.hear(f"boundary/{number}", (number - 1) % peers.size)
            tensors = _sample_of(shapes)
            _, tree = flatten(((rebuild(before, tensors),), {}), "the output of a part")
        trees: list[Tree | None] = [tree] + [None] * len(stages)
        loss = None
        if number == count - 1:

            def noted(output: Any) -> Any:
                value = options["loss"](output, target)
                options["loss_dtype"] = getattr(value, "dtype", None)
                return value

            loss = loss_argument(noted, trees)
        native = _runtime.PipelinePart(
            stage_arguments(stages, trees), tensors, loss=loss, name=f"part {number}"
        )
        del tensors
        peers.tell(f"boundary/{number + 1}", (native.outputs(), trees[-1]))
        own.append(Part(number, native, trees))
    mine = [_measured(part) for part in own]
    told = peers.gather(mine)
    everyone = [told[q % peers.size][q // peers.size] for q in range(count)]
    return own, everyone


def _parameters_of(models: Sequence[Stages]) -> list[torch.nn.Parameter]:
    """Returns the parameters of these parts, each once."""
    found: dict[int, torch.nn.Parameter] = {}
    for model in models:
        for _, stage in named_stages(model):
            for module in modules_of(stage):
                found.update({id(p): p for p in module.parameters()})
    elsewhere = {str(p.device) for p in found.values() if p.device.type != "cpu"}
    if elsewhere:
        raise InputError(f"the parts of a pipeline run on the CPU, and one is on {elsewhere.pop()}")
    return list(found.values())


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
    peers = Peers(process_group, timeout)
    with peers.telling():
        if micro_batches < 1:
            raise InputError(f"there is at least one micro-batch, not {micro_batches}")
        models = list(parts)
        if not models:
            raise InputError("a rank of a pipeline has at least one part")
        last = peers.rank == peers.size - 1
        if peers.rank == 0 and sample is None:
            raise InputError("the rank of the first part needs the sample of a micro-batch")
        if last and loss is None:
            raise InputError("the rank of the last part needs the loss")
        options = {
            "micro_batches": micro_batches,
            "loss": loss,
            "budget": checked_budget(budget),
            "planner": planner,
            "link": link_bytes_per_second,
            "time_limit_ns": nanoseconds(time_limit),
            "name": name,
            "parameters": _parameters_of(models),
        }
        _runtime.install_cpu_allocator()
        own, everyone = _measure_parts(peers, models, sample, target, options)
        step = PipelinedStep(peers, own, everyone, options)
        # The whole batch lies here during a step, where the sample lies now.
        held = [*flatten((as_arguments(sample), target if last else None), "the sample")[0]]
        more = sum(
            max(0, tensor.nbytes * micro_batches - tensor.untyped_storage().nbytes())
            for tensor in held
        )
        losses = step._losses() if last else None
        step._make_plan(step._level() + more)
        del losses
    return step
