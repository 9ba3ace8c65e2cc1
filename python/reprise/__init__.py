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

from ._capture.explanation import StepExplanation
from ._chain.frontier import frontier
from ._core import __version__, format_bytes, format_duration, parse_bytes
from ._doctor.diagnosis import Diagnosis, Finding, Trial
from ._doctor.doctor import doctor
from ._doctor.judgement import JudgedStep, Judgement
from ._fit.answer import Fit
from ._fit.fit import fake_tensors, fit
from ._fit.ranks import fit_ranks
from ._fit.ranks_answer import RanksFit, RanksRow
from ._fit.rows import FitBatch, FitRow, FitWay
from ._planning.arguments import Progress
from ._planning.chain import Chain, ChainInput, ChainLoss, Cost, Stage, StageOption
from ._planning.checking import Timeline, TimelineStep, Violation, simulate, verify
from ._planning.curve import Frontier, FrontierPoint, Svg
from ._planning.explanation import Explanation, Holder, Recomputed, explain
from ._planning.export import Export, ExportedLayer, export
from ._planning.files import load
from ._planning.graph import Choice, Graph, Op, Realization, Value, Variant
from ._planning.measured import Profile, RunLog, RunLogEntry, StepCost, TimeSpread
from ._planning.plan import Action, Baseline, Plan, ProblemId
from ._planning.planning import Planner, plan, planners
from ._planning.problems import parse_offload
from ._planning.report import ReportNotes, report_html
from ._planning.result import PlanResult, SearchCost
from .errors import BudgetError, Error, InputError, InternalError

if TYPE_CHECKING:
    from . import nn
    from ._capture.alternatives import Alternative, ApproximateValue, alternatives
    from ._capture.capture import capture
    from ._capture.captured_step import CapturedStep
    from ._capture.clipped_step import capture_clipped
    from ._capture.clipping import clipped_backward
    from ._capture.micro_batches import MicroBatchedStep, PartsTried, micro_batches
    from ._chain.profiling import profile
    from ._chain.remat import Remat, remat
    from ._chain.remat_join import RematJoin, remat_join
    from ._compile.advice import AdvisedGraph, compile_advice
    from ._compile.backend import CompiledGraph, backend
    from ._compile.knapsack import knapsack
    from ._doctor.judge import judge
    from ._modes.modes import ModeTried
    from ._modes.online import Online, OnlineReport, online
    from ._modes.train_step import TrainStep, train_step
    from ._pipeline.pipeline import PipelinedStep, PipelineReport, pipeline
    from ._pipeline.pytorch import pipeline_stage
    from ._saved.state import SavedState, StateWriting, load_state, save_state
    from ._step.memory import install_cpu_allocator, live_bytes, peak_bytes, reset_peak
    from ._step.report import OtherDevice, StepReport

# The names that need PyTorch, each with its module; `nn` is a module itself. A module is loaded
# when its name is first used.
_RUNTIME = {
    "AdvisedGraph": "_compile.advice",
    "Alternative": "_capture.alternatives",
    "ApproximateValue": "_capture.alternatives",
    "CapturedStep": "_capture.captured_step",
    "CompiledGraph": "_compile.backend",
    "MicroBatchedStep": "_capture.micro_batches",
    "ModeTried": "_modes.modes",
    "Online": "_modes.online",
    "OnlineReport": "_modes.online",
    "OtherDevice": "_step.report",
    "PartsTried": "_capture.micro_batches",
    "PipelineReport": "_pipeline.pipeline",
    "PipelinedStep": "_pipeline.pipeline",
    "Remat": "_chain.remat",
    "RematJoin": "_chain.remat_join",
    "SavedState": "_saved.state",
    "StateWriting": "_saved.state",
    "StepReport": "_step.report",
    "TrainStep": "_modes.train_step",
    "alternatives": "_capture.alternatives",
    "backend": "_compile.backend",
    "capture": "_capture.capture",
    "capture_clipped": "_capture.clipped_step",
    "clipped_backward": "_capture.clipping",
    "compile_advice": "_compile.advice",
    "install_cpu_allocator": "_step.memory",
    "judge": "_doctor.judge",
    "knapsack": "_compile.knapsack",
    "live_bytes": "_step.memory",
    "load_state": "_saved.state",
    "micro_batches": "_capture.micro_batches",
    "nn": "nn",
    "online": "_modes.online",
    "peak_bytes": "_step.memory",
    "pipeline": "_pipeline.pipeline",
    "pipeline_stage": "_pipeline.pytorch",
    "profile": "_chain.profiling",
    "remat": "_chain.remat",
    "remat_join": "_chain.remat_join",
    "reset_peak": "_step.memory",
    "save_state": "_saved.state",
    "train_step": "_modes.train_step",
}

__all__ = [
    "Action",
    "AdvisedGraph",
    "Alternative",
    "ApproximateValue",
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
    "OtherDevice",
    "PartsTried",
    "PipelineReport",
    "PipelinedStep",
    "Plan",
    "PlanResult",
    "Planner",
    "ProblemId",
    "Profile",
    "Progress",
    "RanksFit",
    "RanksRow",
    "Realization",
    "Recomputed",
    "Remat",
    "RematJoin",
    "ReportNotes",
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
    "capture_clipped",
    "clipped_backward",
    "compile_advice",
    "doctor",
    "explain",
    "export",
    "fake_tensors",
    "fit",
    "fit_ranks",
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
    "parse_offload",
    "peak_bytes",
    "pipeline",
    "pipeline_stage",
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
