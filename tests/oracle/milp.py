"""The fastest plan of a graph within a budget, as a mixed-integer linear program. For tests and benchmarks.

The variables follow P. Jain et al., "Checkmate", MLSys 2020 (arXiv 1910.02653): what runs in a stage,
and what is live in it. Differences, so that the language is that of our plans:

- A stage ends with an operation that runs exactly once in every plan (loss, backward, once); the last
  one ends with the plan. These operations have one order, so the stages restrict nothing.
- In a stage the others run in `rows`: each row runs every operation at most once, in the order of the
  graph. First runs may be in any stage and in any row: nothing has to run "in its turn".
- A value is live or not after each operation of a row that touches it. Variants, roles, choices,
  workspace, duplicates, reused and consumed inputs count as in check/simulate.cc.

The class: every valid plan whose runs between two operations that run once can be cut into that many
rows of ascending operations. Any valid plan is in it if `rows` says so; rows_of_plan() counts those of
a given plan, and then   optimum over all plans <= optimum of the class <= the given plan.
"""

import bisect
import collections

import numpy
from scipy import optimize, sparse

# In ns: the time of the best plan, or None if there is none, and a bound on the times of all plans.
Answer = collections.namedtuple("Answer", "best bound")


def runs_once(op):
    return op.get("once", False) or op["phase"] != "forward"


def stages_of(graph):
    """Returns the operations that end a stage, by index."""
    return [k for k, op in enumerate(graph["ops"]) if runs_once(op)]


def rows_of_plan(graph, plan):
    """Counts the ascending rows of operations that a plan has in each stage, at least one each."""
    index = {op["id"]: k for k, op in enumerate(graph["ops"])}
    once = {k for k in stages_of(graph)}
    in_choice = {name for c in graph.get("choices", []) for r in c["realizations"] for name in r}
    rows, last = [1], -1
    for action in plan["actions"]:
        if action[0] != "run":
            continue
        op = index[action[1]]
        if op in once:
            # Only some of a choice's operations run. The stages of the others stay empty.
            ended = len(rows) - 1
            position = sorted(once).index(op)
            assert action[1] in in_choice or position >= ended
            rows += [1] * (position + 1 - ended)
            last = -1
            continue
        if op <= last:
            rows[-1] += 1
        last = op
    return rows + [1] * (len(once) + 1 - len(rows))


class _Program:
    """Holds the columns and rows of min c x, low <= A x <= high, x in {0, 1}."""

    def __init__(self):
        self.cost, self.low, self.high = [], [], []
        self.entries = ([], [], [])

    def column(self, cost=0):
        self.cost.append(cost)
        return len(self.cost) - 1

    def row(self, terms, low=-numpy.inf, high=numpy.inf):
        for column, factor in terms:
            for entries, entry in zip(self.entries, (len(self.low), column, factor)):
                entries.append(entry)
        self.low.append(low)
        self.high.append(high)

    def solve(self, seconds, relaxed=False):
        rows, columns, factors = self.entries
        matrix = sparse.csr_matrix((factors, (rows, columns)), (len(self.low), len(self.cost)))
        return optimize.milp(
            numpy.array(self.cost, float),
            constraints=optimize.LinearConstraint(matrix, self.low, self.high),
            bounds=optimize.Bounds(0, 1), integrality=numpy.full(len(self.cost), not relaxed),
            options={"time_limit": seconds, "mip_rel_gap": 0})


