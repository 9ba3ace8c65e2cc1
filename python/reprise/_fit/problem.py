"""The notes of a step on fake tensors as problems for the planner.

One run gives several problems: the step as it is, the step with the optimizer's updates inside the
backward, and one part of several whose gradients are added up.
"""

from __future__ import annotations

from dataclasses import dataclass

from .._planning.graph import Graph, Op, Value, Variant
from .fake_step import Call, Run


@dataclass(frozen=True)
class Work:
    """The cost of a piece of work behind a gradient.

    Attributes:
        ns: Its time in nanoseconds.
        workspace_bytes: The bytes that it takes beyond what it reads and writes.
    """

    ns: int
    workspace_bytes: int = 0


def whole_step(run: Run, name: str, fixed_bytes: int, optimizer: Work | None) -> Graph:
    """Returns the step, with the optimizer's whole step behind it if there is one."""
    lowering = _Lowering(run)
    lowering.calls()
    if optimizer is not None:
        lowering.behind_all(optimizer)
    return lowering.graph(name, fixed_bytes)


def with_updates(run: Run, name: str, fixed_bytes: int, updates: dict[int, Work]) -> Graph:
    """Returns the step in which each gradient is used up by the update of its leaf.

    An update runs as soon as the gradient is complete and nothing reads the leaf any more.

    Args:
        run: The notes.
        name: The name of the problem.
        fixed_bytes: The bytes that are held beside the inputs, such as the optimizer's state.
        updates: The update of each leaf, by the number of its storage.
    """
    lowering = _Lowering(run)
    lowering.using_up(updates, changes_leaf=True)
    return lowering.graph(name, fixed_bytes)


def one_part(run: Run, name: str, fixed_bytes: int, sums: dict[int, Work]) -> Graph:
    """Returns one part of several along the batch, whose gradients are added to those before.

    Args:
        run: The notes of the step for the rows of a part.
        name: The name of the problem.
        fixed_bytes: The bytes that are held beside the inputs, the sums of gradients among them.
        sums: The addition of the gradient of each leaf, by the number of its storage.
    """
    lowering = _Lowering(run)
    lowering.using_up(sums, changes_leaf=False)
    return lowering.graph(name, fixed_bytes)


class _Lowering:
    """A graph that is being made from the notes of a run.

    A storage that the run makes is one value, and another one from each write in place on, which
    takes over its memory. An input that the run changes has a value of no bytes beside it, its
    version: who reads the input reads the version, and who writes it uses the version up. So no op
    can run again and read what came later.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._values: list[Value] = []
        self._ops: list[Op] = []
        self._now: dict[int, str] = {}  # the value of each storage
        self._version: dict[int, str] = {}  # of the inputs that the run changes
        self._versions = 0
        self._used_up: set[int] = set()
        for number, stored in enumerate(run.storages):
            if stored.kind == "input":
                self._now[number] = f"{stored.role}.{number}"
                self._values.append(Value(self._now[number], stored.bytes, "input"))
        self._changed = {
            number
            for call in run.calls
            for number in call.writes
            if run.storages[number].kind == "input"
        }

    def calls(self) -> None:
        """Adds all calls in their order."""
        self._begin()
        for call in self._run.calls:
            self._add(call)

    def using_up(self, works: dict[int, Work], *, changes_leaf: bool) -> None:
        """Adds all calls, and behind the last one that matters to a gradient the work with it."""
        gradients = {leaf: g for leaf, g in self._run.gradients.items() if self._is_made(g)}
        if changes_leaf:
            self._changed |= gradients.keys() & works.keys()
        last = {
            number: position
            for position, call in enumerate(self._run.calls)
            for number in (*call.reads, *call.makes, *call.writes)
        }
        behind: dict[int, list[int]] = {}
        for leaf, gradient in gradients.items():
            if leaf in works:
                watched = (leaf, gradient) if changes_leaf else (gradient,)
                position = max(last[number] for number in watched if number in last)
                behind.setdefault(position, []).append(leaf)
        self._begin()
        for position, call in enumerate(self._run.calls):
            self._add(call)
            for leaf in behind.get(position, []):
                self._use_up(leaf, gradients[leaf], works[leaf], changes_leaf)

    def behind_all(self, work: Work) -> None:
        """Adds an op that reads all gradients."""
        reads = [self._now[gradient] for gradient in self._run.gradients.values()]
        variant = Variant(
            work.ns, workspace_bytes=work.workspace_bytes, reads=tuple(dict.fromkeys(reads))
        )
        self._ops.append(Op(f"{len(self._ops)}:optimizer", (variant,), "backward", once=True))

    def graph(self, name: str, fixed_bytes: int) -> Graph:
        """Returns the graph."""
        results = [self._now[n] for n in self._run.kept if n not in self._used_up]
        return Graph(name, tuple(self._values), tuple(self._ops), tuple(results), fixed_bytes)

    def _is_made(self, number: int) -> bool:
        return self._run.storages[number].kind != "input"

    def _begin(self) -> None:
        """Adds the op that makes the first version of each input that the run changes."""
        if self._changed:
            made = tuple(self._new_version(number) for number in sorted(self._changed))
            self._ops.append(Op("0:inputs", (Variant(0, writes=made),), once=True))

    def _new_version(self, number: int) -> str:
        self._versions += 1
        id = f"version.{number}.{self._versions}"
        self._values.append(Value(id, 0, "state"))
        self._version[number] = id
        return id

    def _add(self, call: Call) -> None:
        reads = [self._now[number] for number in call.reads]
        reads += [self._version[number] for number in call.reads if number in self._version]
        writes, reuses, consumes = [], [], []
        for number in call.makes:
            writes.append(self._value(number, 0))
        for number in call.writes:
            if number in self._version:
                consumes.append(self._version[number])
                writes.append(self._new_version(number))
            elif number not in call.makes:
                before = self._now[number]
                writes.append(self._value(number, int(before.rpartition(".")[2]) + 1))
                reuses.append((writes[-1], before))
        variant = Variant(
            call.ns,
            reads=tuple(dict.fromkeys(reads)),
            writes=tuple(writes),
            reuses=tuple(reuses),
            consumes=tuple(consumes),
        )
        self._ops.append(
            Op(
                f"{len(self._ops)}:{call.name}",
                (variant,),
                "forward" if call.phase == "forward" else "backward",
                once=bool(consumes),
                random=call.random,
                owner=call.owner,
            )
        )

    def _value(self, number: int, version: int) -> str:
        stored = self._run.storages[number]
        id = f"{stored.kind}.{number}.{version}"
        self._values.append(Value(id, stored.bytes, stored.kind))
        self._now[number] = id
        return id

    def _use_up(self, leaf: int, gradient: int, work: Work, changes_leaf: bool) -> None:
        reads = [self._now[leaf], self._now[gradient]]
        consumes = [self._now[gradient]]
        if changes_leaf:
            reads.append(self._version[leaf])
            consumes.append(self._version[leaf])
        what = "update" if changes_leaf else "add"
        self._ops.append(
            Op(
                f"{len(self._ops)}:{what}",
                (
                    Variant(
                        work.ns,
                        workspace_bytes=work.workspace_bytes,
                        reads=tuple(reads),
                        consumes=tuple(consumes),
                    ),
                ),
                "backward",
                once=True,
            )
        )
        self._used_up.add(gradient)
