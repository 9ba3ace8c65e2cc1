"""Chain mode for a step that somebody else wrote: its repeated layers run as a planned chain.

A model such as a transformer calls its layers in a loop, with the activations and with arguments
that stay (masks, position embeddings). While a step runs, the layers' `forward` is replaced: each
layer hands the activations on untouched and notes its other arguments, and the last layer runs the
chain of all. The step's own code runs before and behind the chain. So it is the loss that the chain
is planned for.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from .._capture.updates import no_updates
from .._chain.remat import Remat, remat
from .._planning.arguments import Budget, Observer
from .._step.before import Before
from .._step.memory import install_cpu_allocator, live_bytes, peak_bytes, reset_peak
from .._step.report import StepReport
from .._step.tree import flatten
from ..errors import BudgetError, InputError

# These arguments hand a cache of keys and values to a layer. A layer that runs again would append
# to the cache again.
_CACHES = ("past_key_values", "past_key_value", "layer_past", "cache", "cache_params")


def repeated_layers(modules: Sequence[nn.Module]) -> list[nn.Module]:
    """Returns the list of at least two layers of one class that has the most parameters."""
    best: list[nn.Module] = []
    most = 0
    for module in modules:
        for part in module.modules():
            if not isinstance(part, (nn.ModuleList, nn.Sequential)) or len(part) < 2:
                continue
            children = list(part)
            count = sum(p.numel() for p in part.parameters())
            if len({type(child) for child in children}) == 1 and count > most:
                best, most = children, count
    return best


class _Reached(Exception):
    """The step has called `backward()` of this loss."""

    def __init__(self, loss: torch.Tensor) -> None:
        self.loss = loss


class _Prepared(Exception):
    """The chain is planned."""


class _LossWhileMeasured:
    """The loss behind the layers. The runtime keeps it, and it must not keep the step's batch."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.function: Callable[[torch.Tensor], torch.Tensor] | None = function

    def __call__(self, output: torch.Tensor) -> torch.Tensor:
        if self.function is None:
            raise InputError(
                "the layers get activations of another kind than when they were planned"
            )
        return self.function(output)


@contextlib.contextmanager
def _stopped_before_backward() -> Iterator[None]:
    """Raises `_Reached` in the scope where the step would start its backward pass."""

    def stop(tensors: Any, *_: Any, **__: Any) -> None:
        losses = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        if len(losses) != 1:
            raise InputError("the step starts its backward pass from several tensors")
        raise _Reached(losses[0])

    original = torch.autograd.backward
    torch.autograd.backward = stop
    try:
        yield
    finally:
        torch.autograd.backward = original


class _Stage:
    """One layer as a stage: it is called with the activations, and it knows its other arguments."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer
        self.arguments: tuple[Any, ...] = ()
        self.keywords: dict[str, Any] = {}
        self.by_name: str | None = None  # of the activations, if they are a keyword argument
        self.kind: type | None = None  # of the container that the layer returns them in
        self.rest: tuple[None, ...] = ()  # what is behind them in this container

    def take(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> torch.Tensor:
        """Notes the arguments of a call, and returns the activations among them."""
        if cache := next((n for n in _CACHES if keywords.get(n) is not None), None):
            raise InputError(
                f"the layers get a cache ({cache}=), and a layer that runs again would write to it "
                "again: set model.config.use_cache = False"
            )
        if arguments:
            hidden, self.by_name, self.arguments = arguments[0], None, arguments[1:]
        else:
            self.by_name = next(iter(keywords), None)
            hidden, self.arguments = keywords.get(self.by_name or ""), ()
            keywords = {n: value for n, value in keywords.items() if n != self.by_name}
        self.keywords = keywords
        if not isinstance(hidden, torch.Tensor):
            raise InputError("the first argument of a layer is no tensor of activations")
        return hidden

    def held(self) -> list[torch.Tensor]:
        """Returns the tensors among the other arguments."""
        return flatten((self.arguments, self.keywords), "what a layer is called with")[0]

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Runs the layer itself."""
        forward = type(self.layer).forward
        if self.by_name is None:
            output = forward(self.layer, hidden, *self.arguments, **self.keywords)
        else:
            output = forward(self.layer, **{self.by_name: hidden}, **self.keywords)
        return self.opened(output)

    def opened(self, output: Any) -> torch.Tensor:
        """Takes the activations out of what the layer returned, and notes what is around them."""
        if isinstance(output, torch.Tensor):
            self.kind, self.rest = None, ()
            return output
        if type(output) in (tuple, list) and output and isinstance(output[0], torch.Tensor):
            if any(item is not None for item in output[1:]):
                raise InputError(
                    f"a layer of class {type(self.layer).__name__} returns more than activations"
                )
            self.kind, self.rest = type(output), tuple(output[1:])
            return output[0]
        raise InputError(
            f"a layer of class {type(self.layer).__name__} returns no tensor of activations"
        )

    def closed(self, hidden: torch.Tensor) -> Any:
        """Puts activations into the container that the layer would have returned."""
        return hidden if self.kind is None else self.kind((hidden, *self.rest))


