"""The oracle of the hostile programs: a captured step is right, or it is refused with a reason.

A program is a function that makes a `Case`: a model, a step, and what changes between two calls.
The program is built twice from the same seed. One of the two is trained plainly, the other one
through `reprise.capture()`. After each call all bits are compared.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import reprise
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

CALLS = 20
CHANGE = 7  # The call before which most programs change something.
HERE = r"hostile_\w+\.py"  # The place in the user's code, for refusals that name it.


def batch(i: int) -> tuple[Any, ...]:
    """Returns the inputs of call i."""
    generator = torch.Generator().manual_seed(100 + i)
    x = torch.randn(6, 4, generator=generator, dtype=torch.float32)
    return x, torch.randint(0, 3, (6,), generator=generator)


def nothing(_call: int) -> None:
    """Changes nothing between two calls."""


@dataclass
class Case:
    """A program that was built.

    Attributes:
        model: The module whose parameters, gradients and buffers are compared.
        step: The training step.
        between: It is called before each call but the first one, with the number of the call.
        inputs: It returns the inputs of a call.
        leaves: Other tensors that are compared, with their gradients.
    """

    model: Any
    step: Callable[..., Any]
    between: Callable[[int], Any] = nothing
    inputs: Callable[[int], tuple[Any, ...]] = batch
    leaves: list[Any] = field(default_factory=list)


class Program(NamedTuple):
    """A hostile program. `names` is a pattern that the message of a refusal has to match.

    A harmless program changes something that has no effect on any bit.
    """

    name: str
    kind: str
    make: Callable[[], Case]
    names: str
    harmless: bool


class Outcome(NamedTuple):
    """The outcome of a program, and a text that says why.

    A program is "right", "refused", "unnamed" (refused with a message that names nothing of the
    program) or "wrong".
    """

    verdict: str
    detail: str


PROGRAMS: list[Program] = []


def program(
    kind: str, names: str, *, harmless: bool = False, into: list[Program] | None = None
) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    """Registers a program in `PROGRAMS`, or in the list that is given."""

    def register(make: Callable[[], Case]) -> Callable[[], Case]:
        known = PROGRAMS if into is None else into
        known.append(Program(make.__name__, kind, make, names, harmless))
        return make

    return register


def at(call: int, action: Callable[[], Any]) -> Callable[[int], None]:
    """Returns a `between` that acts before one call."""

    def between(i: int) -> None:
        if i == call:
            action()

    return between


def perceptron(*middle: Any) -> Any:
    """Returns a tiny network."""
    return nn.Sequential(nn.Linear(4, 8), *(middle or (nn.Tanh(),)), nn.Linear(8, 3))


def finish(logits: Any, y: Any) -> Any:
    """Computes the loss and its gradients."""
    loss: Any = F.cross_entropy(logits, y)
    loss.backward()
    return loss


@contextlib.contextmanager
def fresh_world() -> Iterator[None]:
    """Seeds everything. Global settings are as before after the scope."""
    environment, dtype = dict(os.environ), torch.get_default_dtype()
    deterministic = torch.are_deterministic_algorithms_enabled()
    precision, threads = torch.get_float32_matmul_precision(), torch.get_num_threads()
    attention: Any = torch.backends.cuda
    flash, math = attention.flash_sdp_enabled(), attention.math_sdp_enabled()
    autocast = torch.is_autocast_enabled("cpu")
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    try:
        with torch.set_grad_enabled(True):
            yield
    finally:
        os.environ.clear()
        os.environ.update(environment)
        torch.set_default_dtype(dtype)
        torch.use_deterministic_algorithms(deterministic)
        torch.set_float32_matmul_precision(precision)
        torch.set_num_threads(threads)
        attention.enable_flash_sdp(flash)
        attention.enable_math_sdp(math)
        torch.set_autocast_enabled("cpu", autocast)


def bits(value: Any) -> Any:
    """Returns a value that is equal for equal bits."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    flat = value.detach().contiguous().reshape(-1).view(torch.uint8)
    return value.dtype, tuple(value.shape), flat.numpy().tobytes()


