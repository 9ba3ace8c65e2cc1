"""`judge()` measures a step that has checkpoints already, beside plain training."""

from __future__ import annotations

import collections
import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch.utils import checkpoint as checkpoints
from torch.utils._python_dispatch import TorchDispatchMode

from .._capture.capture import capture
from .._capture.captured_step import CapturedStep
from .._compile.joint import storage_bytes
from .._step.before import Before
from .._step.memory import install_cpu_allocator, live_bytes, peak_bytes, reset_peak
from .._step.modules import called_modules, modules_of, optimizers_of, outermost, schedules_of
from .._step.tree import flatten
from ..errors import BudgetError, Error, InputError
from .diagnosis import Finding
from .judgement import JudgedStep, Judgement
from .trial import different, raw

# A step whose peak is above this share of plain training's saves nothing worth its time.
_SAVES_NOTHING = 0.98
# PyTorch's allocator keeps more than this multiple of the peak only if memory is in pieces.
_IN_PIECES = 1.2
# Reprise is worth a finding if it is faster by this share within the same memory.
_FASTER = 0.03


def judge(
    step: Callable[..., Any],
    *sample: Any,
    plain: Callable[..., Any] | None = None,
    modules: Sequence[torch.nn.Module] | None = None,
    compare: bool = True,
    repeats: int = 3,
    **keywords: Any,
) -> Judgement:
    """Measures a training step that saves memory in some way of its own, beside plain training.

    The step may use `torch.utils.checkpoint`, selective checkpoints, offload to the host, functions
    of its own that compute again, or a compiler. The answer says whether it has the bits of plain
    training, which peak it really has, how long it takes, what it computes again, and what Reprise
    takes within the same memory. Parameters, gradients, buffers, the state of optimizers and random
    states are left as they were.

    Args:
        step: The training step: forward, loss and backward. It may call its optimizer.
        *sample: The arguments of the step.
        plain: The same step without anything that saves memory. None stands for the step itself
            with `torch.utils.checkpoint` and hooks on saved tensors turned off.
        modules: The modules that the step trains, if the step does not show them.
        compare: Whether Reprise is tried within the step's peak, too.
        repeats: The number of runs that are timed.
        **keywords: The keyword arguments of the step.

    Returns:
        The judgement. `print()` shows a table.

    Raises:
        InputError: The step has no sample, or `repeats` is not positive.

    Examples:
        >>> from torch.utils.checkpoint import checkpoint_sequential
        >>> def train(x, y):
        ...     output = checkpoint_sequential(plain, 3, x, use_reentrant=False)
        ...     nn.functional.cross_entropy(output, y).backward()
        >>> found = reprise.judge(train, x, y)
        >>> print(found.well, len(found.again) > 0)
        True True
    """
    tensors, _ = flatten((sample, keywords), "the sample")
    if not tensors:
        raise InputError("to judge a step, judge() needs a sample: judge(step, *sample)")
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
        raise InputError(f"repeats is a number of runs from 1 on, not {repeats!r}")
    install_cpu_allocator()
    world = _World(step, plain, modules, tensors, sample, keywords)
    try:
        return _judged(world, step, plain, compare, repeats)
    finally:
        world.before.put_back()


@contextlib.contextmanager
def as_plain() -> Iterator[None]:
    """While the scope lasts, checkpoints keep what they would compute again, and hooks on saved
    tensors do nothing."""

    class Direct:
        @staticmethod
        def apply(function: Callable[..., Any], _preserve: bool, *arguments: Any) -> Any:
            return function(*arguments)

    def no_hooks(*_arguments: Any, **_keywords: Any) -> Iterator[None]:
        yield

    hooks = torch.autograd.graph.saved_tensors_hooks
    with (
        mock.patch.object(checkpoints, "_checkpoint_without_reentrant_generator", no_hooks),
        mock.patch.object(checkpoints, "CheckpointFunction", Direct),
        mock.patch.object(hooks, "__enter__", lambda self: None),
        mock.patch.object(hooks, "__exit__", lambda self, *error: None),
    ):
        yield


