"""Rounding of a linear program, as in P. Jain et al., "Checkmate", MLSys 2020, beside our planners.

Section 5 of the paper: relax the mixed-integer program, round what is kept from stage to stage, and
run what a stage then misses (two-phase rounding, algorithm 2). The program is solved for less than
the budget, since rounding costs memory. Several allowances and thresholds are tried, and the
fastest plan within the budget is shown. The program is that of tests/oracle/milp.py: a stage ends
with an operation that runs once, and every operation runs first in its turn.

    PYTHONPATH=build/release/python python checkmate_lp.py GRAPH... [-o FILE] [--budgets 0.75,0.5]

GRAPHs are files of `reprise_bench_graph_plan --write-graphs FOLDER`, or profiles of captured steps;
of their variants and choices the first is taken, which is what the paper knows.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import sys
import time
from typing import Any, NamedTuple

import reprise
from run_info import measured

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests" / "oracle"))
import milp  # noqa: E402

Json = dict[str, Any]

ALLOWANCES = (0.0, 0.05, 0.1, 0.2)  # share of the budget; the paper has 0.1
THRESHOLDS = (0.3, 0.5, 0.7)  # the paper has 0.5


class Row(NamedTuple):
    planner: str
    seconds: float
    peak: int | None = None
    time: int | None = None
    bound: float | None = None


def ops_of(realization: Any) -> list[str]:
    """Returns the ids of the operations, in either version of the format."""
    return realization["ops"] if isinstance(realization, dict) else realization


def first_variants(graph: Json) -> Json:
    """Returns the graph as it was written or captured, without other ways to run it."""
    choices = [[ops_of(r) for r in c["realizations"]] for c in graph.get("choices", [])]
    chosen = {op for c in choices for op in c[0]}
    others = {op for c in choices for r in c for op in r} - chosen
    ops = [op | {"variants": op["variants"][:1]} for op in graph["ops"] if op["id"] not in others]
    used = {v for op in ops for key in ("reads", "writes") for v in op["variants"][0][key]}
    values = [v for v in graph["values"] if v["id"] in used or v["kind"] == "input"]
    return graph | {"ops": ops, "values": values, "choices": []}


class Schedule:
    """Returns the second phase of the rounding: the kept values are given, the runs follow."""

    def __init__(self, graph: Json, keep: list[set[str]]) -> None:
        self.ops = graph["ops"]
        self.inputs = {v["id"] for v in graph["values"] if v["kind"] == "input"}
        self.results = set(graph["results"])
        self.producer = {v: k for k, op in enumerate(self.ops) for v in self._writes(k)}
        self.order: list[int] = []
        ends = milp.stages_of(graph)
        live: set[str] = set()
        for stage, end in enumerate([*ends, len(self.ops)]):
            wanted = keep[stage + 1] if stage + 1 < len(keep) else self.results
            needed = set(self._reads(end)) if end < len(self.ops) else set()
            once = {v for v in wanted if self.producer[v] in ends}
            runs = self._runs((needed | wanted) - once - live, live)
            self.order += runs + ([end] if end < len(self.ops) else [])
            made = {v for k in self.order[-len(runs) - 1 :] for v in self._writes(k)}
            live = (live | made) & (wanted | self.results)

    def _reads(self, op: int) -> list[str]:
        return [v for v in self.ops[op]["variants"][0]["reads"] if v not in self.inputs]

    def _writes(self, op: int) -> list[str]:
        return list(self.ops[op]["variants"][0]["writes"])

    def _runs(self, missing: set[str], live: set[str]) -> list[int]:
        """Returns the operations that make these values from those that are there, in order."""
        runs: set[int] = set()
        stack = list(missing)
        while stack:
            op = self.producer[stack.pop()]
            if op not in runs:
                runs.add(op)
                stack += [v for v in self._reads(op) if v not in live]
        return sorted(runs)

    def actions(self) -> list[reprise.Action]:
        """Frees every value after it was read for the last time before it is made again."""
        end_of_use: dict[int, list[str]] = {}
        last: dict[str, int] = {}
        for position, op in enumerate(self.order):
            for value in self._writes(op):
                if value in last:
                    end_of_use.setdefault(last[value], []).append(value)
                last[value] = position
            for value in self._reads(op):
                last[value] = position
        for value, position in last.items():
            if value not in self.results:
                end_of_use.setdefault(position, []).append(value)
        actions = []
        for position, op in enumerate(self.order):
            variant = self.ops[op]["variants"][0]["name"]
            actions.append(reprise.Action("run", self.ops[op]["id"], variant))
            actions += [reprise.Action("free", v, "") for v in end_of_use.get(position, [])]
        return actions


def rounded(graph: Json, budget: int, seconds: float) -> Row:
    start = time.perf_counter()
    plain = reprise.plan(graph, budget="100%", planner="keep_all").plan
    assert plain is not None
    best: reprise.Timeline | None = None
    bound = None
    for allowance in ALLOWANCES:
        relaxed = milp.relax(graph, int(budget * (1 - allowance)), seconds)
        if relaxed is None:
            continue
        if allowance == 0:
            bound = relaxed.time
        for threshold in THRESHOLDS:
            keep = [{v for v, share in s.items() if share > threshold} for s in relaxed.live]
            plan = dataclasses.replace(plain, actions=Schedule(graph, keep).actions())
            timeline = reprise.simulate(graph, plan)
            if timeline.peak_bytes > budget:
                continue
            plan = dataclasses.replace(
                plan,
                budget_bytes=budget,
                peak_bytes=timeline.peak_bytes,
                time_ns=timeline.time_ns,
                lower_bound_ns=0,
                termination="feasible",
            )
            for violation in reprise.verify(graph, plan):
                raise SystemExit(f"the rounding made a plan that is not valid: {violation}")
            if best is None or timeline.time_ns < best.time_ns:
                best = timeline
    taken = time.perf_counter() - start
    if best is None:
        return Row("LP rounding", taken, bound=bound)
    return Row("LP rounding", taken, best.peak_bytes, best.time_ns, bound)


def planned(graph: Json, budget: int, planner: str) -> Row:
    start = time.perf_counter()
    result = reprise.plan(graph, budget=budget, planner=planner, time_limit=10)
    taken = time.perf_counter() - start
    bound = result.lower_bound_ns if planner == "graph" else None
    if result.plan is None:
        return Row(f"`{planner}`", taken, bound=bound)
    return Row(f"`{planner}`", taken, result.plan.peak_bytes, result.plan.time_ns, bound)


def table(name: str, graph: Json, budgets: list[float], seconds: float) -> str:
    plain = reprise.plan(graph, budget="100%", planner="keep_all").baseline
    lines = [
        f"## {name}",
        "",
        f"The graph has {len(graph['ops'])} ops.",
        "",
        "| budget | planner | found in, s | peak | time | bound |",
        "|--:|---|--:|--:|--:|--:|",
    ]
    for share in budgets:
        budget = int(plain.peak_bytes * share)
        rows = [rounded(graph, budget, seconds)]
        rows += [planned(graph, budget, planner) for planner in ("dtr", "graph")]
        for row in rows:
            peak = "" if row.peak is None else f"{row.peak / plain.peak_bytes:.3f}"
            taken = "no plan" if row.time is None else f"{row.time / plain.time_ns:.4f}"
            bound = "" if row.bound is None else f"{row.bound / plain.time_ns:.4f}"
            lines.append(
                f"| {share:.2f} | {row.planner} | {row.seconds:.2f} | {peak} | {taken} | {bound} |"
            )
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("graphs", nargs="+", type=pathlib.Path)
    parser.add_argument("--budgets", default="0.75,0.6,0.5", help="shares of plain training's peak")
    parser.add_argument("--seconds", type=float, default=120, help="of each linear program")
    parser.add_argument("-o", "--output", type=pathlib.Path)
    arguments = parser.parse_args()
    budgets = [float(text) for text in arguments.budgets.split(",")]
    names = " ".join(path.name for path in arguments.graphs)
    text = "\n".join(
        [
            "# Beside Checkmate's rounding of a linear program",
            "",
            "A program writes this file, so do not edit it.",
            "[Benchmarks](../benchmarks.md#beside-checkmates-rounding) says what is measured, how,",
            "and how the graphs are written. This command writes the file again:",
            "",
            f"    checkmate_lp.py --budgets {arguments.budgets} \\",
            f"      {names}",
            "",
            f"- {measured()}",
            "- SciPy solves linear programs with HiGHS.",
            "",
        ]
    )
    for path in arguments.graphs:
        value = json.loads(path.read_text())
        graph = first_variants(value.get("problem", value))
        text += "\n" + table(path.stem, graph, budgets, arguments.seconds)
        if arguments.output:  # after each graph, so that an interrupted run keeps what it has
            arguments.output.write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