class _Writer:
    def __init__(self, graph, budget, rows):
        self.graph, self.budget, self.rows = graph, budget, rows
        self.program = _Program()
        self.bytes = {v["id"]: v["bytes"] for v in graph["values"]}
        self.inputs = {v["id"] for v in graph["values"] if v["kind"] == "input"}
        self.always = graph.get("fixed_bytes", 0) + sum(self.bytes[v] for v in self.inputs)
        self.live = {}  # by value: the column of "is live now"
        self.runs = collections.defaultdict(list)  # by operation: (variant, column) of every slot
        self.level = []  # terms of the bytes that are live now
        self.chosen = {}  # by operation: the column of its realization
        self.stages = []  # what `live` was when each stage began
        for choice in graph.get("choices", []):
            columns = [self.program.column() for _ in choice["realizations"]]
            self.program.row([(c, 1) for c in columns], 1, 1)
            for column, realization in zip(columns, choice["realizations"]):
                self.chosen.update({name: column for name in realization})

    def write(self):
        ends = stages_of(self.graph) + [len(self.graph["ops"])]
        repeatable = [k for k, op in enumerate(self.graph["ops"]) if not runs_once(op)]
        for end, count in zip(ends, self.rows):
            self.stages.append(dict(self.live))
            for _ in range(count):
                for op in repeatable:
                    self.slot(op)
            if end < len(self.graph["ops"]):
                self.slot(end)
        for op in range(len(self.graph["ops"])):
            self.runs_enough(op)
        for result in self.graph["results"]:
            if result not in self.inputs:
                self.program.row([(self.live[result], 1)] if result in self.live else [], 1)
        return self.program

    def slot(self, op):
        """A slot is a place where the operation may run, with one of its variants."""
        variants = self.graph["ops"][op]["variants"]
        run = [self.program.column(v["ns"]) for v in variants]
        self.program.row([(column, 1) for column in run], high=1)
        during = collections.Counter(self.level_now())
        effects = collections.defaultdict(lambda: ([], []))  # by value: columns that write, that take
        for variant, column in zip(variants, run):
            during[column] += variant.get("workspace_bytes", 0)
            taken = {r for _, r in variant.get("reuses", [])} | set(variant.get("consumes", []))
            for value in set(variant["reads"]) - self.inputs:
                known = [(self.live[value], -1)] if value in self.live else []
                self.program.row([(column, 1)] + known, high=0)
                effects[value]  # it may be freed behind this slot
            for value in variant["writes"]:
                during[column] += self.bytes[value]
                effects[value][0].append(column)
            for value in taken:
                during[column] -= self.bytes[value]
                effects[value][1].append(column)
            self.roles(op, variant, column)
        self.program.row(list(during.items()), high=self.budget - self.always)
        for value, (writing, taking) in effects.items():
            after = self.program.column()
            before = [(self.live[value], -1)] if value in self.live else []
            self.program.row([(after, 1)] + before + [(c, -1) for c in writing], high=0)
            for column in taking:
                if column not in writing:
                    self.program.row([(after, 1), (column, 1)], high=1)
            self.live[value] = after
        self.runs[op] += zip(variants, run)

    def level_now(self):
        return {column: self.bytes[value] for value, column in self.live.items()}

    def roles(self, op, variant, column):
        before = [c for _, c in self.runs[op]]
        if variant.get("role", "any") == "first":
            for other in before:
                self.program.row([(column, 1), (other, 1)], high=1)
        elif variant.get("role", "any") == "replay":
            self.program.row([(column, 1)] + [(c, -1) for c in before], high=0)

    def runs_enough(self, op):
        columns = [(column, 1) for _, column in self.runs[op]]
        wanted = self.chosen.get(self.graph["ops"][op]["id"])
        once = runs_once(self.graph["ops"][op])
        if wanted is None:
            self.program.row(columns, 1, 1 if once else numpy.inf)
            return
        self.program.row(columns + [(wanted, -1)], 0, 0 if once else numpy.inf)
        for column, _ in columns:
            self.program.row([(column, 1), (wanted, -1)], high=0)


Relaxed = collections.namedtuple("Relaxed", "time live")  # ns; by stage, how much of a value is there


def relax(graph, budget, seconds):
    """Solves the linear relaxation with a row a stage and all first runs in their turn, as
    Checkmate has it. It is for graphs whose operations have one variant each, without choices.
    Returns None if the problem is infeasible or time runs out.
    """
    assert all(len(op["variants"]) == 1 for op in graph["ops"]) and not graph.get("choices")
    ends = stages_of(graph)
    writer = _Writer(graph, budget, [1] * (len(ends) + 1))
    program = writer.write()
    for op, runs in writer.runs.items():
        if op not in ends:
            stage = bisect.bisect(ends, op)
            program.row([(column, 1) for _, column in runs[stage::len(ends) + 1]], low=1)
    result = program.solve(seconds, relaxed=True)
    if result.status != 0:  # not solved to its end: no bound
        return None
    live = [{v: result.x[column] for v, column in stage.items()} for stage in writer.stages]
    return Relaxed(result.fun, live)


def solve(graph, budget, rows, seconds):
    """Returns None when time ran out with neither a plan nor a bound."""
    result = _Writer(graph, budget, rows).write().solve(seconds)
    if result.status == 2:  # infeasible
        return Answer(None, numpy.inf)
    if result.x is None and result.mip_dual_bound is None:
        return None
    best = None if result.x is None else round(result.fun)
    return Answer(best, best if result.status == 0 else result.mip_dual_bound)
