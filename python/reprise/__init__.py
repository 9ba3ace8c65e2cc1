"""Train neural networks inside a byte budget.

Planning, checking and curves work on files and values and need no PyTorch. With PyTorch,

    model = reprise.remat(model, sample, budget="8 GiB")      # an nn.Sequential or a list of stages
    step = reprise.capture(step, *sample)                     # any model: the whole training step

run it: same gradients to the last bit, measured peak within the budget.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._core import __version__, format_bytes, format_duration, parse_bytes
from ._doctor import Diagnosis, Finding, Trial, doctor
from ._model import (
    Action,
    Baseline,
    Chain,
    ChainInput,
    ChainLoss,
    Choice,
    Cost,
    Frontier,
    FrontierPoint,
    Graph,
    Op,
    Plan,
    ProblemId,
    Profile,
    RunLog,
    RunLogEntry,
    Stage,
    StageOption,
    StepCost,
    Svg,
    TimeSpread,
    Value,
    Variant,
    load,
)
from ._planning import (
    Explanation,
    Holder,
    Planner,
    PlanResult,
    Progress,
    Recomputed,
    SearchCost,
    Timeline,
    TimelineStep,
    Violation,
    explain,
    frontier,
    plan,
    planners,
    report_html,
    simulate,
    verify,
)
from .errors import BudgetError, Error, InputError, InternalError

if TYPE_CHECKING:
    from ._capture import Alternative, CapturedStep, alternatives, capture
    from ._micro_batches import MicroBatchedStep, PartsTried, micro_batches
    from ._remat import Remat, profile, remat
    from ._torch import StepReport, install_cpu_allocator, live_bytes, peak_bytes, reset_peak

# Names that need PyTorch are loaded when they are used first.
_RUNTIME = {
    "Alternative": "_capture",
    "CapturedStep": "_capture",
    "MicroBatchedStep": "_micro_batches",
    "PartsTried": "_micro_batches",
    "Remat": "_remat",
    "StepReport": "_torch",
    "alternatives": "_capture",
    "capture": "_capture",
    "install_cpu_allocator": "_torch",
    "live_bytes": "_torch",
    "micro_batches": "_micro_batches",
    "peak_bytes": "_torch",
    "reset_peak": "_torch",
    "profile": "_remat",
    "remat": "_remat",
}

__all__ = [
    "Action",
    "Alternative",
    "Baseline",
    "BudgetError",
    "CapturedStep",
    "Chain",
    "ChainInput",
    "ChainLoss",
    "Choice",
    "Cost",
    "Diagnosis",
    "Error",
    "Explanation",
    "Finding",
    "Frontier",
    "FrontierPoint",
    "Graph",
    "Holder",
    "InputError",
    "InternalError",
    "MicroBatchedStep",
    "Op",
    "PartsTried",
    "Plan",
    "PlanResult",
    "Planner",
    "ProblemId",
    "Profile",
    "Progress",
    "Recomputed",
    "Remat",
    "RunLog",
    "RunLogEntry",
    "SearchCost",
    "Stage",
    "StageOption",
    "StepCost",
    "StepReport",
    "Svg",
    "TimeSpread",
    "Timeline",
    "TimelineStep",
    "Trial",
    "Value",
    "Variant",
    "Violation",
    "__version__",
    "alternatives",
    "capture",
    "doctor",
    "explain",
    "format_bytes",
    "format_duration",
    "frontier",
    "install_cpu_allocator",
    "live_bytes",
    "load",
    "micro_batches",
    "parse_bytes",
    "peak_bytes",
    "plan",
    "planners",
    "profile",
    "remat",
    "report_html",
    "reset_peak",
    "simulate",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _RUNTIME:
        raise AttributeError(f"module 'reprise' has no attribute {name!r}")
    import importlib

    importlib.import_module("._torch", __name__)  # says what is missing, if something is
    value = getattr(importlib.import_module(f".{_RUNTIME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_RUNTIME))
