"""Train neural networks inside a byte budget.

Planning, checking and frontiers work on files and values and need no PyTorch. With PyTorch, a model
trains inside a budget: the gradients are the same to the last bit, and the measured peak is within
the budget.

    model = reprise.remat(model, sample, budget="8 GiB")  # an nn.Sequential or a list of stages
    step = reprise.capture(step, *sample)                 # the whole training step of any model
    step = reprise.train_step(step, *sample, budget="8 GiB")  # any step, in the best mode for it
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._arguments import Progress
from ._chain import Chain, ChainInput, ChainLoss, Cost, Stage, StageOption
from ._checking import Timeline, TimelineStep, Violation, simulate, verify
from ._core import __version__, format_bytes, format_duration, parse_bytes
from ._curve import Frontier, FrontierPoint, Svg
from ._diagnosis import Diagnosis, Finding, Trial
from ._doctor import doctor
from ._explanation import Explanation, Holder, Recomputed, explain
from ._export import Export, ExportedLayer, export
from ._files import load
from ._fit import fake_tensors, fit
from ._fit_answer import Fit
from ._fit_rows import FitBatch, FitRow, FitWay
from ._frontier import frontier
from ._graph import Choice, Graph, Op, Realization, Value, Variant
from ._judgement import JudgedStep, Judgement
from ._measured import Profile, RunLog, RunLogEntry, StepCost, TimeSpread
from ._plan import Action, Baseline, Plan, ProblemId
from ._planning import Planner, plan, planners
from ._report import report_html
from ._result import PlanResult, SearchCost
from ._step_explanation import StepExplanation
from .errors import BudgetError, Error, InputError, InternalError

if TYPE_CHECKING:
    from . import nn
    from ._advice import AdvisedGraph, compile_advice
    from ._alternatives import Alternative, alternatives
    from ._backend import CompiledGraph, backend
    from ._capture import CapturedStep, capture
    from ._clipping import clipped_backward
    from ._judge import judge
    from ._knapsack import knapsack
    from ._memory import install_cpu_allocator, live_bytes, peak_bytes, reset_peak
    from ._micro_batches import MicroBatchedStep, PartsTried, micro_batches
    from ._modes import ModeTried
    from ._online import Online, OnlineReport, online
    from ._pipeline import PipelinedStep, PipelineReport, pipeline
    from ._profiling import profile
    from ._remat import Remat, remat
    from ._remat_join import RematJoin, remat_join
    from ._saved_state import SavedState, StateWriting, load_state, save_state
    from ._step_report import StepReport
    from ._train_step import TrainStep, train_step

# The names that need PyTorch, each with its module; `nn` is a module itself. A module is loaded
# when its name is first used.
_RUNTIME = {
    "Alternative": "_alternatives",
    "AdvisedGraph": "_advice",
    "CapturedStep": "_capture",
    "CompiledGraph": "_backend",
    "MicroBatchedStep": "_micro_batches",
    "ModeTried": "_modes",
    "Online": "_online",
    "OnlineReport": "_online",
    "PartsTried": "_micro_batches",
    "PipelineReport": "_pipeline",
    "PipelinedStep": "_pipeline",
    "Remat": "_remat",
    "RematJoin": "_remat_join",
    "SavedState": "_saved_state",
    "StateWriting": "_saved_state",
    "StepReport": "_step_report",
    "TrainStep": "_train_step",
    "alternatives": "_alternatives",
    "backend": "_backend",
    "clipped_backward": "_clipping",
    "compile_advice": "_advice",
    "knapsack": "_knapsack",
    "capture": "_capture",
    "install_cpu_allocator": "_memory",
    "judge": "_judge",
    "live_bytes": "_memory",
    "load_state": "_saved_state",
    "micro_batches": "_micro_batches",
    "nn": "nn",
    "online": "_online",
    "peak_bytes": "_memory",
    "pipeline": "_pipeline",
    "profile": "_profiling",
    "remat": "_remat",
    "remat_join": "_remat_join",
    "reset_peak": "_memory",
    "save_state": "_saved_state",
    "train_step": "_train_step",
}

__all__ = [
    "Action",
    "AdvisedGraph",
    "Alternative",
    "Baseline",
    "BudgetError",
    "CapturedStep",
    "Chain",
    "ChainInput",
    "ChainLoss",
    "Choice",
    "CompiledGraph",
    "Cost",
    "Diagnosis",
    "Error",
    "Explanation",
    "Export",
    "ExportedLayer",
    "Finding",
    "Fit",
    "FitBatch",
    "FitRow",
    "FitWay",
    "Frontier",
    "FrontierPoint",
    "Graph",
    "Holder",
    "InputError",
    "InternalError",
    "JudgedStep",
    "Judgement",
    "MicroBatchedStep",
    "ModeTried",
    "Online",
    "OnlineReport",
    "Op",
    "PartsTried",
    "PipelineReport",
    "PipelinedStep",
    "Plan",
    "PlanResult",
    "Planner",
    "ProblemId",
    "Profile",
    "Progress",
    "Realization",
    "Recomputed",
    "Remat",
    "RematJoin",
    "RunLog",
    "RunLogEntry",
    "SavedState",
    "SearchCost",
    "Stage",
    "StageOption",
    "StateWriting",
    "StepCost",
    "StepExplanation",
    "StepReport",
    "Svg",
    "TimeSpread",
    "Timeline",
    "TimelineStep",
    "TrainStep",
    "Trial",
    "Value",
    "Variant",
    "Violation",
    "__version__",
    "alternatives",
    "backend",
    "capture",
    "clipped_backward",
    "compile_advice",
    "doctor",
    "explain",
    "export",
    "fake_tensors",
    "fit",
    "format_bytes",
    "format_duration",
    "frontier",
    "install_cpu_allocator",
    "judge",
    "knapsack",
    "live_bytes",
    "load",
    "load_state",
    "micro_batches",
    "nn",
    "online",
    "parse_bytes",
    "peak_bytes",
    "pipeline",
    "plan",
    "planners",
    "profile",
    "remat",
    "remat_join",
    "report_html",
    "reset_peak",
    "save_state",
    "simulate",
    "train_step",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _RUNTIME:
        raise AttributeError(f"module 'reprise' has no attribute {name!r}")
    import importlib

    importlib.import_module("._torch", __name__)  # It raises InputError where nothing can train.
    module = importlib.import_module(f".{_RUNTIME[name]}", __name__)
    value = module if name == _RUNTIME[name] else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_RUNTIME))