def state_of(case: Case, inputs: tuple[Any, ...] = ()) -> dict[str, Any]:
    """Returns the bits of all state that a step may change."""
    tensors = dict(case.model.named_parameters(remove_duplicate=False))
    tensors |= {f"buffer {name}": b for name, b in case.model.named_buffers()}
    tensors |= {f"leaf {i}": leaf for i, leaf in enumerate(case.leaves)}
    tensors |= {f"input {i}": x for i, x in enumerate(tree_leaves(inputs))}
    state = {name: bits(tensor) for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        if isinstance(tensor, torch.Tensor) and tensor.is_leaf:
            state[f"gradient of {name}"] = None if tensor.grad is None else bits(tensor.grad)
    return state | {"random state": bits(torch.get_rng_state())}


def difference(a: dict[str, Any], b: dict[str, Any]) -> str:
    """Returns the names of what differs."""
    return ", ".join(name for name in {**a, **b} if a.get(name) != b.get(name))


def update(case: Case) -> None:
    """Does the optimizer's step, and drops the gradients."""
    with torch.no_grad():
        for p in [*case.model.parameters(), *case.leaves]:
            if p.is_leaf and p.grad is not None:
                p.sub_(p.grad, alpha=0.1)
                p.grad = None


def after_call(case: Case, step: Callable[..., Any], i: int) -> dict[str, Any]:
    """Calls a step and returns the bits of what it returned and of all state."""
    inputs = case.inputs(i)
    returned = {f"result {j}": bits(r) for j, r in enumerate(tree_leaves(step(*inputs)))}
    return returned | state_of(case, inputs)


def trained_plainly(program: Program) -> list[dict[str, Any]]:
    """Returns the bits after each call of plain training."""
    with fresh_world():
        case = program.make()
        states = []
        for i in range(CALLS):
            if i > 0:
                case.between(i)
            states.append(after_call(case, case.step, i))
            update(case)
    return states


def refusal(program: Program, error: reprise.InputError, changed: str) -> Outcome:
    """Judges a refusal. `changed` names what it has changed, and has to be empty."""
    message = str(error)
    if changed:
        return Outcome("wrong", f"the refusal changed {changed}: {message}")
    if not re.search(program.names, message, re.IGNORECASE):
        return Outcome("unnamed", f"the message does not match {program.names!r}: {message}")
    return Outcome("refused", message)


def judge(program: Program, on_miss: str, **options: Any) -> Outcome:
    """Runs a program plainly and captured, and compares them call by call.

    `options` are for `reprise.capture()`.
    """
    expected = trained_plainly(program)
    with fresh_world():
        case = program.make()
        before = state_of(case)
        try:
            captured = reprise.capture(case.step, *case.inputs(0), on_miss=on_miss, **options)
        except reprise.InputError as error:
            return refusal(program, error, difference(before, state_of(case)))
        except Exception as error:
            return Outcome("wrong", f"the capture raised {type(error).__name__}: {error}")
        if changed := difference(before, state_of(case)):
            return Outcome("wrong", f"the capture changed {changed}")
        for i in range(CALLS):
            if i > 0:
                case.between(i)
            before = state_of(case)
            try:
                state = after_call(case, captured, i)
            except reprise.InputError as error:
                return refusal(program, error, difference(before, state_of(case)))
            except Exception as error:
                return Outcome("wrong", f"call {i} raised {type(error).__name__}: {error}")
            if differs := difference(expected[i], state):
                return Outcome("wrong", f"call {i} differs in {differs}")
            update(case)
    return Outcome("right", "")


def has_an_effect(program: Program) -> bool:
    """Tells whether equal calls of the plain step differ: same inputs, parameters, random state."""
    with fresh_world():
        case = program.make()
        buffers = [(b, b.clone()) for b in case.model.buffers()]
        states = []
        for i in range(CALLS):
            with torch.no_grad():
                for buffer, value in buffers:
                    buffer.copy_(value)
            if i > 0:
                case.between(i)
            torch.manual_seed(1)
            states.append(after_call(case, case.step, 0))
            for leaf in [*case.model.parameters(), *case.leaves]:
                leaf.grad = None
    return any(state != states[0] for state in states)
