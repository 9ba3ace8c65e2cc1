"""A plan for people who cannot run ours: which layers to checkpoint, in the words of other tools.

A plan decides op by op. Checkpoints decide layer by layer, and compute a whole layer again at the
beginning of its backward. So an export is the nearest that a checkpoint can do, and its peak and
its time are not those of the plan: `judge()` measures them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import _core
from ..errors import InputError
from .document import dumps
from .graph import Graph, Op
from .html import lined_table
from .measured import Profile
from .plan import Plan
from .problems import PlanLike, text_of

_TARGETS = ("checkpoint", "transformers", "torch_remat")
# A layer is computed again if the plan makes again at least this share of what its ops write.
_AGAIN = 0.5


@dataclass(frozen=True)
class ExportedLayer:
    """A layer, and what the plan does with it.

    Attributes:
        path: The path of the layer's module, for example "blocks.3".
        made_bytes: The bytes of all values that the layer's forward writes.
        again_bytes: The bytes of those among them that the plan makes again.
        forward_ns: The time of the layer's forward in nanoseconds.
        again: Whether the layer is computed again.
    """

    path: str
    made_bytes: int
    again_bytes: int
    forward_ns: int
    again: bool


@dataclass(frozen=True)
class Export:
    """A plan as decisions for layers. `str()` of it is a text for the target.

    Attributes:
        to: The target.
        layers: The layers in their order.
        text: The lines of a program, or of a configuration.
    """

    to: str
    layers: tuple[ExportedLayer, ...]
    text: str

    @property
    def again(self) -> tuple[str, ...]:
        """The paths of the layers that are computed again."""
        return tuple(layer.path for layer in self.layers if layer.again)

    def apply(self, model: Any) -> Any:
        """Checkpoints the layers of a model with `torch.utils.checkpoint`.

        The forward of each layer that is computed again is replaced. The keys of `state_dict()`
        stay as they are.

        Args:
            model: The module whose `named_modules()` have the paths of the layers.

        Returns:
            The model.

        Raises:
            InputError: The model has no module at one of the paths.
        """
        import functools

        from torch.utils.checkpoint import checkpoint

        modules = dict(model.named_modules())
        for path in self.again:
            if path not in modules:
                known = ", ".join(list(modules)[1:6])
                raise InputError(f'the model has no module "{path}"; it has {known} ...')
        for path in self.again:
            plain = modules[path].forward
            modules[path].forward = functools.partial(checkpoint, plain, use_reentrant=False)
        return model

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        rows = [
            [
                layer.path,
                "again" if layer.again else "kept",
                _core.format_bytes(layer.made_bytes),
                _core.format_bytes(layer.again_bytes),
                _core.format_duration(layer.forward_ns),
            ]
            for layer in self.layers
        ]
        return lined_table(["layer", "", "made", "made again", "forward"], rows)


def export(
    problem: Any, plan: PlanLike, *, to: str = "checkpoint", layers: Sequence[str] | None = None
) -> Export:
    """Turns a plan into decisions for layers, for tools that checkpoint whole layers.

    A layer is computed again if the plan makes again at least half of the bytes that its forward
    writes. The peak and the time of checkpoints are not those of the plan: `judge()` measures them.

    Args:
        problem: A `Graph` or a `Profile` of one, or the path or dict of one, whose ops have owners:
            `captured.graph`.
        plan: A path, a dict in the file format, or a `Plan`: `captured.planned.plan`.
        to: "checkpoint" for `torch.utils.checkpoint` (`apply()` does it), "transformers" for
            `gradient_checkpointing_kwargs` (5.17 or newer), "torch_remat" for its
            `remat.checkpoint()`.
        layers: The paths of the layers. None stands for the repeated ones: the modules whose path
            ends with a number, the outermost of them.

    Raises:
        InputError: The target is unknown, the problem is no graph, or it has no such layers.

    Examples:
        >>> result = step.plan(budget="80%")
        >>> found = reprise.export(step.graph, result.plan)
        >>> lines = str(found)
    """
    if to not in _TARGETS:
        known = ", ".join(f'"{name}"' for name in _TARGETS)
        raise InputError(f"a plan can be exported to {known}, not to {to!r}")
    graph = _graph_of(problem)
    runs = _runs_of(plan)
    unknown = runs.keys() - {op.id for op in graph.ops}
    if unknown:
        raise InputError(f'the plan is for another problem: it runs "{min(unknown)}"')
    found = _layers_of(graph, runs, layers)
    return Export(to, found, _text(to, found))


def _graph_of(problem: Any) -> Graph:
    if isinstance(problem, (Graph, Profile)):
        value: Any = problem
    else:
        text, name = text_of(problem, "problem")
        kind = Profile if '"reprise.profile"' in text[:200] else Graph
        value = kind.from_json(text, name)
    graph = value.problem if isinstance(value, Profile) else value
    if not isinstance(graph, Graph):
        raise InputError("only the plan of a graph can be exported: its ops have owners")
    return graph


def _runs_of(plan: PlanLike) -> Counter[str]:
    text, name = text_of(plan, "plan")
    value = plan if isinstance(plan, Plan) else Plan.from_json(text, name)
    return Counter(action.id for action in value.actions if action.kind == "run")


def _layers_of(
    graph: Graph, runs: Counter[str], wanted: Sequence[str] | None
) -> tuple[ExportedLayer, ...]:
    sizes = {value.id: value.bytes for value in graph.values}
    ops: dict[str, list[Op]] = {} if wanted is None else {path: [] for path in wanted}
    for op in graph.ops:
        if op.phase == "forward" and runs[op.id]:
            path = _layer_of(op.owner, wanted)
            if path is not None:
                ops.setdefault(path, []).append(op)
    empty = [path for path, own in ops.items() if not own]
    if empty or not ops:
        owners = dict.fromkeys(op.owner for op in graph.ops if op.owner)
        known = ", ".join(list(owners)[:5]) or "no owners"
        what = f'no forward op belongs to "{empty[0]}"' if empty else "the step repeats no layer"
        raise InputError(f"{what}; its ops belong to {known}; name the layers: layers=[...]")
    return tuple(_layer(path, own, runs, sizes) for path, own in ops.items())


def _layer_of(owner: str, wanted: Sequence[str] | None) -> str | None:
    """Returns the path of the layer that an op belongs to, or None if it belongs to none."""
    if wanted is None:
        found = re.match(r"(?:[^.]*[^.\d][^.]*\.)*\d+(?=\.|$)", owner)
        return None if found is None else found.group()
    fitting = [path for path in wanted if owner == path or owner.startswith(f"{path}.")]
    return max(fitting, key=len, default=None)


def _layer(path: str, ops: list[Op], runs: Counter[str], sizes: dict[str, int]) -> ExportedLayer:
    made = {op.id: sum(sizes[id] for id in op.variants[0].writes) for op in ops}
    total = sum(made.values())
    again = sum(made[op.id] for op in ops if runs[op.id] > 1)
    return ExportedLayer(
        path,
        total,
        again,
        sum(op.variants[0].ns for op in ops),
        total > 0 and again >= _AGAIN * total,
    )


def _text(to: str, layers: Sequence[ExportedLayer]) -> str:
    again = [layer.path for layer in layers if layer.again]
    if to == "transformers":
        if not again:
            return "gradient_checkpointing = False"
        every = max(1, round(len(layers) / len(again)))
        return (
            f'gradient_checkpointing_kwargs = {{"every_n_layers": {every}}}'
            f"  # the plan: {len(again)} of {len(layers)} layers"
        )
    if to == "torch_remat":
        return "\n".join(
            ["import torch_remat as remat", ""]
            + [
                f"# {path}: x = remat.checkpoint(region_name={dumps(path)})(layer)(x)"
                if path in again
                else f"# {path}: x = layer(x)"
                for path in (layer.path for layer in layers)
            ]
        )
    return "\n".join(
        [
            "from torch.utils.checkpoint import checkpoint",
            "",
            f"AGAIN = {dumps(again)}",
            "modules = dict(model.named_modules())",
            "for path in AGAIN:",
            "    plain = modules[path].forward",
            "    modules[path].forward = functools.partial(checkpoint, plain, use_reentrant=False)",
        ]
    ).replace("from torch", "import functools\nfrom torch", 1)
