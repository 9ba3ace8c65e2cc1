"""Graph mode: the whole training step of any model is recorded, planned and replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .._planning.arguments import Budget, Observer, options_of
from .._planning.document import Path
from .._step.modules import modules_of, with_optimizers
from .captured_step import CapturedStep
from .followed import FollowedStep
from .keywords import refuse_astray
from .regions import offer
from .request import Request

offer()


def capture(
    step: Callable[..., Any],
    *sample: Any,
    modules: list[torch.nn.Module] | None = None,
    on_miss: str = "refuse",
    outcomes: int | None = None,
    alternatives: Sequence[str] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    budget: Budget = None,
    unguarded: Sequence[str] = (),
    lockstep: str = "sparse",
    name: str = "step",
    observer: Observer | None = None,
    cache: Path | None = None,
    process_group: Any = None,
    bucket_cap_mb: float | None = None,
    shard_optimizer: bool = False,
    other_devices: Sequence[torch.device | str] = (),
    share_work: Any = None,
    follow: bool = False,
    **keywords: Any,
) -> CapturedStep:
    """Records a whole training step of any model: forward, loss and backward.

    The function runs twice, and each of its operations runs a few times more. It runs again if it
    calls modules that it does not show, and in a few other cases. Parameters, gradients, buffers
    and the random state are left as they were.

    Args:
        step: The function. Its inputs and what it returns may be tensors, numbers and texts in
            tuples, lists, dicts and dataclasses. The optimizer's step is no part of it.
        *sample: The arguments that the function is recorded with.
        modules: The modules whose train flags, parameters and buffers are compared at each call,
            beside those of all modules that the function calls. None stands for the modules that
            the function shows: in its closure, its defaults, the globals that it names, or as the
            object that it is a method of.
        on_miss: The answer to a call with other shapes, types, flags or numbers. "refuse" raises
            InputError; "recapture" captures and plans again.
        outcomes: The number of outcomes that "recapture" keeps beside each other. A step may read
            booleans and whole numbers out of tensors (`if mask.all()`, `int(lengths.max())`, the
            size of `x[mask]`). Each list of numbers that it reads is an outcome, with a recording
            and a plan of its own. The outcome that ran least recently makes room for another one.
            With `follow` it is the number of recordings that are kept. None stands for 4, and with
            `follow` for 64.
        alternatives: The kinds of alternatives that the planner may use, by the names of
            `alternatives()` that are `in_graph`. None stands for all that leave the same bits, but
            "tiles", "perceptron-by-rows" and "fused-regions", and an empty list for none. A kind
            with the exactness "rounding" or "approximate" is used only if it is named here.
        optimizer: An SGD, Adam, AdamW, Adagrad or RMSprop of `torch.optim` whose step becomes part
            of this one. It updates each parameter as soon as the gradient is complete and nothing
            in the step needs the parameter any more. The gradient is then freed: `.grad` is None
            before and after the step. The bits are those of `optimizer.step()` behind the step.
            Clip by the norm of all gradients inside the function: behind `loss.backward()`, where
            gradients wait for each other, or by `clipped_backward()`, where none waits. If a step
            fails half-way, the exception names the parameters that were updated.
        budget: All bytes of tensors on the device while the step is captured, for a step that does
            not fit plain. Each operation is recorded and measured on operands of its own, which
            have made-up numbers. It is a number of bytes, a text such as "8 GiB", or "auto" for
            what the machine has free; a share is refused, because the peak of plain training is
            not known. None stands for plain training's memory. A step that depends on numbers
            which it computes is recorded in online mode on the CPU, with PyTorch 2.13 or newer,
            and refused on other devices. Predicted times are some per cent shorter then.
        unguarded: The names of Python state that may change without an effect on the step, as
            messages and `guards()` write them: "calls" or "trainer.log". The names stand for all
            that is inside them, too. They are neither compared before a call, nor refused if the
            step changes them itself. The replay does not change them.
        lockstep: The calls at which the function runs beside its recording and is compared with it,
            operator by operator, so that a change of state that no guard sees is found: "sparse"
            for the first two calls after a capture and then the calls 10, 100, 1,000, ...,
            "always", or "never". Operators compute nothing in such a run, so it takes the time of
            the function's own code and autograd. What the function changes in Python, such as a
            counter in `unguarded`, changes at these calls as in plain training.
        name: The name of the graph in reports.
        observer: A function that is called with `Progress`.
        cache: A folder in which measured costs are kept. A program that starts again on the same
            machine captures the same step without measuring it again. It may be shared by several
            programs. An entry that is damaged is ignored with a `RuntimeWarning`.
        process_group: A group of `torch.distributed`, such as `torch.distributed.group.WORLD`. The
            gradients of parameters are averaged over its ranks while the backward runs, with the
            bits of `DistributedDataParallel`. All ranks capture, plan and call the step together.
            At the capture, parameters and buffers get the bits that they have on rank 0; buffers
            are not copied after that. A rank that fails lets all others fail within the timeout of
            the group. Where the step reads a number out of a tensor, all ranks have to read the
            same one. With `on_miss="recapture"` the ranks ask each other at every call whether
            something differs, and capture together.
        bucket_cap_mb: The gradients are averaged in buckets of so many MiB. None stands for the
            sizes of `DistributedDataParallel`: 1 MiB for the first bucket, then 25 MiB.
        shard_optimizer: Whether each rank of `process_group` keeps the state of `optimizer` for its
            own shard of the parameters only (stage 1 of ZeRO). Each rank updates its shard and gets
            the others from their ranks. The bits are those of the step that does not shard. State
            of other shards that the optimizer has already is dropped.
        other_devices: Devices that may run operations of the step beside the device of its inputs:
            the CPU, and devices of one other type with their numbers ("cuda:1"). Each operation
            also runs there while the step is captured. If its results have the same bits there,
            the plan may run it there, and copies what it needs. A name of a kind with the
            exactness "rounding" in `alternatives` allows results that are close. Such a step has
            no arena, no process group and no optimizer inside.
        share_work: A group of `torch.distributed` whose ranks share out the work of the step. All
            ranks have the same parameters, inputs and random state. A linear layer, a convolution
            or an attention may be computed in parts by all ranks, which gather the parts. This is
            the alternative "shared", and it is offered where the result has the same bits for the
            sample, or is close if a kind with the exactness "rounding" is named in `alternatives`.
            Its measured time contains the communication, and the planner chooses it operation by
            operation. All ranks have one plan. At the capture, parameters and buffers get the bits
            of rank 0, and each call begins with a comparison of inputs and random states. It is
            for the CPU, without `process_group`, `other_devices` and `budget`.
        follow: Whether the function runs at every call, as in plain training, while the plan does
            its work. What the function does in Python then happens once a call; numbers that it
            reads out of tensors (`item()`, NumPy, `print()`) are those of the call; numbers that it
            gives to operations, and tensors that it makes of them or takes from elsewhere, are used
            as they are. Nothing runs at the capture: the first call is recorded while it runs, and
            the step is planned before the second one. A call that does something else than all
            recordings goes on as plain training, within the budget, and what is new is recorded.
            `report().left` counts such calls. `on_miss`, `lockstep` and `unguarded` do nothing
            then. It is without `process_group`, `share_work` and `other_devices`.
        **keywords: The keyword arguments that the function is recorded with.

    Returns:
        The captured step. Call it in the training loop in place of the function.

    Raises:
        BudgetError: The step cannot be captured within `budget`.
        PeerError: Another process of the group has failed, or does not answer in time.
        InputError: The step cannot be replayed, because it uses numbers out of tensors that are
            not whole, because sizes depend on data in other ways than by a mask, or because
            parameters are written. The message names the operation and the line of the program.
            The step is also refused if each call changes what it reads from Python
            (`self.calls += 1`), or draws from a generator of Python or NumPy.

    Examples:
        >>> def train(x, y):
        ...     loss = nn.functional.cross_entropy(plain(x), y)
        ...     loss.backward()
        ...     return loss
        >>> step = reprise.capture(train, x, y)
        >>> loss = step(x, y)
    """
    refuse_astray(step, keywords, {"CapturedStep.plan()": CapturedStep.plan})
    watched = modules_of(step) if modules is None else modules
    made = {"step": step, "modules": with_optimizers(watched, step)}
    if outcomes is None:
        made["outcomes"] = 64 if follow else 4
    kind = FollowedStep if follow else CapturedStep
    return kind(Request.of(options_of(capture, locals()) | made), sample, keywords)