class _World:
    """All that the ways to run a step share: the state before it, and how it is measured."""

    def __init__(
        self,
        step: Callable[..., Any],
        plain: Callable[..., Any] | None,
        modules: Sequence[torch.nn.Module] | None,
        tensors: list[torch.Tensor],
        sample: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> None:
        self.sample, self.keywords = sample, keywords
        self.device = tensors[0].device
        found = list(modules) if modules is not None else modules_of(step)
        optimizers = optimizers_of(step) + ([] if plain is None else optimizers_of(plain))
        self.modules, self._inputs, self._optimizers = found, tensors, optimizers
        schedules = schedules_of(step) + ([] if plain is None else schedules_of(plain))
        steps = [step] if plain is None else [step, plain]
        self.before = Before(steps, self.modules, optimizers, tensors, schedules)
        if modules is not None:
            return
        # The step may call modules that it does not show. They have to be put back, too.
        try:
            with called_modules() as called:
                self.run(step)
        finally:
            self.before.put_back()
        known = {id(part) for module in found for part in module.modules()}
        hidden = [one for one in called if id(one) not in known]
        if hidden:
            self.modules = [*found, *outermost(hidden)]
            self.before = Before(steps, self.modules, optimizers, tensors, schedules)

    def run(self, step: Callable[..., Any]) -> Any:
        """Runs a step from the state before, without gradients."""
        self.before.put_back()
        for leaf in self.leaves().values():
            leaf.grad = None
        return step(*self.sample, **self.keywords)

    def leaves(self) -> dict[str, torch.Tensor]:
        """Returns the parameters and the inputs that want gradients, by name."""
        named: dict[str, torch.Tensor] = {}
        for number, module in enumerate(self.modules):
            prefix = f"{number}." if len(self.modules) > 1 else ""
            named |= {prefix + name: p for name, p in module.named_parameters()}
        wanted = (t for t in self._inputs if t.is_leaf and t.requires_grad)
        return named | {f"input {n}": t for n, t in enumerate(wanted)}

    def bits(self, result: Any) -> dict[str, bytes]:
        """Returns the bytes of all that a step leaves behind, by name."""
        tensors, _ = flatten(result, "what the step returns")
        bits = {f"result {n}": raw(one) for n, one in enumerate(tensors)}
        for name, leaf in self.leaves().items():
            bits[name] = raw(leaf)
            if leaf.grad is not None:
                bits[f"gradient of {name}"] = raw(leaf.grad)
        for number, module in enumerate(self.modules):
            bits |= {f"buffer {number}.{n}": raw(b) for n, b in module.named_buffers()}
        return bits | {"random state": raw(torch.get_rng_state())}

    def measured(self, step: Callable[..., Any]) -> tuple[int, int | None, int, dict[str, bytes]]:
        """Returns peak, reserved bytes, time and bits of one run."""
        reserved = None
        self.before.put_back()
        for leaf in self.leaves().values():
            leaf.grad = None
        self._synchronize()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)
        before = live_bytes()
        reset_peak()
        begin = time.perf_counter_ns()
        result = step(*self.sample, **self.keywords)
        self._synchronize()
        taken = time.perf_counter_ns() - begin
        # The allocator does not count memory that was taken before it was installed.
        peak = peak_bytes() - before + max(before, self._held_bytes())
        if isinstance(step, CapturedStep):
            peak = step.report().measured_peak_bytes
        if self.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self.device)
            reserved = torch.cuda.max_memory_reserved(self.device)
        return peak, reserved, taken, self.bits(result)

    def _held_bytes(self) -> int:
        """Returns the bytes of parameters, buffers, inputs and the optimizers' state."""
        tensors = [*self._inputs, *self.leaves().values()]
        tensors += [b for module in self.modules for b in module.buffers()]
        for optimizer in self._optimizers:
            for values in optimizer.state.values():
                tensors += [one for one in values.values() if isinstance(one, torch.Tensor)]
        storages = {one.untyped_storage()._cdata: one for one in tensors}
        return sum(storage_bytes(one) for one in storages.values())

    def _synchronize(self) -> None:
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)


class _Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the calls of operators that compute, while it is active."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: collections.Counter[str] = collections.Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        computes = isinstance(func, torch._ops.OpOverload) and not func.is_view
        if computes and func.namespace not in ("prim", "profiler"):
            self.calls[str(func.overloadpacket)] += 1
        return func(*args, **(kwargs or {}))


def _counted(world: _World, step: Callable[..., Any]) -> tuple[Any, dict[str, int]]:
    """Returns the calls of one run, and how often each module ran during the backward."""
    paths = {id(p): path for one in world.modules for path, p in one.named_modules()}
    again: dict[str, int] = {}
    inside: list[torch.nn.Module] = []

    def enter(module: torch.nn.Module, _inputs: Any) -> None:
        if not inside and torch._C._current_autograd_node() is not None:
            path = paths.get(id(module)) or type(module).__name__
            again[path] = again.get(path, 0) + 1
        inside.append(module)

    def leave(_module: torch.nn.Module, _inputs: Any, _output: Any) -> None:
        inside.pop()

    before = torch.nn.modules.module.register_module_forward_pre_hook(enter)
    after = torch.nn.modules.module.register_module_forward_hook(leave, always_call=True)
    counted = _Counted()
    try:
        with counted:
            world.run(step)
    finally:
        before.remove()
        after.remove()
    return counted.calls, again


