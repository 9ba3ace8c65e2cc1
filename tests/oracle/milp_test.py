"""The planner of graphs against a mixed-integer program: bound <= optimum <= plan.

    milp_test.py PROGRAM [--seed N]

Needs SciPy (its milp() brings the solver HiGHS); without it the test is skipped: exit code 77.
REPRISE_TEST_FULL=1 asks for more graphs, up to about 80 operations, and gives the solver more time.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

SKIPPED = 77
INFEASIBLE, OUT_OF_TIME = 3, 4

try:
    import milp
except ImportError as missing:
    print(f"skipped: {missing}; `make setup` installs SciPy into .venv")
    sys.exit(SKIPPED)
import milp_graphs


class Planner:
    def __init__(self, program, folder):
        self.program, self.folder = program, pathlib.Path(folder)

    def plan(self, graph, budget):
        """Returns the plan, or the exit code and the number on stderr of an answer without one."""
        problem = self.folder / "graph.json"
        problem.write_text(json.dumps(graph), encoding="utf-8")
        result = subprocess.run(
            [self.program, "plan", problem, "--planner", "graph", "--budget", str(budget), "--quiet",
             "--threads", "1"],
            capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        if result.returncode == 0:
            return json.loads(result.stdout), 0
        if result.returncode in (INFEASIBLE, OUT_OF_TIME):
            return None, result.returncode
        raise RuntimeError(f"reprise plan: exit {result.returncode}: {result.stderr}")

    def range_of(self, graph):
        """Returns the smallest peak that the planner finds, and that of plain training."""
        problem = self.folder / "graph.json"
        problem.write_text(json.dumps(graph), encoding="utf-8")
        result = subprocess.run([self.program, "frontier", problem, "--json", "--quiet"],
                                capture_output=True, text=True, check=True)
        budgets = [point["budget_bytes"] for point in json.loads(result.stdout)["points"]]
        return budgets[0], budgets[-1]


class Record:
    def __init__(self):
        self.asked = self.solved = self.optimal = self.proven = self.missed = 0
        self.excess = []

    def print(self):
        mean = sum(self.excess) / max(1, len(self.excess))
        print(f"{self.asked} questions, {self.solved} solved by the program; of these the plan is the "
              f"optimum {self.optimal} times, {self.proven} times proven; it takes {100 * mean:.2f} % "
              f"more on average, {100 * max(self.excess, default=0):.2f} % at worst; no plan found "
              f"where there is one: {self.missed}")


def check(planner, graph, budget, seconds, record):
    """Says what is wrong, or returns None."""
    plan, code = planner.plan(graph, budget)
    rows = milp.rows_of_plan(graph, plan or {"actions": []})
    answer = milp.solve(graph, budget, rows, seconds)
    record.asked += 1
    if answer is None:
        return None
    if plan is None:
        if answer.best is not None and code == INFEASIBLE:
            return f"called infeasible, but there is a plan of {answer.best} ns"
        record.missed += answer.best is not None
        return None
    if answer.best is not None and plan["lower_bound_ns"] > answer.best:
        return f"lower bound {plan['lower_bound_ns']}, but there is a plan of {answer.best} ns"
    if answer.bound > plan["time_ns"] + 1e-6 * plan["time_ns"]:
        return f"the plan takes {plan['time_ns']} ns, the program cannot do it below {answer.bound}"
    if answer.best is not None and answer.bound >= answer.best:
        record.solved += 1
        record.optimal += plan["time_ns"] == answer.best
        record.proven += plan["termination"] == "optimal"
        record.excess.append(plan["time_ns"] / max(1, answer.best) - 1)
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    full = os.environ.get("REPRISE_TEST_FULL") == "1"
    print(f"seed {arguments.seed}")
    record, smallest = Record(), {}
    with tempfile.TemporaryDirectory() as folder:
        planner = Planner(arguments.program, folder)
        for graph, share in milp_graphs.cases(arguments.seed, full):
            if id(graph) not in smallest:
                smallest = {id(graph): planner.range_of(graph)}
            least, most = smallest[id(graph)]
            budget = least + int(share * (most - least))
            wrong = check(planner, graph, budget, 60 if full else 5, record)
            if wrong:
                print(f"{graph['name']}, budget {budget}: {wrong}\n{json.dumps(graph)}")
                return 1
    record.print()
    if 10 * record.optimal < 8 * record.solved:
        print("fewer than eight plans of ten are the optimum")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
