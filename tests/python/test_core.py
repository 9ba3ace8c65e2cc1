"""Planning and checking on files, dicts and values: the same answers as the commands give."""

from __future__ import annotations

import copy
import dataclasses
import json
import pathlib
import pickle
import subprocess
import sys
import threading
from typing import Any

import pytest
import reprise
from conftest import SOURCE

CHAINS = SOURCE / "data" / "instances" / "chains"
FILE = sorted(CHAINS.glob("*.json"))[0]


def test_import_needs_no_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import reprise\n"
        f"chain = reprise.load({str(FILE)!r})\n"
        "assert reprise.plan(chain, budget='90%').plan is not None\n"
        "try: reprise.capture\n"
        "except reprise.InputError as error: assert 'torch' in str(error), error\n"
        "else: raise SystemExit('capture without torch')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_path_a_dict_and_a_value_are_the_same_problem(tmp_path: pathlib.Path) -> None:
    chain = reprise.load(FILE)
    assert isinstance(chain, reprise.Chain)
    value = json.loads(FILE.read_text())
    problems = (FILE, str(FILE), value, chain)
    results = [reprise.plan(p, budget="60%", time_limit=600) for p in problems]
    plans = [result.plan for result in results]
    for plan in plans:
        assert plan is not None
        assert plan.actions == plans[0].actions  # type: ignore[union-attr]
        assert plan.problem == plans[0].problem  # type: ignore[union-attr]
        assert reprise.verify(FILE, plan) == []
    # A chain that is saved has its defaults filled in. The text differs, and the values are the
    # same.
    chain.save(tmp_path / "chain.json")
    assert reprise.load(tmp_path / "chain.json") == chain


def test_graphs_of_both_versions_are_values() -> None:
    def graph(version: int, realizations: list[Any], **op: str) -> dict[str, Any]:
        return {
            "format": "reprise.graph",
            "version": version,
            "name": "g",
            "values": [{"id": "y", "bytes": 8}],
            "ops": [
                {"id": "a", "variants": [{"ns": 2, "writes": ["y"]}]} | op,
                {"id": "b", "variants": [{"ns": 1, "writes": ["y"]}]},
            ],
            "choices": [{"id": "c", "realizations": realizations}],
            "results": ["y"],
        }

    old = reprise.Graph.from_dict(graph(1, [["a"], ["b"]]))
    new = reprise.Graph.from_dict(
        graph(2, [{"ops": ["a"]}, {"name": "fast", "ops": ["b"]}], owner="blocks.0")
    )
    assert old.choices[0].realizations == (reprise.Realization(("a",)), reprise.Realization(("b",)))
    assert [op.owner for op in new.ops] == ["blocks.0", ""]
    assert [one.name for one in new.choices[0].realizations] == ["", "fast"]
    assert json.loads(old.to_json())["version"] == 1
    assert json.loads(new.to_json())["version"] == 2
    for value in (old, new):
        assert reprise.Graph.from_dict(value.to_dict()) == value
        answer = reprise.plan(value)
        assert answer.plan is not None
        assert reprise.verify(value, answer.plan) == []
        assert answer.plan.time_ns == 1
    assert reprise.Choice("c", (("a",), ("b",))) == old.choices[0]  # type: ignore[arg-type]


def test_graphs_that_name_devices_are_of_version_3() -> None:
    here = reprise.Variant(ns=2, name="here", writes=("y",))
    there = reprise.Variant(ns=1, name="there", writes=("y",), at="gpu")
    values = (reprise.Value("y", 8),)
    graph = reprise.Graph("g", values, (reprise.Op("a", (here, there)),), ("y",))
    assert json.loads(graph.to_json())["version"] == 3
    assert reprise.Graph.from_json(graph.to_json()) == graph
    answer = reprise.plan(graph)  # without a machine, nothing runs elsewhere
    assert answer.plan is not None
    assert answer.plan.time_ns == 2


def test_plan_says_what_it_found(two_convolutions: dict[str, Any]) -> None:
    plain = reprise.plan(two_convolutions)
    assert plain.termination == "optimal"
    assert plain.budget_bytes is None
    assert plain.plan is not None
    assert plain.plan.peak_bytes == plain.baseline.peak_bytes
    assert plain.plan.time_ns == plain.baseline.time_ns == 9000
    assert plain.gap == 0.0

    tight = reprise.plan(two_convolutions, budget=1000)
    assert (tight.termination, tight.plan, tight.gap) == ("infeasible", None, None)
    assert tight.smallest_budget_bytes is not None
    exact = reprise.plan(two_convolutions, budget=tight.smallest_budget_bytes)
    assert exact.plan is not None
    assert exact.plan.peak_bytes == tight.smallest_budget_bytes
    below = reprise.plan(two_convolutions, budget=tight.smallest_budget_bytes - 1)
    assert below.termination == "infeasible"