def _judged(
    world: _World,
    step: Callable[..., Any],
    plain: Callable[..., Any] | None,
    compare: bool,
    repeats: int,
) -> Judgement:
    def plainly(*sample: Any, **keywords: Any) -> Any:
        with as_plain():
            return step(*sample, **keywords)

    reference = plain or plainly
    plain_calls, _ = _counted(world, reference)
    calls, modules = _counted(world, step)
    ways: dict[str, Callable[..., Any]] = {"plain": reference, "this step": step}
    expected = world.measured(reference)[3]
    found = {"this step": world.measured(step)}
    repeats_its_bits = world.measured(reference)[3] == expected
    error = ""
    if compare:
        try:
            ways["reprise"] = _planned(world, reference, found["this step"][0])
            found["reprise"] = world.measured(ways["reprise"])
        except Error as refused:
            error = str(refused)
            ways.pop("reprise", None)
            world.before.put_back()
    runs: dict[str, list[Any]] = {name: [] for name in ways}
    for _ in range(repeats):  # in turn, so that a machine that slows down slows all of them
        for name, way in ways.items():
            runs[name].append(world.measured(way))
    counts = {"plain": sum(plain_calls.values()), "this step": sum(calls.values())}
    steps = [
        JudgedStep(
            name,
            peak_bytes=max(run[0] for run in runs[name]),
            reserved_bytes=runs[name][-1][1],
            time_ns=int(statistics.median(run[2] for run in runs[name])),
            calls=counts.get(name),
            different=() if name == "plain" else different(expected, found[name][3]),
        )
        for name in ways
    ]
    if error:
        steps.append(JudgedStep("reprise", error=error))
    more = {name: number - plain_calls[name] for name, number in calls.items()}
    again = sorted(((n, k) for n, k in more.items() if k > 0), key=lambda one: (-one[1], one[0]))
    judgement = Judgement(str(world.device), tuple(steps), tuple(again), tuple(modules.items()), ())
    findings = _findings(judgement, repeats_its_bits, plain is None)
    return Judgement(
        judgement.device, judgement.steps, judgement.again, judgement.modules, tuple(findings)
    )


def _planned(world: _World, step: Callable[..., Any], budget: int) -> CapturedStep:
    """Returns the step captured and planned for a budget, or for the smallest one above it."""
    world.before.put_back()
    captured = capture(step, *world.sample, modules=list(world.modules), **world.keywords)
    for leaf in world.leaves().values():
        leaf.grad = None
    try:
        captured.plan(budget=budget, time_limit=5.0)
    except BudgetError as error:
        if not error.requested:
            raise
        captured.plan(budget=error.requested, time_limit=10.0)
    return captured


def _findings(judgement: Judgement, repeats_its_bits: bool, turned_off: bool) -> list[Finding]:
    plain, judged = judgement.step("plain"), judgement.step("this step")
    assert plain is not None and judged is not None
    findings = []
    if not repeats_its_bits:
        findings.append(
            Finding(
                "plain training itself does not repeat its bits here",
                "torch.use_deterministic_algorithms(True) and one thread, and try again",
            )
        )
    elif judged.different:
        named = ", ".join(judged.different[:4])
        rest = len(judged.different) - 4
        more = f" and {rest} more" if rest > 0 else ""
        findings.append(
            Finding(
                f"other bits than plain training: {named}{more}",
                "random numbers that are not replayed, running statistics that are updated twice, "
                "or another order of sums; with a seed that does not matter it may be wanted",
            )
        )
    if judged.peak_bytes > _SAVES_NOTHING * plain.peak_bytes:
        share = 100 * judged.peak_bytes / plain.peak_bytes
        advice = "the peak lies where nothing is saved: look at what is held there"
        if turned_off and not judgement.again:
            advice = "nothing runs again; if the step is compiled, give plain= to compare with"
        findings.append(Finding(f"the peak is {share:.0f} % of plain training's", advice))
    if judged.reserved_bytes and judged.reserved_bytes > _IN_PIECES * judged.peak_bytes:
        share = judged.reserved_bytes / judged.peak_bytes
        findings.append(
            Finding(
                f"the allocator keeps {share:.1f} times what is live at most",
                "its memory is in pieces: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            )
        )
    ours = judgement.step("reprise")
    fits = ours is not None and not ours.different and ours.peak_bytes <= judged.peak_bytes
    if ours is not None and fits and ours.time_ns < (1 - _FASTER) * judged.time_ns:
        saved = 100 - 100 * ours.time_ns / judged.time_ns
        findings.append(
            Finding(
                f"within the same memory Reprise took {saved:.0f} % less time",
                f"reprise.capture(step, *sample), then plan(budget={judged.peak_bytes})",
            )
        )
    return findings
