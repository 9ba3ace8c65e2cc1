"""rotor's solver, as Colossal-AI ships it in Python, beside our planners on the stored chains.

The solver is `CheckpointSolverRotor` of Colossal-AI, whose text says that some of it is adapted
from rotor. It gets the sizes and times of a chain in slots, makes its tables and traces its
schedule. Our simulator then says what the schedule takes. The page sets it beside the solver that
reprise_bench_chain_plan has, written anew from the description, and beside `chain_slots` with the
same number of slots, and `chain`.

    pip download --no-deps -d build/colossalai colossalai==0.5.0
    tar -C build/colossalai -xzf build/colossalai/colossalai-0.5.0.tar.gz
    PYTHONPATH=build/release/python .venv/bin/python bench/python/colossal_rotor.py \\
      --package build/colossalai/colossalai-0.5.0/colossalai [CHAIN...] [-o FILE]

Without `--package` the installed package is taken. If there is none, nothing is measured. The two
files of the solver are loaded alone: the rest of the package wants a GPU.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import time
import types
from typing import Any, NamedTuple

import reprise
from stored_page import Page, arguments

SOURCE = pathlib.Path(__file__).resolve().parents[2]
STORED = sorted((SOURCE / "data" / "instances" / "chains").glob("*.json"))
REWRITTEN = SOURCE / "build" / "release" / "reprise_bench_chain_plan"
BUDGETS = (0.9, 0.7, 0.5)  # shares of plain training's peak
# A table of the solver takes slots * stages^3 / 6 steps of Python.
MOST_STEPS = 6_000_000

# The solver's file imports these modules, besides the chain and the operations of a schedule. The
# functions that make tables and schedules use none of them.
UNUSED = {
    "colossalai.auto_parallel.passes.runtime_apply_pass": [
        "runtime_apply",
        "runtime_comm_spec_apply",
    ],
    "colossalai.fx.codegen.activation_checkpoint_codegen": ["_find_nested_ckpt_regions"],
    "colossalai.fx.profiler": [
        "activation_size",
        "calculate_bwd_time",
        "calculate_fwd_out",
        "calculate_fwd_time",
        "calculate_fwd_tmp",
    ],
    "colossalai.logging": ["get_dist_logger"],
}


class Solver(NamedTuple):
    chain: Any  # the class Chain
    rotor: Any  # the class CheckpointSolverRotor
    version: str


def load_solver(package: str | None) -> Solver | None:
    """Loads the two files from the folder of the package. Returns None if there is no package."""
    if package is None:
        found = importlib.util.find_spec("colossalai")
        if found is None or not found.submodule_search_locations:
            return None
        package = found.submodule_search_locations[0]
    root = pathlib.Path(package)
    folder = root / "auto_parallel" / "checkpoint"
    for name, members in UNUSED.items():
        stand_in = types.ModuleType(name)
        for member in members:
            setattr(stand_in, member, None)
        sys.modules[name] = stand_in
    parent = types.ModuleType("solver_files")
    parent.__path__ = [str(folder)]
    base = types.ModuleType("solver_files.ckpt_solver_base")
    base.CheckpointSolverBase = object  # type: ignore[attr-defined]
    sys.modules |= {parent.__name__: parent, base.__name__: base}
    operation = importlib.import_module("solver_files.operation")
    rotor = importlib.import_module("solver_files.ckpt_solver_rotor")
    version = root.parent / "version.txt"
    said = version.read_text().strip() if version.exists() else "of unknown version"
    return Solver(operation.Chain, rotor.CheckpointSolverRotor, said)


def limit_of(chain: reprise.Chain, budget: int) -> int:
    """Returns the bytes for activations: fixed bytes and weight gradients are not rotor's."""
    return budget - chain.fixed_bytes - sum(s.weight_gradient_bytes for s in chain.stages)


def in_slots(solver: Solver, chain: reprise.Chain, unit: int) -> Any:
    """Returns the chain as the solver takes it.

    The solver's test of a backward leaves out the gradient of the stage's input, which rotor
    counts. It is counted here with the workspace of the backward.
    """

    def slots(size: int) -> int:
        return math.ceil(size / unit)

    options = [stage.options[0] for stage in chain.stages]
    x = [slots(chain.input.bytes), *(slots(s.output_bytes) for s in chain.stages)]
    kept = [
        slots(s.output_bytes + o.saved_bytes) for s, o in zip(chain.stages, options, strict=True)
    ]
    return solver.chain(
        [o.forward.ns for o in options],
        [*(o.backward.ns for o in options), 0],
        x,
        [x[0], *kept],
        [slots(o.forward.workspace_bytes) for o in options],
        [
            *(slots(o.backward.workspace_bytes) + x[i] for i, o in enumerate(options)),
            slots(chain.loss.workspace_bytes) + x[-1],
        ],
    )


def runs_of(schedule: Any, chain: reprise.Chain) -> list[tuple[str, str]]:
    """Returns the operation and the variant of every run."""
    runs = []
    for operation in schedule.list_operations():
        kind = type(operation).__name__
        if kind == "Loss":
            runs.append(("loss", "default"))
            continue
        keep = chain.stages[operation.index].options[0].name
        where = f"B{operation.index}" if kind == "Backward" else f"F{operation.index}"
        runs.append((where, "fast" if kind in ("ForwardNograd", "ForwardCheck") else keep))
    return runs


