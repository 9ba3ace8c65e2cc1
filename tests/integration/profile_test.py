"""`reprise doctor` and `reprise profile` of the runtime: what they say, and files that fit together."""

import json
import unittest

from harness import BAD_INPUT, DONE, INFEASIBLE, ProgramTest

GPT = ["--model", "gpt", "--input", "2x32", "--width", "32", "--layers", "4", "--heads", "2"]


class DoctorTest(ProgramTest):
    def test_all_is_well(self):
        answer = json.loads(self.run_program("doctor", "--json").stdout)
        self.assertTrue(answer["well"])
        tried = answer["libtorch"]
        self.assertTrue(tried["cpu_allocator"])
        self.assertEqual([step["mode"] for step in tried["steps"]], ["chain", "graph"])
        for step in tried["steps"]:
            self.assertTrue(step["same_bits"])
            self.assertEqual(step["predicted_peak_bytes"], step["measured_peak_bytes"])
            self.assertLessEqual(step["measured_peak_bytes"], step["budget_bytes"])
            self.assertLess(step["budget_bytes"], step["plain_peak_bytes"])
        chain, graph = tried["steps"]
        self.assertNotIn("guards", chain)  # Chain mode runs the stages themselves.
        self.assertIn("deterministic algorithms", graph["guards"])

    def test_a_model_of_ones_choice(self):
        text = self.run_program("doctor", *GPT, "--budget", "90%").stdout
        for words in ("one step of gpt", "chain  same bits", "graph  same bits", "all is well"):
            self.assertIn(words, text)

    def test_bad_arguments_and_budgets(self):
        wrong = self.run_program("doctor", "--model", "resnet19", expect=BAD_INPUT)
        self.assertIn("resnet18", wrong.stderr)
        self.run_program("doctor", "--model", "mlp", "--magic", "1", expect=BAD_INPUT)
        self.run_program("doctor", "--json", "--model", "resnet19", expect=BAD_INPUT)
        alone = self.run_program("doctor", "--input", "1xx", expect=BAD_INPUT)
        self.assertIn("name it with --model", alone.stderr)
        tight = self.run_program("doctor", *GPT, "--budget", "1000", expect=INFEASIBLE)
        self.assertRegex(tight.stderr, r"\d+ B is the smallest")


class ProfileTest(ProgramTest):
    def test_profile_plan_check(self):
        profile, plan = self.folder / "p.json", self.folder / "plan.json"
        self.run_program("profile", "--model", "mlp", "--batch", "8", "-o", profile, expect=DONE)
        self.assertEqual(json.loads(profile.read_text())["format"], "reprise.profile")
        self.run_program("plan", profile, "--budget", "100%", "-o", plan, expect=DONE)
        self.run_program("check", profile, plan, expect=DONE)

    def test_graph_profile_plan_check(self):
        profile, plan = self.folder / "p.json", self.folder / "plan.json"
        self.run_program("profile", "--model", "mlp", "--batch", "8", "--mode", "graph", "-o", profile,
                         expect=DONE)
        self.run_program("plan", profile, "--budget", "100%", "-o", plan, expect=DONE)
        self.run_program("check", profile, plan, expect=DONE)

    def test_models_are_listed(self):
        models = json.loads(self.run_program("models", "--json", expect=DONE).stdout)
        self.assertIn("resnet50", [model["name"] for model in models])
        self.assertIn("resnet50", self.run_program("models", expect=DONE).stdout)

    def test_alternatives_are_listed_and_switched_by_name(self):
        rows = json.loads(self.run_program("alternatives", "--json", expect=DONE).stdout)
        names = [row["name"] for row in rows]
        self.assertIn("in-place", names)
        self.assertEqual([row["name"] for row in rows if row["exactness"] != "bitwise"],
                         ["shared-rows", "batch-norm-by-samples", "forward-ad", "compressed-8", "compressed-4",
                          "olive-8", "olive-4"])
        self.assertIn("in-place", self.run_program("alternatives", expect=DONE).stdout)
        small = ["--model", "resnet18", "--input", "2x1x28x28", "--mode", "graph", "--quiet"]
        profile = str(self.folder / "p.json")
        self.run_program("profile", *small, "--only", "in-place", "-o", profile, expect=DONE)
        with open(profile) as file:
            text = file.read()
        self.assertIn("in-place/", text)
        self.assertNotIn("two-call-convolution", text)
        self.run_program("profile", *small, "--without", ",".join(names), "-o", profile, expect=DONE)
        with open(profile) as file:
            self.assertNotIn("in-place/", file.read())
        wrong = self.run_program("profile", *small, "--without", "inplace", expect=BAD_INPUT)
        self.assertIn("two-call-convolution", wrong.stderr)

    def test_alternatives_of_a_chain(self):
        rows = json.loads(self.run_program("alternatives", "--json", expect=DONE).stdout)
        of_chain = [row["name"] for row in rows if "chain" in row["modes"]]
        self.assertEqual(of_chain, ["one-bit-mask", "small-indices", "rebuild"])
        small = ["--model", "resnet18", "--input", "2x1x28x28", "--quiet"]
        profile, plan = str(self.folder / "p.json"), str(self.folder / "plan.json")
        for switch, expected in [([], {"keep", "smaller", "rebuild"}),
                                 (["--without", "rebuild"], {"keep", "smaller"}),
                                 (["--only", "rebuild"], {"keep", "rebuild"}),
                                 (["--without", ",".join(of_chain)], {"keep"})]:
            self.run_program("profile", *small, *switch, "-o", profile, expect=DONE)
            with open(profile) as file:
                stages = json.load(file)["problem"]["stages"]
            names = {option["name"] for stage in stages for option in stage["options"]}
            self.assertEqual(names, expected, switch)
        wrong = self.run_program("profile", *small, "--only", "in-place", expect=BAD_INPUT)
        self.assertIn("graph mode", wrong.stderr)
        wrong = self.run_program("profile", *small, "--mode", "graph", "--only", "rebuild",
                                 expect=BAD_INPUT)
        self.assertIn("chain", wrong.stderr)
        wrong = self.run_program("profile", *small, "--allow", "rounding", expect=BAD_INPUT)
        self.assertIn("--mode graph", wrong.stderr)
        # The variant of plain training is made slow, so that the planner's choice does not depend
        # on this machine.
        self.run_program("profile", *small, "-o", profile, expect=DONE)
        with open(profile) as file:
            problem = json.load(file)
        for stage in problem["problem"]["stages"]:
            stage["options"][0]["backward"]["ns"] *= 100
        with open(profile, "w") as file:
            json.dump(problem, file)
        self.run_program("plan", profile, "--budget", "100%", "-o", plan, expect=DONE)
        self.assertIn("rebuild", self.run_program("explain", profile, plan, expect=DONE).stdout)

    def test_help_has_examples(self):
        for command in ("train", "profile", "models", "alternatives"):
            self.assertIn("Example", self.run_program(command, "--help", expect=DONE).stdout)


if __name__ == "__main__":
    unittest.main()
