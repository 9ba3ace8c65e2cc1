"""Parts of a model as stages of torch.distributed.pipelining, whose backwards come in two."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .._step.stages import Stages, as_arguments, check_model, named_stages, stage_arguments
from .._step.tree import Tree, flatten
from .._torch import _runtime
from ..errors import InputError


class _Run(torch.autograd.Function):
    """A part for one micro-batch. Its backward gives the gradients of the inputs alone."""

    @staticmethod
    def forward(ctx: Any, part: SplitPart, _: Any, *inputs: torch.Tensor) -> Any:
        ctx.part = part
        ctx.micro_batch, outputs = part._run_forward(inputs)
        ctx.mark_non_differentiable(
            *[t for t, wants in zip(outputs, part._wants_gradient, strict=True) if not wants]
        )
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, None, *ctx.part._run_backward(ctx.micro_batch, gradients)


class SplitPart(nn.Module):
    """A part of a model that leaves the gradients of its weights for later.

    A micro-batch is under way from its forward until the function that `dw_builder()` returned has
    run. Made by `pipeline_stage()`.

    Attributes:
        not_split: The stages whose backward cannot be split, with the reasons. Their weight
            gradients come with those of the inputs.
    """

    def __init__(self, part: Stages, sample: Any, micro_batches: int, name: str) -> None:
        super().__init__()
        check_model(part)
        stages = named_stages(part)
        self.stages = nn.ModuleList(stage for _, stage in stages if isinstance(stage, nn.Module))
        given, tree = flatten((as_arguments(sample), {}), "the sample")
        self._trees: list[Tree | None] = [tree] + [None] * len(stages)
        self._native = _runtime.PipelinePart(stage_arguments(stages, self._trees), given, name=name)
        self.not_split: list[tuple[str, str]] = self._native.not_split()
        self._outputs = self._native.outputs()
        self._wants_gradient = [output.requires_grad for output in self._outputs]
        self._input_wants_gradient = [tensor.requires_grad for tensor in given]
        # Autograd gives no gradients to a function that has no input with one.
        self._anchor = torch.empty(0, requires_grad=True)
        self._native.keep_everything(micro_batches)
        self._begun = self._done = 0
        self._last_backward = -1

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Runs the part for the next micro-batch."""
        run: Any = _Run.apply
        outputs = run(self, self._anchor, *inputs)
        return outputs[0] if len(outputs) == 1 else outputs

    def dw_builder(self) -> Callable[[], None]:
        """Returns a function that makes the weight gradients of the last backward."""
        micro_batch, self._last_backward = self._last_backward, -1
        if micro_batch < 0:
            raise InputError("no backward of the part has run since the last weight gradients")

        def run() -> None:
            self._guarded(lambda: self._native.weight_gradient(micro_batch))
            self._done += 1
            if self._done == self._begun:
                self._native.end_step()
                self._begun = self._done = 0

        return run

    def _guarded(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except BaseException:
            self._native.abort_step()
            self._begun = self._done = 0
            raise

    def _run_forward(self, inputs: tuple[torch.Tensor, ...]) -> tuple[int, list[torch.Tensor]]:
        if self._begun == 0:
            if not self._native.refresh():
                raise InputError(
                    "the part has other modules, parameters or buffers than when it was measured; "
                    "make the stage anew"
                )
            self._native.begin_step()
        micro_batch = self._begun

        given = [tensor.detach() for tensor in inputs]
        outputs = self._guarded(lambda: self._native.forward(micro_batch, given))
        self._begun += 1
        return micro_batch, outputs

    def _run_backward(self, micro_batch: int, gradients: tuple[Any, ...]) -> list[Any]:
        given = [
            torch.zeros_like(shape, device="cpu") if gradient is None else gradient
            for gradient, shape in zip(gradients, self._outputs, strict=True)
            if shape.requires_grad
        ]

        message = self._guarded(lambda: self._native.input_gradient(micro_batch, given))
        found = iter(message)
        self._last_backward = micro_batch
        return [next(found) if wants else None for wants in self._input_wants_gradient]


def pipeline_stage(
    part: Stages,
    sample: Any,
    index: int,
    count: int,
    *,
    micro_batches: int,
    group: Any = None,
    name: str = "part",
) -> Any:
    """Returns a stage for the schedules of `torch.distributed.pipelining`.

    Its backward comes in two, as the zero-bubble schedules run it: the part gives the gradients of
    its inputs, and PyTorch's `dw_builder` those of its weights. What only the gradients of the
    inputs need is freed before those of the weights. Gradients are those of one process that
    accumulates over the same micro-batches, to the last bit.

    Args:
        part: The part, an nn.Sequential or a list of stages as for `remat()`, on the CPU.
        sample: The input of one micro-batch, or a tuple of inputs.
        index: The number of the part in the model.
        count: The number of parts.
        micro_batches: The number of micro-batches in a step.
        group: The process group, or None for all processes.
        name: The name of the part in messages.

    Returns:
        A `torch.distributed.pipelining.PipelineStage`. Its `submod` is the part, whose attribute
        `not_split` lists the stages whose backward cannot be split, with the reasons.

    Raises:
        InputError: The part, the sample or another argument cannot be used.
    """
    from torch.distributed.pipelining import PipelineStage

    if micro_batches < 1:
        raise InputError(f"there is at least one micro-batch, not {micro_batches}")
    inputs = [tensor.detach() for tensor in as_arguments(sample)]
    for tensor in inputs:
        if tensor.device.type != "cpu":
            raise InputError(f"the parts of a pipeline run on the CPU, not on {tensor.device}")
        tensor.requires_grad_(index > 0 and tensor.is_floating_point())
    own = SplitPart(part, tuple(inputs), micro_batches, name)
    # PyTorch would run the part to find these out.
    outputs = [
        torch.empty_like(shape, device="cpu").requires_grad_(shape.requires_grad)
        for shape in own._outputs
    ]
    facts: dict[str, Any] = {"input_args": tuple(inputs), "output_args": tuple(outputs)}
    if "input_grads" in inspect.signature(PipelineStage.__init__).parameters:
        if index > 0:
            facts["input_grads"] = tuple(t.detach() if t.requires_grad else None for t in inputs)
        if index + 1 < count:
            facts["output_grads"] = tuple(t.detach() if t.requires_grad else None for t in outputs)
    return PipelineStage(
        own, index, count, torch.device("cpu"), group=group, dw_builder=own.dw_builder, **facts
    )