def with_frees(graph: reprise.Graph, runs: list[tuple[str, str]]) -> list[reprise.Action]:
    """Frees every value after its last read before it is made again."""
    variants = {(op.id, v.name): v for op in graph.ops for v in op.variants}
    held = {v.id for v in graph.values if v.kind == "input"} | set(graph.results)
    frees: dict[int, list[str]] = {}
    last: dict[str, int] = {}
    for position, run in enumerate(runs):
        variant = variants[run]
        for value in variant.reads:
            last[value] = position
        for value in variant.writes:
            if value in last and value not in variant.reads:
                frees.setdefault(last[value], []).append(value)
            last[value] = position
    for value, position in last.items():
        frees.setdefault(position, []).append(value)
    actions = []
    for position, (op, name) in enumerate(runs):
        actions.append(reprise.Action("run", op, name))
        gone = set(variants[op, name].consumes)
        for value in frees.get(position, []):
            if value not in held and value not in gone:
                actions.append(reprise.Action("free", value, ""))
    return actions


class Answer(NamedTuple):
    seconds: float
    time: int | None = None
    peak: int | None = None


def ask_rotor(solver: Solver, chain: reprise.Chain, budget: int, slots: int) -> Answer:
    start = time.perf_counter()
    unit = limit_of(chain, budget) // slots
    if unit <= 0:
        return Answer(0.0)
    sizes = in_slots(solver, chain, unit)
    tables = solver.rotor._compute_table(sizes, slots)
    try:
        schedule = solver.rotor._backtrack(sizes, 0, len(chain.stages), slots - sizes.x[0], *tables)
    except ValueError:
        return Answer(time.perf_counter() - start)
    seconds = time.perf_counter() - start
    graph = chain.lower()
    plain = reprise.plan(chain, planner="keep_all").plan
    assert plain is not None
    actions = with_frees(graph, runs_of(schedule, chain))
    timeline = reprise.simulate(chain, dataclasses.replace(plain, actions=tuple(actions)))
    return Answer(seconds, timeline.time_ns, timeline.peak_bytes)


def ask_rewritten(path: pathlib.Path, budgets: list[float], slots: int) -> dict[float, Any]:
    """Returns the overhead of the rewritten solver by budget, None without a plan."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "figures.json"
        shares = ",".join(str(b) for b in budgets)
        options = [f"--budgets={shares}", f"--slots={slots}", "--time-limit=1", f"--json={file}"]
        command = [REWRITTEN, path, *options, "--curve-lengths=2", f"--output={folder}/page.md"]
        subprocess.run(command, check=True, capture_output=True)
        rows = json.loads(file.read_text())["chains"][0]["rows"]
    return {r["budget"]: r["overhead"] for r in rows if r["planner"].startswith("published")}


def over(answer: int | None, plain: int) -> str:
    return "no plan" if answer is None else f"{100 * (answer / plain - 1):.3f}"


def measure(page: Page, solver: Solver, path: pathlib.Path) -> tuple[int, int]:
    """Writes the rows of a chain. Returns how many there are, and in how many the solvers agree."""
    chain = reprise.Chain.load(str(path))
    stages = len(chain.stages)
    slots = 500 if 500 * stages**3 / 6 <= MOST_STEPS else max(20, 6 * MOST_STEPS // stages**3)
    plain = reprise.plan(chain, planner="keep_all").baseline
    rewritten = ask_rewritten(path, list(BUDGETS), slots)
    agree = 0
    for share in BUDGETS:
        budget = int(plain.peak_bytes * share)
        rotor = ask_rotor(solver, chain, budget, slots)
        ours = reprise.plan(chain, budget=budget, planner="chain_slots", slots=slots).plan
        best = reprise.plan(chain, budget=budget, schedule_class="persistent").plan
        again = rewritten[share]
        there = over(rotor.time, plain.time_ns)
        same = there == ("no plan" if again is None else f"{100 * again:.3f}")
        agree += same
        beyond = ""
        if rotor.peak is not None and rotor.peak > budget:
            beyond = f", {100 * (rotor.peak / budget - 1):.2f} % over the budget"
        page(
            f"| {path.stem} | {stages} | {slots} | {100 * share:.0f} % | {there}{beyond} "
            f"| {rotor.seconds:.2f} | {'the same' if same else f'{100 * again:.3f}'} "
            f"| {over(ours and ours.time_ns, plain.time_ns)} "
            f"| {over(best and best.time_ns, plain.time_ns)} |"
        )
    return len(BUDGETS), agree


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("chains", nargs="*", type=pathlib.Path, default=STORED)
    parser.add_argument(
        "--package", help="the folder colossalai of the package (default: installed)"
    )
    options = parser.parse_args()
    solver = load_solver(options.package)
    if solver is None:
        print("Colossal-AI is not here, so nothing is measured; see the top of this file")
        return
    page = Page(
        options.output,
        "rotor's solver, as Colossal-AI ships it",
        "[Benchmarks](../benchmarks.md#rotors-own-solver) says what is measured, and how.",
    )
    page(f"- Colossal-AI {solver.version}")
    page(
        "\nOverheads are times over plain training's, less 1, in per cent. The seconds are those of"
    )
    page("the solver in Python.\n")
    page(
        "| chain | stages | slots | budget | rotor, Colossal-AI | s | written anew "
        "| `chain_slots` | `chain`, persistent |"
    )
    page("|---|--:|--:|--:|--:|--:|---|--:|--:|")
    rows, agree = 0, 0
    for path in options.chains:
        more, same = measure(page, solver, path)
        rows, agree = rows + more, agree + same
    page(f"\nColossal-AI's solver and the one written anew agree in {agree} of {rows} rows.")


if __name__ == "__main__":
    main()
