"""Chains: problems whose model is a sequence of stages.

Stage i reads the activation x_i and writes x_{i+1}. Its backward reads the gradient g_{i+1} and
writes g_i and the gradients of the stage's weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .. import _core
from .document import Document
from .graph import Graph


@dataclass(frozen=True)
class Cost:
    """The cost of one run.

    Attributes:
        ns: The time in nanoseconds.
        workspace_bytes: The bytes that the run needs beyond what it reads and writes.
    """

    ns: int
    workspace_bytes: int = 0


@dataclass(frozen=True)
class StageOption:
    """One way to run a stage so that its backward can follow.

    Attributes:
        name: The name of the option. It is unique in the stage and is not "fast".
        saved_bytes: The bytes that are kept for the backward. They count neither the input nor the
            output of the stage.
        forward: The cost of the forward that saves these bytes.
        backward: The cost of the backward.
        reads_input: Whether the backward reads the stage's input x_i.
        reads_output: Whether the backward reads the stage's output x_{i+1}.
        consumes: Whether the backward itself gives back what it reads last. These bytes are then
            not counted while it runs (docs/formats.md).
        consumes_input: Whether the stage's input is given back in the same way.
        stopped: The cost of the forward of a re-run right before the backward. It stops early: it
            makes the saved bytes, and leaves out all that only the output needs. None if there is
            no such run.
        exactness: The distance from plain training's result: "bitwise", "rounding" or
            "approximate".
    """

    name: str
    saved_bytes: int
    forward: Cost
    backward: Cost
    reads_input: bool = True
    reads_output: bool = True
    consumes: bool = False
    consumes_input: bool = False
    stopped: Cost | None = None
    exactness: str = "bitwise"


@dataclass(frozen=True)
class Stage:
    """A part of a model that is kept or recomputed as a whole.

    Attributes:
        name: A name for people.
        output_bytes: The bytes of the output x_{i+1}.
        forward: The cost of the forward that keeps nothing for the backward.
        options: The ways to run the stage so that its backward can follow. There is at least one.
            The first option is that of plain training.
        output_gradient_bytes: The bytes of the gradient g_{i+1}. None stands for `output_bytes`.
        weight_gradient_bytes: The bytes of weight gradients that the backward leaves behind.
        random: Whether a later run must see the random numbers of the first run.
    """

    name: str
    output_bytes: int
    forward: Cost
    options: tuple[StageOption, ...]
    output_gradient_bytes: int | None = None
    weight_gradient_bytes: int = 0
    random: bool = False


@dataclass(frozen=True)
class ChainInput:
    """The input of a chain. It belongs to the caller and is live during the whole step.

    Attributes:
        bytes: The bytes of the input x_0.
        gradient_bytes: The bytes of its gradient g_0. They are 0 if nobody asks for the gradient.
    """

    bytes: int
    gradient_bytes: int = 0


@dataclass(frozen=True)
class ChainLoss:
    """The loss, which reads the last activation x_L and writes its gradient g_L.

    Attributes:
        ns: The time in nanoseconds.
        workspace_bytes: The bytes that the loss needs beyond what it reads and writes.
        consumes: Whether the loss gives back x_L itself.
    """

    ns: int = 0
    workspace_bytes: int = 0
    consumes: bool = False


@dataclass(frozen=True)
class Chain(Document):
    """A problem as a sequence of stages.

    Attributes:
        name: The name of the problem. Plans repeat it.
        input: The input of the first stage.
        stages: The stages in their order. There is at least one.
        fixed_bytes: The bytes that are held during the whole step, for example by parameters.
        loss: The loss, which follows the last stage.
    """

    FORMAT: ClassVar[str] = "reprise.chain"
    name: str
    input: ChainInput
    stages: tuple[Stage, ...]
    fixed_bytes: int = 0
    loss: ChainLoss = ChainLoss()

    def lower(self) -> Graph:
        """Returns the same problem as a graph.

        Raises:
            InputError: The chain breaks a rule of its format.
        """
        return Graph.from_json(_core.lower(self.text(), "<chain>"))

    def __repr__(self) -> str:
        return f"Chain({self.name!r}, {len(self.stages)} stages)"
