"""The harness of the programs whose Python has to run at every call.

A program is built from fixed seeds and trained for 20 calls. `train()` returns the bits of all that
it has made: what each call returned, what Python has kept behind each call, the parameters, and the
states of the generators. Two ways to run a program are both right if `same()` finds those equal.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import hostile
import numpy as np
import torch
from hostile import CALLS, batch, fresh_world, nothing
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Step = Callable[..., Any]
Run = Callable[[Step, tuple[Any, ...]], Step]
THEMES = ("reads", "numbers", "effects", "structure")


def nothing_kept() -> Any:
    """Keeps nothing."""


@dataclass
class Program:
    """A program that was built.

    Attributes:
        model: The module whose parameters, gradients and buffers are compared.
        step: The function to train with. It is called as step(*inputs(call)).
        kept: It returns what Python has kept: numbers, texts, arrays and tensors in containers.
        inputs: It returns the inputs of a call. Equal calls get equal inputs.
        before: The loop's part before each call but the first one.
        after: The loop's part behind each call. None stands for a step of SGD on the model, behind
            which the gradients are dropped.
        catches: The exceptions of the step that the loop catches. `after` is left out then.
    """

    model: Any
    step: Step
    kept: Callable[[], Any] = nothing_kept
    inputs: Callable[[int], tuple[Any, ...]] = batch
    before: Callable[[int], Any] = nothing
    after: Callable[[int, Any], Any] | None = None
    catches: tuple[type[Exception], ...] = ()

    def left(self) -> list[Any]:
        """Returns all that has to be equal at the end."""
        parameters = dict(self.model.named_parameters(remove_duplicate=False))
        gradients = {name: p.grad for name, p in parameters.items()}
        return [parameters, gradients, dict(self.model.named_buffers()), self.kept()]


class Entry(NamedTuple):
    """A program of the registry.

    Attributes:
        name: The name of the program.
        theme: One of `THEMES`.
        make: It builds the program.
        changes: The first call whose operators or numbers are not those of call 0. None says that
            Python alone changes, in what the program keeps.
    """

    name: str
    theme: str
    make: Callable[[], Program]
    changes: int | None


PROGRAMS: list[Entry] = []


def program(
    theme: str, changes: int | None
) -> Callable[[Callable[[], Program]], Callable[[], Program]]:
    """Registers a program."""

    def register(make: Callable[[], Program]) -> Callable[[], Program]:
        PROGRAMS.append(Entry(make.__name__, theme, make, changes))
        return make

    return register


def backward(loss: Any) -> Any:
    """Computes the gradients of a loss, and returns the loss."""
    loss.backward()
    return loss


def sgd(model: Any, rate: float = 0.1) -> None:
    """Does a step of SGD, and drops the gradients."""
    with torch.no_grad():
        for p in model.parameters():
            if p.grad is not None:
                p.sub_(p.grad, alpha=rate)
            p.grad = None


def bits(value: Any) -> Any:
    """Returns a copy of a value that is equal for equal bits, and for any two NaN of Python."""
    if isinstance(value, torch.Tensor):
        return hostile.bits(value)
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    kind = type(value).__name__
    if isinstance(value, Mapping):
        return kind, [(bits(key), bits(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple, deque)):
        return kind, [bits(item) for item in value]
    return kind, value.hex() if isinstance(value, float) else repr(value)


def loop(program: Program, step: Step) -> list[tuple[str, Any]]:
    """Trains a program that was built, and returns the bits of all that it has made, with names."""
    made: list[tuple[str, Any]] = []
    results: list[Any] = []
    for call in range(CALLS):
        if call > 0:
            program.before(call)
        try:
            results.append(step(*program.inputs(call)))
        except program.catches as error:
            results.append(repr(error))
        else:
            if program.after is not None:
                program.after(call, results[-1])
            else:
                sgd(program.model)
        made.append((f"the result of call {call}", bits(results[-1])))
        made.append((f"what is kept behind call {call}", bits(program.kept())))
    # The loop has held all results: no later call may have written into them.
    made.append(("the results at the end", bits(results)))
    made.append(("what is left", bits(program.left())))
    made.append(("the generator of PyTorch", bits(torch.get_rng_state())))
    made.append(("the generator of Python", bits(random.getstate())))
    made.append(("the generator of NumPy", bits(np.random.get_state())))
    return made


def plain(step: Step, _sample: tuple[Any, ...]) -> Step:
    """Runs a step as it is written."""
    return step


def train(entry: Entry, run: Run = plain) -> list[tuple[str, Any]]:
    """Builds and trains a program.

    Args:
        entry: The program.
        run: It gets the step and the inputs of call 0, and returns the step to train with.
    """
    with fresh_world():
        program = entry.make()
        return loop(program, run(program.step, program.inputs(0)))


def difference(a: list[tuple[str, Any]], b: list[tuple[str, Any]]) -> str:
    """Returns the name of the first difference, or an empty text."""
    assert [name for name, _ in a] == [name for name, _ in b]
    return next((name for (name, x), (_, y) in zip(a, b, strict=True) if x != y), "")


def same(a: list[tuple[str, Any]], b: list[tuple[str, Any]]) -> bool:
    """Tells whether two trainings have made the same bits."""
    return not difference(a, b)


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down operators with their numbers.

    The tensors that are given as known, and those that operators make, are numbered in the order
    in which the call meets them. Tensors that Python brings along are written with their bits.
    """

    def __init__(self, known: list[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.written: list[Any] = []
        self._known: dict[int, tuple[int, Any]] = {}
        self._know(known)
        self._know([tensor.grad for _, tensor in self._known.values() if tensor.is_leaf])

    def _know(self, values: Any) -> None:
        for tensor in tree_leaves(values):
            if isinstance(tensor, torch.Tensor):
                # The tensor is held, so that no other storage gets this address.
                address = tensor.untyped_storage()._cdata
                self._known.setdefault(address, (len(self._known), tensor))

    def _write(self, value: Any) -> Any:
        if isinstance(value, torch.Generator):
            value = value.get_state()
        if not isinstance(value, torch.Tensor):
            return bits(value)
        number, _ = self._known.get(value.untyped_storage()._cdata, (None, None))
        shown = str(value.dtype), tuple(value.shape)
        return shown, bits(value) if number is None else number

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = tree_leaves((args, kwargs))
        if func.namespace != "profiler":  # Optimizers have marks for the profiler.
            self.written.append((str(func), [self._write(value) for value in given]))
        result = func(*args, **(kwargs or {}))
        self._know([given, result])
        return result


def first_change(entry: Entry) -> int | None:
    """Returns the first call of plain training whose operators are not those of call 0."""
    written: list[Any] = []
    state: dict[int, Any] = {}
    with fresh_world():
        program = entry.make()

        def watched(*inputs: Any) -> Any:
            # Parameters that take the place of others get numbers of their own.
            parts = (program.model.parameters(), program.model.buffers())
            state.update((id(tensor), tensor) for tensor in chain(*parts))
            with Operators([*state.values(), inputs]) as operators:
                try:
                    return program.step(*inputs)
                finally:
                    written.append(operators.written)

        loop(program, watched)
    return next((i for i, operators in enumerate(written) if operators != written[0]), None)