def test_simulate_and_explain_agree_with_the_plan(two_convolutions: dict[str, Any]) -> None:
    result = reprise.plan(two_convolutions)
    plan = result.plan
    assert plan is not None
    line = reprise.simulate(two_convolutions, plan)
    assert line.peak_bytes == plan.peak_bytes
    assert line.time_ns == plan.time_ns
    assert len(line.steps) == len(plan.actions)
    assert max(s.during_bytes for s in line.steps) == plan.peak_bytes
    why = reprise.explain(two_convolutions, plan)
    assert why.peak_bytes == plan.peak_bytes
    assert sum(holder.bytes for holder in why.holders) == plan.peak_bytes
    assert why.peak_action in str(why)


def test_verify_lists_violations(two_convolutions: dict[str, Any]) -> None:
    plan = reprise.plan(two_convolutions).plan
    assert plan is not None
    last_run = max(i for i, action in enumerate(plan.actions) if action.kind == "run")
    short = dataclasses.replace(plan, actions=plan.actions[:last_run])
    kinds = {violation.kind for violation in reprise.verify(two_convolutions, short)}
    assert "missing run" in kinds
    over = reprise.verify(two_convolutions, plan, plan.peak_bytes - 1)
    assert [v.over_bytes for v in over if v.kind == "over budget"][:1] == [1]


def test_frontier_holds_for_every_budget(two_convolutions: dict[str, Any]) -> None:
    curve = reprise.frontier(two_convolutions)
    assert curve.baseline is not None
    times = [point.time_ns for point in curve.points]
    assert times == sorted(times, reverse=True)
    for point in curve.points:
        plan = reprise.plan(two_convolutions, budget=point.budget_bytes).plan
        assert plan is not None
        assert plan.time_ns == point.time_ns
        assert curve.time_ns(point.budget_bytes) == point.time_ns
    assert curve.time_ns(curve.points[0].budget_bytes - 1) is None
    assert "<svg" in curve.svg(marks=("90%",)).text
    assert "<svg" in curve._repr_html_()


def test_problems_on_a_machine(two_convolutions: dict[str, Any], tmp_path: pathlib.Path) -> None:
    machine = reprise.parse_offload("host=1GB/s")
    (tmp_path / "machine.json").write_text(json.dumps(machine))
    plain = reprise.plan(two_convolutions)
    smallest = reprise.plan(two_convolutions, budget=1, machine=machine)
    assert smallest.smallest_budget_bytes is not None
    curve = reprise.frontier(two_convolutions, machine=machine, time_limit=0.5)
    assert curve.planner == "levels"
    for point in (curve.points[0], curve.points[-1]):
        found = reprise.plan(
            two_convolutions, budget=point.budget_bytes, machine=tmp_path / "machine.json"
        )
        assert found.plan is not None
        assert reprise.verify(two_convolutions, found.plan, machine=machine) == []
        line = reprise.simulate(two_convolutions, found.plan, machine=machine)
        assert (line.peak_bytes, line.time_ns) == (found.plan.peak_bytes, found.plan.time_ns)
    moving = reprise.plan(
        two_convolutions, budget="100%", machine=machine, planner="save_on_cpu"
    ).plan
    assert moving is not None and moving.machine is not None
    assert any(action.kind == "copy" for action in moving.actions)
    kinds = {violation.kind for violation in reprise.verify(two_convolutions, moving)}
    assert kinds  # it cannot be judged without its machine
    assert curve.points[-1].time_ns <= plain.baseline.time_ns
    alone = reprise.frontier(two_convolutions)
    assert "recomputing alone" in curve.svg(compared={"recomputing alone": alone}).text
    with pytest.raises(reprise.InputError, match="host=12GB/s"):
        reprise.parse_offload("fast")


