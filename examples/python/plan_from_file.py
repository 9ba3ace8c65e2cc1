"""Plans a chain at several budgets and says what the answers are worth. Needs no PyTorch.

Usage: python plan_from_file.py [problem.json]
"""

import pathlib
import sys

import reprise

CHAINS = pathlib.Path(__file__).parents[2] / "data" / "instances" / "chains"


def main() -> None:
    problem = reprise.load(sys.argv[1] if len(sys.argv) > 1 else CHAINS / "resnet18_like.json")
    print(problem)
    for budget in ("100%", "80%", "60%", "40%", "20%"):
        result = reprise.plan(problem, budget=budget)
        print(f"{budget:>5}  {result}")
        if result.plan is not None:
            assert not reprise.verify(problem, result.plan)
            last = result.plan
    print(reprise.explain(problem, last))


if __name__ == "__main__":
    main()
