"""Runs `reprise pipeline` on good files, and reaches its exit codes."""

import json
import unittest

from harness import BAD_INPUT, BROKEN, CHAINS, INFEASIBLE, ProgramTest


class PipelineTest(ProgramTest):
    PROBLEM = CHAINS.parent / "pipelines" / "resnet18_3.json"  # devices that differ, too small for some planners
    EQUAL = CHAINS.parent / "pipelines" / "gpt_4.json"
    ROWS = ("pipeline", "1f1b", "gpipe", "interleaved", "zb_h1", "cheapest_stages", "adapipe")

    def test_every_row_has_a_plan_that_check_accepts(self):
        plan = self.folder / "plan.json"
        for row in self.ROWS:
            result = self.run_program("pipeline", self.EQUAL, "--planner", row, "-o", plan)
            self.assertIn("lower bound", result.stdout)
            self.assertRegex(result.stderr, r"^reprise: (optimal|feasible): time .*\n$")
            written = json.loads(plan.read_text())
            self.assertEqual(written["planner"], row)
            self.assertLessEqual(written["lower_bound_ns"], written["time_ns"])
            self.assertIn("valid", self.run_program("check", self.EQUAL, plan).stdout)

    def test_a_chain_has_a_plan_with_all_outputs(self):
        names = ["plan.json", "problem.json", "trace.json", "order.csv"]
        plan, problem, trace, order = [self.folder / name for name in names]
        chain = CHAINS / "uniform8.json"
        result = self.run_program(
            "pipeline", chain, "--devices", "4", "--micro-batches", "6", "--link", "10GB/s",
            "--memory", "1GiB", "--planner", "1f1b", "--save-problem", problem, "--trace", trace,
            "--pytorch-order", order, "-o", plan, "--json", "--quiet")
        self.assertEqual(result.stderr, "")
        answer = json.loads(result.stdout)
        self.assertEqual([part["stages"] for part in answer["parts"]], [2, 2, 2, 2])
        self.assertEqual(len(json.loads(problem.read_text())["links"]), 8)
        self.assertGreater(len(json.loads(trace.read_text())["traceEvents"]), 4 * 12)
        lines = order.read_text().splitlines()
        self.assertEqual(len(lines), 4)
        self.assertTrue(lines[3].startswith("3F0,3B0,3F1,3B1"), lines[3])
        self.run_program("check", problem, plan)

    def test_a_budget_recomputes_and_a_small_one_is_infeasible(self):
        plan = self.folder / "plan.json"
        full = json.loads(self.run_program("pipeline", self.EQUAL).stdout)
        half = json.loads(self.run_program("pipeline", self.EQUAL, "--budget", "60%").stdout)
        self.assertGreater(half["time_ns"], full["time_ns"])
        limit = full["baseline"]["peak_bytes"] * 60 // 100
        for device in half["devices"]:
            self.assertLessEqual(device["peak_bytes"], min(limit, device["budget_bytes"]))
        result = self.run_program("pipeline", self.PROBLEM, "--budget", "1 MiB", "-o", plan, "--json",
                                  expect=INFEASIBLE)
        self.assertIn(json.loads(result.stdout)["blocking_device"], ("fast", "middle", "slow"))
        self.assertRegex(result.stderr, r"the closest plan that pipeline found needs \d+ bytes")
        self.assertFalse(plan.exists())

    def test_a_damaged_plan_is_refused_with_its_faults(self):
        path = self.folder / "plan.json"
        self.run_program("pipeline", self.PROBLEM, "-o", path, "--quiet")
        plan = json.loads(path.read_text())
        plan["devices"][1]["order"].remove(["forward", 1, 3])
        path.write_text(json.dumps(plan))
        result = self.run_program("check", self.PROBLEM, path, expect=BROKEN)
        self.assertIn("the forward of part 1 does not run for micro-batch 3", result.stdout)
        result = self.run_program("check", self.PROBLEM, path, "--json", "--quiet", expect=BROKEN)
        self.assertFalse(json.loads(result.stdout)["valid"])

    def test_wrong_usage_of_pipelines(self):
        chain = CHAINS / "uniform8.json"
        for arguments, text in [
                ([chain], "--devices and --micro-batches"),
                ([chain, "--devices", "2", "--micro-batches", "2", "--link", "fast"], "bandwidth"),
                ([self.PROBLEM, "--devices", "2"], "says them itself"),
                ([self.PROBLEM, "--link", "1GB/s"], "says them itself"),
                ([self.PROBLEM, "--planner", "1f1b", "--parts-per-device", "2"], "interleaved"),
                ([self.PROBLEM, "--cuts", "a"], "list of cuts"),
                ([self.PROBLEM, "--cuts", "99"], "cuts ascend"),
                ([self.PROBLEM, "--planner", "chain"], "does not plan pipelines"),
                ([self.PROBLEM, "--planner", "zb_h1"], "weight_part"),
                ([self.PROBLEM, "--planner", "interleaved"], "no link from")]:
            result = self.run_program("pipeline", *arguments, expect=BAD_INPUT)
            self.assertIn(text, result.stderr, arguments)


if __name__ == "__main__":
    unittest.main()
