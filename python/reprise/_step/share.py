"""A budget that was named as a share of plain training's peak."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

import torch

from .._planning.arguments import Budget
from .._torch import _runtime
from ..errors import BudgetError


def is_share(budget: Budget) -> bool:
    """Returns whether a budget is a share of plain training's peak."""
    return isinstance(budget, str) and budget.strip().endswith("%")


@dataclasses.dataclass(frozen=True)
class FixedShare:
    """A share that the first batch has made a number of bytes, for all batches.

    Attributes:
        budget_bytes: The number of bytes.
        first_bytes: The bytes of the inputs of the first batch.
    """

    budget_bytes: int
    first_bytes: int

    @contextlib.contextmanager
    def told(self, inputs: Sequence[torch.Tensor]) -> Iterator[None]:
        """Lets a BudgetError of the scope say so if these inputs are larger than the first ones."""
        try:
            yield
        except BudgetError as error:
            hint = _runtime.beyond_first_batch(self.first_bytes, bytes_of(inputs))
            if not hint or hint in str(error):
                raise
            message = str(error) + hint
            raise BudgetError(message, error.budget, error.live, error.requested) from error


def bytes_of(inputs: Sequence[torch.Tensor]) -> int:
    """Returns the bytes of the elements of some tensors."""
    return sum(tensor.nbytes for tensor in inputs)
