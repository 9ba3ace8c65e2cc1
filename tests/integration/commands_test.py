"""Runs every command, and reaches every exit code, on good files."""

import json
import re
import signal
import subprocess
import time
import unittest

from harness import (BAD_INPUT, BROKEN, CHAINS, DONE, INFEASIBLE, OUT_OF_TIME, PROGRAM,
                     ProgramTest)

CORE = ["plan", "pipeline", "frontier", "check", "explain", "report", "planners", "doctor"]
RUNTIME = ["train", "profile", "models", "alternatives"]
CHAIN = CHAINS / "heterogeneous5.json"

GRAPH = {
    "format": "reprise.graph", "version": 1, "name": "small", "fixed_bytes": 100,
    "values": [{"id": "x", "bytes": 8, "kind": "input"}, {"id": "y", "bytes": 8},
               {"id": "g", "bytes": 8, "kind": "gradient"}],
    "ops": [{"id": "f", "variants": [{"ns": 1, "reads": ["x"], "writes": ["y"]}]},
            {"id": "b", "phase": "backward", "variants": [{"ns": 2, "reads": ["y"], "writes": ["g"]}]}],
    "results": ["g"],
}


class HelpTest(ProgramTest):
    def test_help_lists_all_commands(self):
        text = self.run_program("--help").stdout
        for command in CORE + RUNTIME:
            self.assertRegex(text, rf"(?m)^  {command} +\S")

    def test_help_of_each_command_has_an_example(self):
        for command in CORE:
            text = self.run_program(command, "--help").stdout
            self.assertRegex(text, rf"(?m)^Examples?:\n  reprise {command}", command)

    def test_version(self):
        self.assertRegex(self.run_program("--version").stdout, r"^reprise \d+\.\d+\.\d+\n$")

    def test_wrong_usage(self):
        wrong = [[], ["nonsense"], ["plan"], ["plan", CHAIN], ["plan", CHAIN, "--budget"],
                 ["plan", CHAIN, "--budget", "much"], ["plan", CHAIN, "--budget", "-5"],
                 ["plan", CHAIN, "--budget", "60%", "--time-limit", "soon"],
                 ["plan", CHAIN, "--budget", "60%", "--threads", "-1"],
                 ["plan", CHAIN, "--budget", "60%", "--allow", "anything"],
                 ["plan", CHAIN, "--budget", "60%", "--wrong"],
                 ["check", CHAIN], ["explain"], ["frontier"], ["planners", "extra"]]
        for arguments in wrong:
            result = self.run_program(*arguments, expect=BAD_INPUT)
            self.assertEqual(result.stdout, "", arguments)
            self.assertRegex(result.stderr, r"^reprise: error: ", arguments)