class LayerStep:
    """A training step whose layers run as one planned chain.

    Args:
        step: The user's function: forward, loss and one backward pass.
        layers: The layers in the order in which they run.
        modules: All modules of the step.
        budget: As for `remat()`.
        time_limit: As for `remat()`.
        observer: As for `remat()`.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        layers: Sequence[nn.Module],
        modules: Sequence[nn.Module],
        budget: Budget,
        time_limit: float | str,
        observer: Observer | None,
    ) -> None:
        self._step = step
        self._modules = modules
        self._stages = [_Stage(layer) for layer in layers]
        inside = {id(p) for layer in layers for p in layer.parameters()}
        everything = {id(p): p for module in modules for p in module.parameters()}
        self._outside = [p for i, p in everything.items() if i not in inside and p.requires_grad]
        self._trained = [p for p in everything.values() if p.requires_grad]
        self._options: dict[str, Any] = {
            "budget": budget,
            "time_limit": time_limit,
            "observer": observer,
        }
        self._planned: Remat | None = None
        self._called = 0  # the number of layers that the step has called so far
        self._finish: Callable[[torch.Tensor], torch.Tensor] = self._run_chain
        self._measured = 0

    def prepare(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Measures and plans the chain for inputs like these. Everything is left as it was.

        Raises:
            BudgetError: No plan fits.
            InputError: The layers are no chain, or the step cannot be stopped before its backward
                pass.
        """
        install_cpu_allocator()
        for stage in self._stages:
            if getattr(stage.layer, "gradient_checkpointing", False):
                raise InputError(
                    "the layers have checkpoints of their own; switch gradient checkpointing off, "
                    "because the plan decides what runs again"
                )

        def run() -> None:
            with no_updates(self._modules):  # The step runs several times here.
                self._step(*arguments, **keywords)

        with self._kept(), torch.no_grad(), self._observed():
            expected = self._loss_of(run)
        with self._kept(), torch.no_grad(), self._replaced(self._run_layers):
            found = self._loss_of(run)
        if not _same_bits(expected, found):
            raise InputError(
                "the step does more with its layers than to run them one after the other: its "
                "loss changes if the activations are handed on between them untouched"
            )
        with (
            self._kept(),
            self._without_outer_gradients(),
            self._replaced(lambda hidden: self._plan(hidden, run)),
            contextlib.suppress(_Prepared),
        ):
            run()
        self._check_end()

    def _check_end(self) -> None:
        """Raises BudgetError if the gradients of the whole model do not fit beside it."""
        assert self._planned is not None
        plan = self._planned.planned.plan
        budget = None if plan is None else plan.budget_bytes
        missing = sum(p.nbytes for p in self._trained if p.grad is None)
        largest = max((p.nbytes for p in self._outside), default=0)
        needed = live_bytes() + missing + largest
        if budget is not None and needed > budget:
            raise BudgetError(
                f"the gradients of all parameters, and one of them made, need {needed} bytes, and "
                f"the budget is {budget}"
            )

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Runs one training step."""
        reset_peak()
        with self._replaced(self._run_chain):
            result = self._step(*arguments, **keywords)
        self._measured = peak_bytes()
        return result

    def run_first(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Runs the first training step. Only then is known what follows the first backward pass.

        Raises:
            InputError: The layers are no chain. Gradients, buffers and the random state are as
                before.
        """
        before = self._before()
        try:
            return self(*arguments, **keywords)
        except InputError:
            before.put_back()
            raise

    def report(self) -> StepReport:
        """Returns the report of the chain, with the measured peak of the whole step."""
        assert self._planned is not None
        return dataclasses.replace(self._planned.report(), measured_peak_bytes=self._measured)

    @contextlib.contextmanager
    def _replaced(self, finish: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
        """Replaces the forward of the layers. `finish` is called in the last layer's place."""
        self._called = 0
        before, self._finish = self._finish, finish
        hidden: list[torch.Tensor] = []

        def replace(number: int) -> Callable[..., Any]:
            def forward(*arguments: Any, **keywords: Any) -> Any:
                stage = self._stages[number]
                if number != self._called % len(self._stages) or self._called > number:
                    raise InputError(
                        "the layers do not run once each and in their order; chain mode needs that"
                    )
                taken = stage.take(arguments, keywords)
                if number > 0 and taken is not hidden[0]:
                    raise InputError(
                        f"something changes the activations between layers {number - 1} and "
                        f"{number}, so the layers are no chain"
                    )
                self._called = number + 1
                hidden[:] = [taken]
                del arguments, keywords
                if self._called < len(self._stages):
                    return stage.closed(taken)
                del taken
                self._check_held()
                return stage.closed(self._finish(hidden.pop()))

            return forward

        for number, stage in enumerate(self._stages):
            stage.layer.__dict__["forward"] = replace(number)
        try:
            yield
        finally:
            self._finish = before
            for stage in self._stages:
                stage.layer.__dict__.pop("forward", None)
                stage.arguments, stage.keywords = (), {}

    def _check_held(self) -> None:
        """Raises InputError if a layer reads a tensor that needs a gradient beside activations."""
        for stage in self._stages:
            if any(t.requires_grad for t in stage.held()):
                raise InputError(
                    "the layers read a tensor that needs a gradient beside the activations, as "
                    "the decoder of an encoder does; chain mode cannot give it one"
                )

    def _run_chain(self, hidden: torch.Tensor) -> torch.Tensor:
        if not torch.is_grad_enabled():
            return self._run_layers(hidden)
        assert self._planned is not None
        output: torch.Tensor = self._planned(hidden)
        return output

    def _run_layers(self, hidden: torch.Tensor) -> torch.Tensor:
        for stage in self._stages:
            hidden = stage(hidden)
        return hidden

    def _plan(self, hidden: torch.Tensor, run: Callable[[], None]) -> torch.Tensor:
        """Measures and plans the chain at its place in the step."""
        if torch.is_autocast_enabled(hidden.device.type):
            raise InputError(
                "the layers run under autocast: chain mode runs their backward passes under it, "
                "too, and the step does not"
            )
        arguments = [(stage.arguments, stage.keywords) for stage in self._stages]

        def rest(output: torch.Tensor) -> torch.Tensor:
            """Runs the step with these activations in place of the chain's."""
            self._called = 0
            before, self._finish = self._finish, lambda _: output
            try:
                return self._loss_of(run)
            finally:
                self._finish = before
                for stage, (positional, named) in zip(self._stages, arguments, strict=True):
                    stage.arguments, stage.keywords = positional, named

        sample = hidden.detach().requires_grad_(hidden.requires_grad)
        loss = _LossWhileMeasured(rest)
        try:
            self._planned = remat(
                list(self._stages), sample, loss=loss, name="layers", **self._options
            )
        finally:
            loss.function = None
        raise _Prepared

    def _loss_of(self, run: Callable[[], None]) -> torch.Tensor:
        """Runs the step up to its backward pass, and returns the loss."""
        with _stopped_before_backward():
            try:
                run()
            except _Reached as reached:
                return reached.loss
        raise InputError("the step calls no backward()")

    @contextlib.contextmanager
    def _observed(self) -> Iterator[None]:
        """Notes what the layers return in the scope."""
        handles = []
        for stage in self._stages:

            def note(_module: nn.Module, _inputs: Any, output: Any, stage: _Stage = stage) -> None:
                stage.opened(output)

            handles.append(stage.layer.register_forward_hook(note))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @contextlib.contextmanager
    def _kept(self) -> Iterator[None]:
        """Puts back after the scope what the step changes in it."""
        before = self._before()
        try:
            yield
        finally:
            before.put_back()

    def _before(self) -> Before:
        """Notes all that the step may change. Parameters are not written here."""
        return Before([self._step], self._modules, [], [], updates=False)

    @contextlib.contextmanager
    def _without_outer_gradients(self) -> Iterator[None]:
        """Drops gradients of parameters outside of the layers behind each backward pass.

        They are there until the end of each pass, so the plan counts them, as new ones each time.
        """
        before = [p.grad for p in self._outside]
        handles = []

        def drop(parameter: torch.Tensor) -> None:
            parameter.grad = None

        def later(parameter: torch.Tensor) -> None:
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(lambda: drop(parameter))

        for parameter in self._outside:
            parameter.grad = None
            hooked: Any = parameter
            handles.append(hooked.register_post_accumulate_grad_hook(later))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            for parameter, gradient in zip(self._outside, before, strict=True):
                parameter.grad = gradient


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Says whether two tensors have the same bits, with all numbers that are none being equal."""
    return a.shape == b.shape and torch.equal(a.nan_to_num(nan=1.5e38), b.nan_to_num(nan=1.5e38))
