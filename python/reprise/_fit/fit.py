"""Will it fit? `fit()` looks at a step and at memories of several sizes before any device does."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .. import _core
from .._planning.arguments import Observer, Progress, nanoseconds
from .._planning.chain import Chain
from .._planning.document import Document
from .._planning.files import load
from .._planning.graph import Graph
from .._planning.measured import Profile
from .._planning.plan import Plan
from .._planning.planning import plan
from .._planning.problems import text_of
from ..errors import InputError
from .answer import Fit
from .case import USED_UP, Case, Cases
from .rates import rate
from .rows import FitBatch, FitRow, FitWay
from .text import size

if TYPE_CHECKING:
    import torch

# The device that stands in where the caller names no figures. Only the proportion of the two
# matters for a plan.
ASSUMED_OPERATIONS = 100e12
ASSUMED_BYTES = 1e12
# A batch is doubled so often where the caller names none.
_DOUBLED = 3
# A search that finds no plan where there is one gets so many times its time.
_PATIENCE = 5


def fit(
    step: Any,
    *sample: Any,
    memory: int | str | Sequence[int | str],
    optimizer: torch.optim.Optimizer | None = None,
    modules: Sequence[torch.nn.Module] | None = None,
    batches: Sequence[int] | None = None,
    parts: Sequence[int] = (2, 4, 8, 16),
    times: str = "estimated",
    operations: float | str | None = None,
    bandwidth: float | str | None = None,
    overhead: float | str = 0.0,
    link: float | str | None = None,
    fixed_bytes: int | str = 0,
    time_limit: float | str = 2.0,
    threads: int = 0,
    name: str = "step",
    observer: Observer | None = None,
    **keywords: Any,
) -> Fit:
    """Says which memories hold a training step, what to switch on, and which batch is fastest.

    The step runs on fake tensors, which have sizes and no bytes: no device and no memory is needed,
    and a model of any size can be looked at. Make such a model inside `fake_tensors()`. A model
    that has real tensors may be given, too; it is left as it was. Workspaces of kernels, and what
    libraries take for themselves, are not known then: name them with `fixed_bytes`.

    Args:
        step: The training step, as for `capture()`: forward, loss and backward. Or a problem that
            was measured: a path, a dict in the file format, or a `Chain`, `Graph` or `Profile`. A
            problem needs no sample and no PyTorch.
        *sample: The arguments of the step.
        memory: The sizes of memories: bytes, or texts such as "80GB" and "24 GiB"; one or several.
        optimizer: The optimizer whose step follows. Its state is counted, and so are its
            temporaries. If the step itself calls its optimizer, leave this out.
        modules: The modules that the step trains, if the step does not show them.
        batches: The sizes of batches to look at. None stands for the sample's, and for its double
            up to three times as long as a memory holds it. Each tensor of the sample that is as
            long in dimension 0 as the first one gets another length.
        parts: The numbers of parts along the batch to look at, for a step that adds up gradients.
        times: "estimated" takes the times from `operations` and `bandwidth`. "measured" captures
            the step on its device, which has to hold it.
        operations: The multiplications and additions a second of the device, in the number format
            of the step: a number, or a text such as "400T". None stands for "100T".
        bandwidth: The bytes of device memory that the device moves a second: a number, or a text
            such as "2TB". None stands for "1TB".
        overhead: The time that each call takes beside that: seconds, or a text such as "5us".
        link: The bytes a second between the device and its host. With it, the optimizer's state in
            host memory is looked at as one more way.
        fixed_bytes: The bytes that something else holds all the time, such as the device's context.
        time_limit: The time of each search: seconds, or a text such as "2s".
        threads: As for `plan()`.
        name: The name of the step in the answer.
        observer: A function that is called with `Progress`.
        **keywords: The keyword arguments of the step.

    Returns:
        The answer. `print()` shows a table, and `html()` or `save()` makes a page.

    Raises:
        InputError: An argument is wrong, the step has no sample, or the step does something that
            fake tensors cannot.

    Examples:
        >>> def train(x, y):
        ...     nn.functional.cross_entropy(plain(x), y).backward()
        >>> found = reprise.fit(train, x, y, memory=["16 MiB", "4 MiB"], time_limit=0.2)
        >>> print(found.best("16 MiB").batch >= 2048)
        True
    """
    memories = _memories(memory)
    if times not in ("estimated", "measured"):
        raise InputError(f'times is "estimated" or "measured", not {times!r}')
    fixed = _core.parse_bytes(fixed_bytes) if isinstance(fixed_bytes, str) else fixed_bytes
    search = _Search(memories, time_limit, threads, observer)
    if not callable(step):
        if sample or keywords or optimizer is not None:
            raise InputError("a problem is measured already: it takes no sample and no optimizer")
        return _of_problem(step, fixed, search)
    if not sample:
        raise InputError(
            "to look at a step, fit() needs a sample of its inputs: fit(step, *sample, memory=...)"
        )
    _fake_step()
    from . import step as _fit_step

    question = _fit_step.Question(
        step=step,
        sample=sample,
        keywords=keywords,
        optimizer=optimizer,
        modules=modules,
        fixed_bytes=fixed,
        name=name,
        operations=rate(operations, ASSUMED_OPERATIONS, "operations"),
        bandwidth=rate(bandwidth, ASSUMED_BYTES, "bandwidth"),
        overhead_ns=_core.parse_duration(overhead)
        if isinstance(overhead, str)
        else int(overhead * 1e9),
        link=None if link is None else rate(link, 0.0, "link"),
    )
    made: Callable[[int], Cases] = question.estimated if times == "estimated" else question.measured
    found, notes = _all_batches(question.batch, batches, made, search, times == "measured")
    rows = search.rows(found, list(parts))
    assumed = operations is None and bandwidth is None
    return Fit(
        name=name,
        times=question.source_of_times(times, assumed),
        sizes=question.source_of_sizes(times),
        batches=tuple(one.plain for one in found.values()),
        rows=tuple(rows),
        notes=tuple(dict.fromkeys((*question.notes, *notes))),
        parameters=question.parameters,
    )


@contextlib.contextmanager
def fake_tensors() -> Iterator[None]:
    """While the scope lasts, new tensors are fake: they have sizes and take no memory.

    A model that is made in the scope can have any size. `fit()` takes it.

    Raises:
        InputError: PyTorch is not installed.

    Examples:
        >>> with reprise.fake_tensors():
        ...     large = nn.Linear(100_000, 100_000)  # 40 GB that are not there
    """
    made = _fake_step()
    with made.new_mode(), made.converting():
        yield


def _fake_step() -> Any:
    try:
        from . import fake_step as found
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise InputError("to look at a step, PyTorch (torch) has to be installed") from error
    return found


def _memories(given: Any) -> list[int]:
    listed = list(given) if isinstance(given, (list, tuple)) else [given]
    if not listed:
        raise InputError('memory is a size such as "80GB", or a list of sizes; it is empty')
    found = []
    for one in listed:
        if isinstance(one, bool) or not isinstance(one, (int, str)):
            raise InputError(f'a memory is a number of bytes or a text such as "80GB", not {one!r}')
        bytes = _core.parse_bytes(one) if isinstance(one, str) else one
        if not 0 < bytes < 2**62:
            raise InputError(f"a memory has at least one byte, not {one!r}")
        found.append(bytes)
    return list(dict.fromkeys(found))


def _of_problem(problem: Any, fixed_bytes: int, search: _Search) -> Fit:
    """Looks at a problem that is measured already."""
    text_of(problem, "problem")  # It says what is wrong with the argument.
    if isinstance(problem, (str, os.PathLike)):
        problem = load(problem)
    measured_on = f"measured on {problem.device}" if isinstance(problem, Profile) else ""
    source = measured_on or "those of the problem"
    if fixed_bytes:
        problem = _with_fixed(problem, fixed_bytes)
    case = search.known(Case((), problem))
    plain = FitBatch(None, case.baseline_peak, case.baseline_ns, {})
    rows = search.rows({1: Cases(plain, [case])}, [])
    named = problem.problem if isinstance(problem, Profile) else problem
    name = named.get("name") if isinstance(named, dict) else named.name
    return Fit(str(name), source, source, (plain,), tuple(rows))


def _with_fixed(problem: Any, fixed_bytes: int) -> Any:
    """Returns a problem in which something else holds so many bytes more."""
    graph = problem.problem if isinstance(problem, Profile) else problem
    if not isinstance(graph, (Chain, Graph)):
        raise InputError("fixed_bytes needs a problem that is a Chain, a Graph or a Profile")
    return dataclasses.replace(graph, fixed_bytes=graph.fixed_bytes + fixed_bytes)


def _all_batches(
    own: int | None,
    batches: Sequence[int] | None,
    made: Callable[[int], Cases],
    search: _Search,
    is_measured: bool,
) -> tuple[dict[int, Cases], list[str]]:
    """Returns the ways of all batches. A batch that the step does not take becomes a note."""
    found: dict[int, Cases] = {}
    notes: list[str] = []
    if batches is not None:
        wanted = sorted({_batch(one) for one in batches})
        if own is None:
            raise InputError("the sample has no tensor with a dimension 0, so it has no batch")
    elif own is None or is_measured:
        wanted = [own or 1]
    else:
        wanted = [own * 2**k for k in range(_DOUBLED + 1)]
    for batch in wanted:
        search.say(f"batch {batch}")
        try:
            cases = made(batch)
        except Exception as error:
            if batch == own or own is None or isinstance(error, (KeyboardInterrupt, MemoryError)):
                raise
            notes.append(f"the step does not take a batch of {batch}: {error}")
            continue
        for case in (*cases.whole, *([cases.part] if cases.part else [])):
            search.known(case)
        if own is None:
            cases.plain = dataclasses.replace(cases.plain, batch=None)
        found[batch] = cases
        smallest = min(case.smallest for case in cases.whole)
        if batches is None and smallest > max(search.memories):
            break
    return found, notes


def _batch(given: Any) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise InputError(f"batches are whole numbers from 1 on, not {given!r}")
    return given


class _Search:
    """Plans what has to be planned, and nothing twice."""

    def __init__(
        self,
        memories: list[int],
        time_limit: float | str,
        threads: int,
        observer: Observer | None,
    ) -> None:
        self.memories = memories
        self._options: dict[str, Any] = {"time_limit": time_limit, "threads": threads}
        self._seconds = nanoseconds(time_limit) / 1e9
        self._observer = observer

    def say(self, message: str) -> None:
        """Tells the observer."""
        if self._observer is not None:
            self._observer(Progress("fit", None, message))

    def known(self, case: Case) -> Case:
        """Finds the smallest budget of a case, and its cost without one."""
        if isinstance(case.problem, Document):  # Its text is needed again and again.
            case.problem = type(case.problem).from_json(case.problem.text())
        result = plan(case.problem, budget=1, **self._options)
        case.baseline_ns = result.baseline.time_ns
        case.baseline_peak = result.baseline.peak_bytes
        case.smallest = result.smallest_budget_bytes or result.baseline.peak_bytes
        case.planned[1] = result
        return case

    def rows(self, found: dict[int, Cases], parts: list[int]) -> list[FitRow]:
        """Returns the rows of all memories and batches."""
        return [
            self._row(memory, batch, found, parts) for memory in self.memories for batch in found
        ]

    def _row(self, memory: int, batch: int, found: dict[int, Cases], parts: list[int]) -> FitRow:
        cases = found[batch]
        plain = cases.plain
        ways = [FitWay((), 1, plain.peak_bytes)]
        if plain.peak_bytes <= memory:
            ways[0] = FitWay(
                (), 1, plain.peak_bytes, plain.time_ns, plain.peak_bytes, plain.time_ns
            )
        todo = [(case, 1) for case in cases.whole]
        if plain.peak_bytes <= memory:
            others = (_not_planned(case, 1) for case in cases.whole)
            return FitRow(memory, plain.batch, ways[0], (*ways, *others))
        for number in parts:
            rows, rest = divmod(batch, number)
            part = found[rows].part if rest == 0 and rows in found else None
            if part is not None:
                todo.append((part, number))
        # The way that could be the fastest comes first, so that most others need no search.
        todo.sort(key=lambda one: _least_time(*one))
        best: FitWay | None = None
        for case, number in todo:
            way = self._way(memory, case, number, None if best is None else best.time_ns)
            ways.append(way)
            if way.time_ns is not None and (best is None or way.time_ns < (best.time_ns or 0)):
                best = way
        return FitRow(memory, plain.batch, best, tuple(ways))

    def _way(self, memory: int, case: Case, parts: int, to_beat: int | None) -> FitWay:
        way = _not_planned(case, parts)
        least = _least_time(case, parts)
        if way.smallest_budget_bytes > memory or (to_beat is not None and least >= to_beat):
            return way
        if case.baseline_peak <= memory and parts > 1:
            peak = max(case.baseline_peak, case.floor_bytes)
            switch_on = way.switch_on[:-1]  # without the plan
            return dataclasses.replace(
                way, switch_on=switch_on, time_ns=least, peak_bytes=peak, lower_bound_ns=least
            )
        result = case.planned.get(memory)
        if result is None:
            self.say(f"plan for {size(memory)}: {way}")
            result = plan(case.problem, budget=memory, **self._options)
            if result.plan is None:  # There is one, because the smallest budget has one.
                longer = self._options | {"time_limit": _PATIENCE * self._seconds}
                result = plan(case.problem, budget=memory, **longer)
            case.planned[memory] = result
        if result.plan is None:
            return way
        used_up = (USED_UP,) if _uses_up(case.problem, result.plan) else ()
        return dataclasses.replace(
            way,
            switch_on=(*used_up, *way.switch_on),
            time_ns=parts * result.plan.time_ns + case.extra_ns,
            peak_bytes=max(result.plan.peak_bytes, case.floor_bytes),
            lower_bound_ns=parts * result.lower_bound_ns + case.extra_ns,
        )


def _not_planned(case: Case, parts: int) -> FitWay:
    more = [f"{parts} parts"] if parts > 1 else []
    smallest = max(case.smallest, case.floor_bytes)
    return FitWay((*case.switch_on, *more, "a plan"), parts, smallest)


def _least_time(case: Case, parts: int) -> int:
    return parts * case.baseline_ns + case.extra_ns


def _uses_up(problem: Any, plan: Plan) -> bool:
    """Returns whether a plan of a captured step has chosen to use up the gradients."""
    graph = problem.problem if isinstance(problem, Profile) else problem
    runs = {action.id for action in plan.actions if action.kind == "run"}
    return isinstance(graph, Graph) and any(
        one.name == "gradients-consumed" and not runs.isdisjoint(one.ops)
        for choice in graph.choices
        for one in choice.realizations
    )