def test_the_interface_of_rotor(two_convolutions: dict[str, Any]) -> None:
    """Slots, checkpoints that move, histories in slots, and the bytes at the loss."""
    best = reprise.plan(two_convolutions, budget="100%", planner="floating").plan
    assert best is not None and best.schedule_class == "floating+dropped-inputs"
    for slots in (10, 500):
        found = reprise.plan(two_convolutions, budget="100%", planner="chain_slots", slots=slots)
        assert found.plan is not None and found.plan.time_ns >= best.time_ns
    with pytest.raises(reprise.InputError, match="has no slots"):
        reprise.plan(two_convolutions, slots=500)
    histories = reprise.plan(two_convolutions, planner="revolve", schedule_class="histories").plan
    inputs = reprise.plan(two_convolutions, planner="revolve", schedule_class="inputs-only").plan
    assert histories is not None and inputs is not None
    assert histories.time_ns < inputs.time_ns
    explained = reprise.explain(two_convolutions, best)
    steps = reprise.simulate(two_convolutions, best).steps
    loss = [a.id for a in best.actions].index("loss")
    assert explained.loss_bytes == steps[loss].during_bytes
    assert (explained.time_ns, explained.peak_bytes) == (best.time_ns, best.peak_bytes)


def test_files_come_back_equal(tmp_path: pathlib.Path, two_convolutions: dict[str, Any]) -> None:
    chain = reprise.Chain.from_dict(two_convolutions)
    plan = reprise.plan(chain).plan
    assert plan is not None
    for value in (chain, chain.lower(), plan, reprise.frontier(chain)):
        value.save(tmp_path / "x.json")
        assert reprise.load(tmp_path / "x.json") == value
        assert type(value).from_dict(value.to_dict()) == value


def test_values_are_values(two_convolutions: dict[str, Any]) -> None:
    chain = reprise.Chain.from_dict(two_convolutions)
    assert copy.deepcopy(chain) == chain == pickle.loads(pickle.dumps(chain))
    with pytest.raises(dataclasses.FrozenInstanceError):
        chain.name = "other"  # type: ignore[misc]
    # A changed copy is another problem, and plans name it by another hash.
    other = dataclasses.replace(chain, fixed_bytes=0)
    first, second = reprise.plan(chain).plan, reprise.plan(other).plan
    assert first is not None
    assert second is not None
    assert first.problem.sha256 != second.problem.sha256
    assert first.peak_bytes - second.peak_bytes == chain.fixed_bytes
    assert {v.kind for v in reprise.verify(other, first)} >= {"other problem"}


def test_a_chain_can_be_built(two_convolutions: dict[str, Any]) -> None:
    built = reprise.Chain(
        name="two convolutions",
        fixed_bytes=65536,
        input=reprise.ChainInput(4096),
        stages=tuple(
            reprise.Stage(
                name=f"conv{i}",
                output_bytes=16384 * i,
                forward=reprise.Cost(1000 * i),
                options=(
                    reprise.StageOption(
                        "keep", 8192, reprise.Cost(1000 * i), reprise.Cost(2000 * i, 4096)
                    ),
                ),
            )
            for i in (1, 2)
        ),
    )
    assert built == reprise.Chain.from_dict(two_convolutions)


