"""The user's step as a function of a list of tensors, as the runtime records it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.checkpoint import set_checkpoint_early_stop

from .._step.interrupt import note_interrupt
from .._step.recording import under_way
from .._step.returned import returned_numbers
from .._step.tree import Tree, flatten, rebuild
from ..errors import InputError
from .lockstep import beside_recording, compare_structures
from .updates import no_updates


class RecordedFunction:
    """The user's function, and the structures of its inputs and results.

    Attributes:
        step: The function.
        inputs: The structure of its arguments: a tuple of arguments and a dict of keywords.
        outputs: The structure of what the last call returned, or None before the first call.
        after_run: It is called behind each call of the function.
        comparing: It says whether the function runs beside its recording, to be compared with it.
        recorded: It returns the structure of the result in the recording, or None if it is unknown.
    """

    def __init__(
        self, step: Callable[..., Any], inputs: Tree, modules: Sequence[torch.nn.Module] = ()
    ) -> None:
        self.step = step
        self.inputs = inputs
        self._modules = modules  # Their parameters must not be updated.
        self.outputs: Tree | None = None
        self.after_run: Callable[[], None] | None = None
        self.comparing: Callable[[], bool] = bool
        self.recorded: Callable[[], Tree | None] = lambda: None

    def __call__(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Calls the function with these tensors and returns the tensors of its result."""
        return self._run(tensors, {})

    def part(self, tensors: list[torch.Tensor], share: float) -> list[torch.Tensor]:
        """Calls the function with the rows of a part and with their share of all rows."""
        return self._added_up(self._run(tensors, {"share": share}))

    def behind(
        self, body: RecordedFunction, tensors: list[torch.Tensor], share: float
    ) -> list[torch.Tensor]:
        """Calls the function with the rows of a part of what a body returned."""
        assert body.outputs is not None
        results = rebuild(body.outputs, tensors)
        results = results if isinstance(results, (tuple, list)) else (results,)
        return self._added_up(self._call(results, {"share": share}))

    def _added_up(self, outputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Returns the outputs. Raises InputError if they cannot be added up over the parts."""
        if self.outputs is not None and self.outputs.has_numbers():
            raise InputError(
                "what the parts of a step return is added up: tensors only, not numbers read by "
                "item()"
            )
        if self.outputs is not None and self.outputs.constants():
            raise InputError(
                "what the parts of a step return is added up: tensors only, not "
                f"{self.outputs.constants()[0]!r}"
            )
        return outputs

    def _run(self, tensors: list[torch.Tensor], more: dict[str, Any]) -> list[torch.Tensor]:
        arguments, keywords = rebuild(self.inputs, tensors)
        return self._call(arguments, keywords | more)

    def _call(self, arguments: Sequence[Any], keywords: dict[str, Any]) -> list[torch.Tensor]:
        if not self.comparing():
            outputs, self.outputs = self._result(arguments, keywords)
            self.notify()
            return outputs
        with beside_recording():
            outputs, tree = self._result(arguments, keywords)
        recorded = self.recorded()
        if recorded is not None:
            compare_structures(recorded, tree)
        return outputs

    def _result(
        self, arguments: Sequence[Any], keywords: dict[str, Any]
    ) -> tuple[list[torch.Tensor], Tree]:
        # A checkpoint that stops early would leave its last operation half-way.
        with (
            under_way(),
            no_updates(self._modules),
            set_checkpoint_early_stop(False),
            returned_numbers() as reads,
        ):
            try:
                result = flatten(self.step(*arguments, **keywords), "what the step returns")
            except TypeError as error:
                reads.explain(error)
                raise
            except BaseException as error:
                note_interrupt(error)
                raise
        reads.settle()
        return result

    def notify(self) -> None:
        """Says that the function was called."""
        if self.after_run is not None:
            self.after_run()