class PlanTest(ProgramTest):
    def test_json_on_stdout_and_summary_on_stderr(self):
        result = self.run_program("plan", CHAIN, "--budget", "80%")
        plan = json.loads(result.stdout)
        self.assertEqual(plan["format"], "reprise.plan")
        self.assertEqual(plan["problem"]["name"], "heterogeneous5")
        self.assertLessEqual(plan["peak_bytes"], plan["budget_bytes"])
        self.assertEqual(plan["budget_bytes"], plan["baseline"]["peak_bytes"] * 80 // 100)
        self.assertRegex(result.stderr, r"^reprise: (optimal|feasible): peak .*\n$")

    def test_file_and_summary_on_stdout(self):
        path = self.folder / "plan.json"
        result = self.run_program("plan", CHAIN, "--budget", "80%", "-o", path)
        self.assertIn("peak", result.stdout)
        self.assertEqual(json.loads(path.read_text())["format"], "reprise.plan")
        self.assertEqual(list(self.files()), ["plan.json"])
        result = self.run_program("plan", CHAIN, "--budget", "80%", "-o", path, "--json", "--quiet")
        self.assertIn("peak_bytes", json.loads(result.stdout))
        self.assertEqual(result.stderr, "")
        result = self.run_program("plan", CHAIN, "--budget", "80%", "-o", path, "--quiet")
        self.assertEqual(result.stdout + result.stderr, "")

    def test_every_form_of_budget(self):
        peak = json.loads(self.run_program("plan", CHAIN, "--budget", "100%").stdout)[
            "baseline"]["peak_bytes"]
        for budget in [str(peak), f"{peak} B", "1 MiB", "0.5GB", "90 %"]:
            self.run_program("plan", CHAIN, "--budget", budget)

    def test_example_chains(self):
        for path in sorted(CHAINS.glob("*.json")):
            plan = self.make_plan(path, "100%")
            self.run_program("check", path, plan)

    def test_graphs(self):
        graph = self.write("graph.json", GRAPH)
        plan = self.make_plan(graph, "100%")
        self.assertIn("valid", self.run_program("check", graph, plan).stdout)
        self.assertIn("124 B", self.run_program("explain", graph, plan).stdout)

    def test_known_optima(self):
        plan = json.loads(
            self.run_program("plan", CHAINS / "over_budget3.json", "--budget", "21").stdout)
        self.assertEqual((plan["time_ns"], plan["peak_bytes"]), (12, 21))
        plan = json.loads(
            self.run_program("plan", CHAINS / "false_refusal2.json", "--budget", "18").stdout)
        self.assertEqual((plan["time_ns"], plan["peak_bytes"]), (7, 18))

    def test_infeasible_says_the_smallest_budget(self):
        result = self.run_program("plan", CHAIN, "--budget", "10", expect=INFEASIBLE)
        self.assertEqual(result.stdout, "")
        smallest = int(re.search(r"smallest feasible budget is (\d+) bytes", result.stderr)[1])
        self.assertRegex(result.stderr, r"% of plain training's peak\), needed by \S+")
        self.run_program("plan", CHAIN, "--budget", smallest)
        self.run_program("plan", CHAIN, "--budget", smallest - 1, expect=INFEASIBLE)

    def test_what_is_spelt_wrong_is_named(self):
        for arguments, name in [(["foo"], '"foo"'), (["plan", CHAIN, "--budgte", "60%"], "--budgte")]:
            result = self.run_program(*arguments, expect=BAD_INPUT)
            self.assertIn(name, result.stderr)
            self.assertNotIn("required", result.stderr)

    def test_a_problem_that_no_planner_can_use_is_named(self):
        problem = json.loads(CHAIN.read_text())
        for option in problem["stages"][1]["options"]:
            option["exactness"] = "rounding"
        path = self.write("rounding.json", problem)
        result = self.run_program("plan", path, "--budget", "80%", expect=BAD_INPUT)
        self.assertIn("rounding.json: at /stages/1/options: ", result.stderr)

    def test_bytes_of_zero(self):
        path = self.write("zero.json", CHAIN.read_text() + "\0more")
        result = self.run_program("plan", path, "--budget", "80%", expect=BAD_INPUT)
        self.assertRegex(result.stderr, r"zero\.json:\d+: has a byte of zero")

    def test_a_class_that_is_spelt_wrong(self):
        result = self.run_program("plan", CHAIN, "--budget", "80%", "--class", "persistant",
                                  expect=BAD_INPUT)
        self.assertIn("persistent+dropped-inputs", result.stderr)

    def test_the_plan_of_another_problem(self):
        plan = self.folder / "plan.json"
        self.run_program("plan", CHAINS / "resnet18_like.json", "--budget", "80%", "-o", plan)
        for command in ("explain", "report"):
            result = self.run_program(command, CHAINS / "gpt_like.json", plan, expect=BAD_INPUT)
            self.assertIn('this plan is for "resnet18_like", not for "gpt_like"', result.stderr)

    def test_infeasible_leaves_the_old_file(self):
        path = self.write("plan.json", "old")
        result = self.run_program("plan", CHAIN, "--budget", "10", "-o", path, "--json",
                                  expect=INFEASIBLE)
        self.assertEqual(json.loads(result.stdout)["termination"], "infeasible")
        self.assertEqual(self.files(), {"plan.json": b"old"})

    def test_out_of_time(self):
        result = self.run_program("plan", self.long_chain(), "--budget", "50%", "--planner",
                                  "periodic", "--time-limit", "1ns", expect=OUT_OF_TIME)
        self.assertIn("out of time", result.stderr)
        self.assertEqual(result.stdout, "")

    def long_chain(self, stages=400):
        """Makes unequal stages, so that no search is quick."""
        def cost(ns):
            return {"ns": ns}
        return self.write("long.json", {
            "format": "reprise.chain", "version": 1, "name": "long", "input": {"bytes": 1000},
            "stages": [{"name": str(i), "output_bytes": 1000 + i * i * 7919 % 1009,
                        "forward": cost(100 + i * 31 % 97),
                        "options": [{"name": "keep", "saved_bytes": 3000 + i * i * 104729 % 2003,
                                     "forward": cost(100 + i * 31 % 97),
                                     "backward": cost(200 + i * 17 % 89)}]}
                       for i in range(stages)]})

    def test_unknown_planner_lists_the_names(self):
        names = [planner["name"] for planner in
                 json.loads(self.run_program("planners", "--json").stdout)]
        for command in (["plan", CHAIN, "--budget", "60%"], ["frontier", CHAIN]):
            result = self.run_program(*command, "--planner", "oracle", expect=BAD_INPUT)
            for name in names:
                self.assertIn(name, result.stderr)

    def test_interrupt_leaves_no_files(self):
        process = subprocess.Popen(
            [PROGRAM, "plan", self.long_chain(1500), "--budget", "40%", "--time-limit", "60s", "-o",
             self.folder / "plan.json"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(0.5)
        running = process.poll() is None
        process.send_signal(signal.SIGINT)
        code = process.wait(timeout=30)
        if running:
            self.assertIn(code, (-signal.SIGINT, 130))
            self.assertEqual(list(self.files()), ["long.json"])


class FrontierTest(ProgramTest):
    def test_table_file_and_picture(self):
        output, svg = self.folder / "f.json", self.folder / "f.svg"
        result = self.run_program("frontier", CHAIN, "-o", output, "--svg", svg)
        self.assertIn("over plain", result.stdout)
        points = json.loads(output.read_text())["points"]
        self.assertGreater(len(points), 1)
        for one, next_one in zip(points, points[1:]):
            self.assertLess(one["budget_bytes"], next_one["budget_bytes"])
            self.assertGreater(one["time_ns"], next_one["time_ns"])
        picture = svg.read_text(encoding="utf-8")
        self.assertTrue(picture.startswith("<svg"))
        self.assertNotIn("<script", picture)
        printed = self.run_program("frontier", CHAIN, "--json").stdout
        self.assertEqual(json.loads(printed)["points"], points)

    def test_points_are_what_plan_finds(self):
        points = json.loads(self.run_program("frontier", CHAIN, "--json").stdout)["points"]
        for point in points[:: max(1, len(points) // 5)]:
            plan = json.loads(
                self.run_program("plan", CHAIN, "--budget", point["budget_bytes"]).stdout)
            self.assertEqual(plan["time_ns"], point["time_ns"])

    def test_on_a_machine(self):
        svg = self.folder / "m.svg"
        options = ["--offload", "host=1GB/s", "--time-limit", "1s"]
        result = self.run_program("frontier", CHAIN, *options, "--compare", "--svg", svg)
        for words in ("planner levels", "recomputing alone", "moving alone"):
            self.assertIn(words, result.stdout)
        self.assertIn("moving alone", svg.read_text(encoding="utf-8"))
        points = json.loads(self.run_program("frontier", CHAIN, *options, "--json").stdout)["points"]
        plan = self.folder / "plan.json"
        for point in points[:: max(1, len(points) // 3)]:
            self.run_program("plan", CHAIN, "--budget", point["budget_bytes"], "--offload",
                             "host=1GB/s", "-o", plan)
            self.assertGreaterEqual(json.loads(plan.read_text())["time_ns"],
                                    point["lower_bound_ns"])
        refused = self.run_program("frontier", CHAIN, "--compare", expect=BAD_INPUT)
        self.assertIn("--offload", refused.stderr)
        self.run_program("frontier", CHAIN, *options, "--planner", "chain", expect=BAD_INPUT)

    def test_graphs(self):
        graph, svg = self.write("graph.json", GRAPH), self.folder / "g.svg"
        points = json.loads(
            self.run_program("frontier", graph, "--json", "--svg", svg).stdout)["points"]
        self.assertTrue(svg.read_text(encoding="utf-8").startswith("<svg"))
        for point in points:
            plan = self.run_program("plan", graph, "--budget", point["budget_bytes"]).stdout
            self.assertLessEqual(json.loads(plan)["peak_bytes"], point["budget_bytes"])


class CheckTest(ProgramTest):
    def setUp(self):
        super().setUp()
        self.plan = self.make_plan(CHAIN, "80%")

    def damaged(self, **changes):
        plan = json.loads(self.plan.read_text())
        plan.update(changes)
        return self.write("damaged.json", plan)

    def test_valid(self):
        result = self.run_program("check", CHAIN, self.plan)
        self.assertRegex(result.stdout, "^valid")
        verdict = json.loads(self.run_program("check", CHAIN, self.plan, "--json").stdout)
        self.assertEqual((verdict["valid"], verdict["violations"]), (True, []))

    def test_another_budget(self):
        self.run_program("check", CHAIN, self.plan, "--budget", "100%")
        result = self.run_program("check", CHAIN, self.plan, "--budget", "10%", expect=BROKEN)
        self.assertIn("over budget", result.stdout)

    def test_false_claims_are_all_listed(self):
        path = self.damaged(peak_bytes=1, time_ns=1)
        result = self.run_program("check", CHAIN, path, expect=BROKEN)
        self.assertGreaterEqual(result.stdout.count("false claim"), 2)

    def test_unknown_ids(self):
        path = self.damaged(actions=[["run", "nothing", "keep"], ["free", "nobody"]])
        verdict = json.loads(
            self.run_program("check", CHAIN, path, "--json", expect=BROKEN).stdout)
        self.assertFalse(verdict["valid"])
        ids = [fault["id"] for fault in verdict["violations"] if fault["kind"] == "unknown id"]
        self.assertEqual(ids, ["nothing", "nobody"])

    def test_another_problem(self):
        result = self.run_program("check", CHAINS / "uniform8.json", self.plan, expect=BROKEN)
        self.assertIn("problem", result.stdout)

    def test_a_changed_problem(self):
        problem = json.loads(CHAIN.read_text())
        problem["stages"][0]["forward"]["ns"] += 1
        changed = self.write("changed.json", problem)
        self.run_program("check", changed, self.plan, expect=BROKEN)
        problem["stages"][0]["forward"]["ns"] -= 1
        problem["x-remark"] = "not part of the problem"
        self.run_program("check", self.write("same.json", problem), self.plan)

    def test_no_actions(self):
        result = self.run_program("check", CHAIN, self.damaged(actions=[]), expect=BROKEN)
        self.assertIn("missing", result.stdout)


class ExplainTest(ProgramTest):
    def test_holders_sum_to_the_peak(self):
        plan = self.make_plan(CHAIN, "80%")
        answer = json.loads(self.run_program("explain", CHAIN, plan, "--json").stdout)
        self.assertEqual(sum(holder["bytes"] for holder in answer["holders"]), answer["peak_bytes"])
        self.assertEqual(answer["peak_bytes"], json.loads(plan.read_text())["peak_bytes"])
        text = self.run_program("explain", CHAIN, plan, "--rows", "2").stdout
        shown = re.search(r"(?m)^  sum +(\d+)", text)
        self.assertEqual(int(shown[1]), answer["peak_bytes"])
        self.assertIn("others", text)

    def test_the_plan_of_a_changed_problem_is_said(self):
        plan = json.loads(self.make_plan(CHAIN).read_text())
        plan["problem"]["sha256"] = "0" * 64
        result = self.run_program("explain", CHAIN, self.write("other.json", plan))
        self.assertIn("this plan is not valid (1 violation)", result.stderr)

    def test_a_plan_that_cannot_run(self):
        plan = json.loads(self.make_plan(CHAIN).read_text())
        plan["actions"] = [["run", "B0", "keep"]]
        self.run_program("explain", CHAIN, self.write("bad.json", plan), expect=BAD_INPUT)
        plan["actions"] = [["run", "nothing", "keep"]]
        path = self.write("bad.json", plan)
        for command in (["explain"], ["report", "-o", self.folder / "page.html"]):
            refused = self.run_program(command[0], CHAIN, path, *command[1:], expect=BAD_INPUT)
            self.assertIn(f"{path}: at /actions/0: the problem \"", refused.stderr)


class PlannersAndDoctorTest(ProgramTest):
    def test_planners(self):
        text = self.run_program("planners").stdout
        rows = json.loads(self.run_program("planners", "--json").stdout)
        self.assertIn("chain", [row["name"] for row in rows])
        for row in rows:
            self.assertIn(row["name"], text)
            self.assertTrue(any(row[kind] for kind in ("chains", "graphs", "joins", "pipelines")))

    def test_doctor(self):
        environment = {"PATH": "/nowhere"}
        answer = json.loads(self.run_program("doctor", "--json", env=environment).stdout)
        self.assertGreaterEqual(answer["cores"], 1)
        self.assertGreater(answer["memory_bytes"], 2**20)
        self.assertIsInstance(answer["findings"], list)
        if answer["runtime"] is None:
            self.assertIsNone(answer["libtorch"])
            self.assertIn("build it with LibTorch", answer["findings"][0]["advice"])
            text = self.run_program("doctor", env=environment).stdout
            self.assertIn("compiler", text)


class StreamsTest(ProgramTest):
    def test_a_reader_that_goes_away(self):
        process = subprocess.Popen([PROGRAM, "plan", CHAINS / "gpt_like.json", "--budget", "100%"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        process.stdout.close()
        message = process.stderr.read()
        process.stderr.close()
        self.assertEqual(process.wait(), DONE, message)

    def test_a_full_disk(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            result = subprocess.run([PROGRAM, "planners"], stdout=full, stderr=subprocess.PIPE,
                                    check=False)
        self.assertEqual(result.returncode, BAD_INPUT)
        self.assertIn(b"standard output", result.stderr)

    def test_no_escapes_outside_terminals(self):
        plan = self.make_plan(CHAIN)
        for arguments in (["explain", CHAIN, plan], ["planners"], ["frontier", CHAIN]):
            result = self.run_program(*arguments)
            self.assertNotIn("\x1b", result.stdout + result.stderr)

    def test_names_cannot_drive_a_terminal(self):
        problem = json.loads(CHAIN.read_text())
        problem["name"] = "\x1b]0;title\x07"
        problem["stages"][0]["options"][0]["name"] = "\x1b[2J"
        path = self.write("evil.json", problem)
        plan = self.make_plan(path)
        for arguments in (["explain", path, plan], ["frontier", path], ["check", path, plan]):
            result = self.run_program(*arguments)
            self.assertNotIn("\x1b", result.stdout + result.stderr)


if __name__ == "__main__":
    unittest.main()