def test_mistakes_name_the_place(tmp_path: pathlib.Path, two_convolutions: dict[str, Any]) -> None:
    two_convolutions["stages"][1]["options"][0]["saved_bytes"] = "8192"
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(two_convolutions, indent=1))
    with pytest.raises(reprise.InputError) as caught:
        reprise.plan(path)
    error = caught.value
    assert error.file == str(path)
    assert error.pointer == "/stages/1/options/0/saved_bytes"
    assert "saved_bytes" in path.read_text().splitlines()[error.line - 1]
    with pytest.raises(reprise.InputError, match="/stages/1/options/0/saved_bytes"):
        reprise.plan(two_convolutions)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"budget": "many"}, "many"),
        ({"budget": "auto"}, "auto"),
        ({"budget": -1}, "negative|-1"),
        ({"planner": "magic"}, "magic"),
        ({"time_limit": "soon"}, "soon"),
        ({"time_limit": -1}, "seconds"),
        ({"allow": "anything"}, "anything"),
    ],
)
def test_wrong_arguments_are_refused(
    two_convolutions: dict[str, Any], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(reprise.InputError, match=message):
        reprise.plan(two_convolutions, **arguments)


@pytest.mark.parametrize("problem", [None, 7, {"a": object()}, "no such file.json", {"name": 1}])
def test_what_is_no_problem_is_refused(problem: Any) -> None:
    with pytest.raises(reprise.InputError):
        reprise.plan(problem)


def test_errors_are_what_python_calls_them() -> None:
    assert issubclass(reprise.InputError, ValueError)
    assert issubclass(reprise.BudgetError, MemoryError)
    assert issubclass(reprise.InternalError, RuntimeError)
    with pytest.raises(reprise.InputError):
        reprise.parse_bytes("12 apples")
    assert reprise.parse_bytes("1.5 KiB") == 1536


def test_planning_leaves_the_interpreter_to_others() -> None:
    """Another thread runs while the search does, and the observer sees the work."""
    seen: list[reprise.Progress] = []
    turns = 0
    begun, done = threading.Event(), threading.Event()

    def take_turns() -> None:
        nonlocal turns
        begun.wait()
        while not done.is_set():
            turns += 1
            done.wait(0.001)

    graph = reprise.load(FILE).lower()
    thread = threading.Thread(target=take_turns)
    thread.start()
    begun.set()
    reprise.frontier(graph, time_limit=1.0, observer=seen.append)
    turns_during = turns
    done.set()
    thread.join()
    # If the search held the lock, the other thread would have a turn or two at the ends.
    assert turns_during > 5
    assert seen
    assert all(p.fraction is None or 0 <= p.fraction <= 1 for p in seen)


def test_what_an_observer_raises_stops_the_work() -> None:
    class Stop(Exception):
        pass

    def stop(progress: reprise.Progress) -> None:
        raise Stop

    with pytest.raises(Stop):
        reprise.frontier(reprise.load(FILE).lower(), time_limit=5, observer=stop)


def test_everything_shows_itself(two_convolutions: dict[str, Any]) -> None:
    chain = reprise.Chain.from_dict(two_convolutions | {"name": "<b>"})
    result = reprise.plan(chain)
    plan = result.plan
    assert plan is not None
    values: list[Any] = [chain, chain.lower(), result, plan, reprise.frontier(chain)]
    values += [reprise.simulate(chain, plan), reprise.explain(chain, plan)]
    for value in values:
        assert len(repr(value)) < 300
        assert "<b>" not in value._repr_html_().replace("<b></b>", "")


@pytest.mark.parametrize("budget", [0.6, 1e9, True, 10**30, [1]])
def test_what_is_no_budget_is_explained(budget: Any, two_convolutions: dict[str, Any]) -> None:
    with pytest.raises(reprise.InputError, match="a budget is a number of bytes") as raised:
        reprise.plan(two_convolutions, budget=budget)
    assert (budget == 0.6) == ('write "60%"' in str(raised.value))


def test_a_plan_that_is_not_there(two_convolutions: dict[str, Any]) -> None:
    result = reprise.plan(two_convolutions, budget=1)
    with pytest.raises(reprise.InputError, match="there is no plan"):
        reprise.verify(two_convolutions, result.plan)  # type: ignore[arg-type]
    with pytest.raises(reprise.InputError, match="give a sample"):
        reprise.frontier(lambda x: x)


def test_planners_are_listed() -> None:
    names = {planner.name for planner in reprise.planners()}
    assert {"chain", "graph"} <= names


def test_names_that_are_promised_are_there() -> None:
    for name in reprise.__all__:
        assert name in dir(reprise)


def test_a_plan_is_a_page(tmp_path: pathlib.Path) -> None:
    plan = reprise.plan(FILE, budget="60%").plan
    assert plan is not None
    path = tmp_path / "page.html"
    page = reprise.report_html(FILE, plan, path=path, time_limit=0.2)
    assert path.read_text() == page
    assert page.lstrip().lower().startswith("<!doctype html>") and "<svg" in page
    other = sorted(CHAINS.glob("*.json"))[1]
    with pytest.raises(reprise.InputError):
        reprise.report_html(other, plan)


def test_a_join_is_planned_from_its_file_and_its_dictionary() -> None:
    path = pathlib.Path(__file__).parents[2] / "data" / "instances" / "joins" / "siamese.json"
    problem = json.loads(path.read_text())
    for form in (path, problem):
        result = reprise.plan(form, budget="50%")
        assert result.termination == "optimal"
        assert result.plan is not None
        assert result.plan.planner == "join"
        assert not reprise.verify(form, result.plan)
        assert reprise.simulate(form, result.plan).peak_bytes == result.plan.peak_bytes
    assert [row.name for row in reprise.planners() if row.joins] == ["join"]
