"""Commands of reprise-runtime, on small models: training keeps its promises, files fit together."""

import json
import random
import re
import signal
import subprocess
import time
import unittest

from harness import BAD_INPUT, DONE, INFEASIBLE, PROGRAM, ProgramTest

SMALL = ["train", "--data", "synthetic", "--test", "8", "--quiet"]
GPT = ["--model", "gpt", "--input", "2x32", "--width", "32", "--layers", "4", "--heads", "2"]


def tensors_of(state):
    """Returns the bytes of all tensors of a saved state but the text with the plan's hash, by name."""
    length = int.from_bytes(state[:8], "little")
    header = json.loads(state[8:8 + length])
    return {name: state[8 + length + tensor["data_offsets"][0]:8 + length + tensor["data_offsets"][1]]
            for name, tensor in header.items() if name not in ("__metadata__", "state.json")}


class TrainTest(ProgramTest):
    def train(self, *arguments, expect=DONE):
        # Any plan within the budget will do. Online mode has no such limit.
        if "--time-limit" not in arguments and "online" not in arguments:
            arguments = [*arguments, "--time-limit", "0.5s"]
        return self.run_program(*SMALL, *arguments, expect=expect)

    def test_keeps_its_promises(self):
        result = self.train(*GPT, "--mode", "chain", "--budget", "85%", "--steps", "3", "--json")
        report = json.loads(result.stdout)
        self.assertTrue(report["gradients_equal"])
        self.assertTrue(report["peaks_equal"])
        self.assertEqual(report["steps"], 3)
        self.assertLessEqual(report["measured_peak_bytes"], report["budget_bytes"])
        self.assertLess(report["budget_bytes"], report["plain_peak_bytes"])
        self.assertGreater(report["plan"]["time_ns"], report["plan"]["baseline_time_ns"])

    def test_table_says_what_was_saved(self):
        text = self.train(*GPT, "--budget", "85%", "--steps", "2").stdout
        for words in ("peak measured", "as predicted, to the byte", "bit by bit", "lower bound",
                      "accuracy", "memory saved"):
            self.assertIn(words, text)

    def test_graph_mode_keeps_its_promises(self):
        plan, profile = self.folder / "plan.json", self.folder / "profile.json"
        result = self.train(*GPT, "--mode", "graph", "--budget", "85%", "--steps", "4", "--json",
                            "--time-limit", "1s", "--save", plan, "--save-profile", profile)
        report = json.loads(result.stdout)
        self.assertTrue(report["gradients_equal"])
        self.assertTrue(report["peaks_equal"])
        self.assertLessEqual(report["measured_peak_bytes"], report["budget_bytes"])
        self.assertEqual(report["arena_fallbacks"], 0)
        self.run_program("check", profile, plan, expect=DONE)
        self.run_program("explain", profile, plan, expect=DONE)

    def test_compares_approximate_alternatives_with_their_bounds(self):
        plan, profile = self.folder / "plan.json", self.folder / "profile.json"
        gpt = ["--model", "gpt", "--input", "4x64", "--width", "64", "--layers", "3", "--heads", "2"]
        # Random numbers take longer to draw again than a codec takes for them, so some budget needs one.
        for budget in ("45%", "40%", "35%", "30%"):
            arguments = [*gpt, "--mode", "graph", "--budget", budget, "--steps", "2", "--time-limit",
                         "2s", "--only", "compressed-8", "--allow", "approximate"]
            text = self.train(*arguments, "--save", plan, "--save-profile", profile).stdout
            if "compressed-8" in text:
                break
        self.assertRegex(text, r"first step .* equal  .*bit by bit, without the codecs")
        self.assertRegex(text, r"compressed-8 .* off  of the 0\.00\d+ that it states, of the largest")
        self.assertRegex(text, r"with the codecs .* off  gradients.*loss, buffers, random state equal")
        self.assertIn("of the largest element", self.run_program("explain", profile, plan,
                                                                 expect=DONE).stdout)
        report = json.loads(self.train(*arguments, "--json").stdout)
        self.assertTrue(report["gradients_equal"])
        for use in report.get("approximate", []):
            self.assertTrue(use["within_bounds"])
            self.assertTrue(report["approximate_forward_equal"])
            self.assertLess(3 * use["kept_bytes"], use["plain_bytes"])

    def test_moves_values_to_a_disk(self):
        plan, profile, machine = (self.folder / name for name in ("p.json", "q.json", "m.json"))
        scratch = self.folder / "scratch"
        scratch.mkdir()
        # The buffers of the disk are in the budget, so that the network is not too small.
        gpt = ["--model", "gpt", "--input", "16x64", "--width", "64", "--layers", "4", "--heads", "2"]
        arguments = [*gpt, "--steps", "2", "--time-limit", "1s", "--json",
                     "--budget", "70%", "--offload", f"disk:{scratch}"]
        fast = self.folder / "fast.json"
        channel = {"bytes_per_second": 100_000_000_000, "latency_ns": 0}
        fast.write_text(json.dumps({
            "format": "reprise.machine", "version": 1,
            "memories": [{"name": "device"}, {"name": "disk"}],
            "channels": [{"from": "device", "to": "disk"} | channel,
                         {"from": "disk", "to": "device"} | channel]}))
        for mode in ("chain", "graph"):
            with self.subTest(mode=mode):
                result = self.train(*arguments, "--mode", mode, "--machine", fast, "--save", plan,
                                    "--save-profile", profile, "--save-machine", machine)
                report = json.loads(result.stdout)
                self.assertTrue(report["gradients_equal"])
                self.assertTrue(report["peaks_equal"])
                self.assertGreater(report["moved_out_bytes"], 0)
                self.assertLessEqual(report["moved_out_bytes"], report["moved_in_bytes"])
                self.assertLessEqual(report["measured_peak_bytes"], report["budget_bytes"])
                self.assertEqual(list(scratch.iterdir()), [])
                self.run_program("check", profile, plan, "--machine", machine, expect=DONE)
                self.run_program("explain", profile, plan, "--machine", machine, expect=DONE)
        # The disk is measured if there is no machine. Online mode does not move values.
        measured = json.loads(self.train(*arguments, "--mode", "chain").stdout)
        self.assertEqual(measured["machine"]["memories"][1]["name"], "disk")
        # The program takes a memory where that pays, which depends on what was measured.
        for mode, budget in (("chain", "70%"), ("graph", "100%")):
            with self.subTest(auto=mode):
                chosen = json.loads(self.train(*gpt, "--steps", "1", "--time-limit", "1s", "--json",
                                               "--budget", budget, "--machine", fast, "--mode",
                                               mode, "--offload", f"auto:{scratch}").stdout)
                self.assertTrue(chosen["gradients_equal"])
                self.assertTrue(chosen["peaks_equal"])
                moves = chosen["moved_out_bytes"] > 0
                self.assertEqual(chosen["offload_choice"].startswith("nothing moves"), not moves)
                self.assertFalse(moves and mode == "graph", "with all memory nothing can pay")
                self.assertEqual(list(scratch.iterdir()), [])
        for wrong, words in ((["--mode", "online", "--offload", "disk:/tmp"], "--offload"),
                             (["--mode", "chain", "--machine", fast], "--offload disk:DIRECTORY"),
                             (["--mode", "chain", "--offload", "disk:/no/such"], "/no/such")):
            with self.subTest(wrong=wrong):
                self.assertIn(words, self.train(*GPT, *wrong, "--steps", "1",
                                                expect=BAD_INPUT).stderr)

    def test_keeps_the_optimizers_state_on_a_disk(self):
        scratch, fast = self.folder / "scratch", self.folder / "fast.json"
        scratch.mkdir()
        channel = {"bytes_per_second": 100_000_000_000, "latency_ns": 0}
        fast.write_text(json.dumps({
            "format": "reprise.machine", "version": 1,
            "memories": [{"name": "device"}, {"name": "disk"}],
            "channels": [{"from": "device", "to": "disk"} | channel,
                         {"from": "disk", "to": "device"} | channel]}))
        adam = ["--model", "gpt", "--input", "8x64", "--width", "128", "--layers", "2", "--heads", "2",
                "--optimizer", "adam", "--consume-gradients", "--time-limit", "1s",
                "--offload", f"disk:{scratch}", "--machine", fast]
        # The state is a third of plain's peak, and without it fewer bytes are enough.
        refused = self.train(*adam, "--budget", "50%", "--steps", "3", expect=INFEASIBLE)
        for option in ("--offload-optimizer", "--offload-parameters"):
            self.assertIn(option, refused.stderr)
        page, state = self.folder / "page.html", self.folder / "state"
        saved = [*adam, "--budget", "50%", "--offload-optimizer", "--offload-parameters",
                 "--state", state]
        report = json.loads(self.train(*saved, "--steps", "3", "--json", "--report", page).stdout)
        self.assertTrue(report["gradients_equal"])  # parameters and the optimizer's state
        self.assertTrue(report["peaks_equal"])
        away = report["optimizer_state_away_bytes"] + report["parameters_away_bytes"]
        self.assertGreater(away, report["optimizer_state_away_bytes"])
        self.assertGreater(away, report["parameters_away_bytes"])
        for moved in ("moved_out_bytes", "moved_in_bytes"):
            self.assertGreaterEqual(report[moved], away)
        self.assertLessEqual(report["measured_peak_bytes"], report["budget_bytes"])
        self.assertIn("where values may move", page.read_text(encoding="utf-8"))
        # The state of the run is saved and loaded, wherever it lies between the steps.
        more = self.train(*saved, "--steps", "5").stdout
        self.assertRegex(more, r"went on after step .* 3\b")
        for what in ("optimizer's state", "parameters"):
            self.assertRegex(more, what + r" .* on the disk between the steps")
        alone = self.folder / "alone"
        self.train(*adam[:-4], "--steps", "5", "--state", alone)
        self.assertEqual(*(tensors_of((folder / "state.safetensors").read_bytes())
                           for folder in (state, alone)))
        self.assertEqual(list(scratch.iterdir()), [])

    def test_refuses_to_move_state_that_is_not_in_the_step(self):
        alone = ["--offload-optimizer", "--optimizer", "adam", "--consume-gradients"]
        disk = ["--offload", "disk:/tmp"]
        for wrong, words in ((alone, "--offload disk:DIRECTORY"),
                             (["--offload-parameters"], "--offload disk:DIRECTORY"),
                             (["--offload-parameters", *disk], "--consume-gradients"),
                             (["--offload-parameters", *disk, "--mode", "chain"], "--mode graph"),
                             ([*alone, "--offload", "auto"], "--offload disk:DIRECTORY"),
                             (["--offload-optimizer", *disk, "--optimizer", "adam"],
                              "--consume-gradients"),
                             (["--offload-optimizer", *disk, "--mode", "chain"], "--mode graph"),
                             (["--offload-optimizer", *disk, "--consume-gradients"],
                              "plain SGD has none")):
            with self.subTest(wrong=wrong):
                self.assertIn(words, self.train(*GPT, *wrong, "--steps", "1",
                                                expect=BAD_INPUT).stderr)

    def test_says_which_mode_it_takes(self):
        arguments = ["train", *GPT, "--test", "0", "--steps", "1"]
        for more, mode, words in (([], "graph", "graph mode: the step was captured"),
                                  (["--planner", "chain"], "chain", "chain mode: the planner chain"),
                                  (["--no-check"], "chain", "chain mode: without the check")):
            with self.subTest(more=more):
                result = self.run_program(*arguments, *more, "--json", expect=DONE)
                self.assertEqual(json.loads(result.stdout)["mode"], mode)
                self.assertEqual(result.stderr.count(words), 1, result.stderr)
                table = self.run_program(*arguments, *more, "--quiet", expect=DONE)
                self.assertIn(f"in {mode} mode", table.stdout)
                self.assertEqual(table.stderr, "")

    def test_online_mode_keeps_its_promises(self):
        losses = set()
        for mode in (["--mode", "online", "--budget", "85%"], ["--mode", "graph"]):
            result = self.train(*GPT, *mode, "--steps", "4", "--dropout", "0.1", "--json")
            report = json.loads(result.stdout)
            self.assertTrue(report["gradients_equal"])
            self.assertLessEqual(report["measured_peak_bytes"], report["budget_bytes"])
            losses.add(report["last_loss"])
            if report["mode"] == "online":
                self.assertLess(report["budget_bytes"], report["plain_peak_bytes"])
                self.assertGreater(report["evictions"], 0)
                self.assertNotIn("plan", report)
                self.assertNotIn("predicted_peak_bytes", report)
        self.assertEqual(len(losses), 1, losses)
        table = self.train(*GPT, "--mode", "online", "--budget", "85%", "--steps", "1").stdout
        for words in ("in online mode", "evictions, re-runs", "bit by bit", "memory saved"):
            self.assertIn(words, table)
        self.assertNotIn("predicted,", table)
        bare = self.train(*GPT, "--mode", "online", "--no-check", "--steps", "1").stdout
        self.assertNotIn("memory saved", bare)

    def test_online_mode_refuses_what_it_cannot_do(self):
        online = [*GPT, "--mode", "online", "--steps", "1"]
        page = self.folder / "page.html"
        for more in (["--report", page], ["--save-plan", page], ["--planner", "graph"],
                     ["--consume-gradients"], ["--micro-batches", "2"], ["--allow", "rounding"],
                     ["--no-check", "--budget", "50%"]):
            with self.subTest(more=more):
                refused = self.train(*online, *more, expect=BAD_INPUT)
                self.assertIn("exclude each other", refused.stderr)
        self.assertFalse(page.exists())
        refused = self.train(*online, "--budget", "5%", expect=INFEASIBLE)
        self.assertIn("larger budget", refused.stderr)

    def test_learning_rate_falls_where_it_is_asked_to(self):
        steps = [*GPT, "--steps", "3", "--json"]
        constant, linear = (json.loads(self.train(*steps, "--schedule", schedule).stdout)
                            for schedule in ("constant", "linear"))
        self.assertEqual(constant["first_loss"], linear["first_loss"])
        self.assertNotEqual(constant["last_loss"], linear["last_loss"])

    def test_gradients_are_consumed_in_graph_mode(self):
        plan, profile = self.folder / "plan.json", self.folder / "profile.json"
        wide = ["--model", "mlp", "--input", "16x1x8x8", "--width", "256", "--layers", "6"]
        losses = set()
        for mode in (["--mode", "chain"], ["--consume-gradients", "--budget", "90%",
                          "--time-limit", "1s", "--save", plan, "--save-profile", profile]):
            report = json.loads(self.train(*wide, "--optimizer", "adam", "--steps", "4", "--json",
                                           *mode).stdout)
            self.assertTrue(report["gradients_equal"])
            self.assertTrue(report["peaks_equal"])
            losses.add(report["last_loss"])
        self.assertEqual(len(losses), 1, losses)
        self.assertLess(report["measured_peak_bytes"], report["plain_peak_bytes"])
        self.run_program("check", profile, plan, expect=DONE)
        text = self.run_program("explain", profile, plan, expect=DONE).stdout
        self.assertIn("gradients-consumed", text)
        refused = self.train("--model", "mlp", "--mode", "chain", "--consume-gradients", expect=BAD_INPUT)
        self.assertIn("--mode graph", refused.stderr)

    def test_same_training_inside_any_budget(self):
        losses = set()
        for budget in ("100%", "85%", "75%"):
            report = json.loads(self.train(*GPT, "--budget", budget, "--steps", "4", "--no-check",
                                           "--optimizer", "adam", "--json").stdout)
            losses.add(report["last_loss"])
        self.assertEqual(len(losses), 1, losses)

    def test_saved_files_check(self):
        plan, profile = self.folder / "plan.json", self.folder / "profile.json"
        page, log = self.folder / "page.html", self.folder / "log.json"
        for mode in ("chain", "graph"):
            self.train(*GPT, "--mode", mode, "--budget", "80%", "--steps", "4", "--save", plan,
                       "--report", page, "--save-profile", profile, "--save-log", log)
            self.run_program("check", profile, plan, expect=DONE)
            self.run_program("explain", profile, plan, expect=DONE)
            self.assertIn("Planned and measured", page.read_text())
            self.run_program("report", profile, plan, "--runlog", log, "-o", page, "--quiet",
                             expect=DONE)
            runs = json.loads(log.read_text())["actions"]
            self.assertGreater(len(runs), 10)
            for run in runs:
                self.assertEqual(run["planned_bytes"], run["measured_bytes"], run)

    def test_a_step_in_parts(self):
        report = json.loads(self.train(*GPT, "--mode", "graph", "--budget", "60%", "--steps", "2",
                                       "--micro-batches", "2", "--json").stdout)
        self.assertEqual(report["micro_batches"], 2)
        self.assertTrue(report["gradients_equal"])
        self.assertTrue(report["peaks_equal"])
        self.assertLessEqual(report["measured_peak_bytes"], report["budget_bytes"])
        table = self.train(*GPT, "--mode", "graph", "--budget", "60%", "--steps", "1",
                           "--micro-batches", "auto").stdout
        self.assertIn("bit by bit", table)
        for wrong, message in (("0", "from 1, or auto"), ("x", "from 1, or auto"),
                               ("1000", "has no 1000 parts")):
            refused = self.train(*GPT, "--mode", "graph", "--micro-batches", wrong,
                                 expect=BAD_INPUT)
            self.assertIn(message, refused.stderr)
        refused = self.train(*GPT, "--mode", "chain", "--micro-batches", "2", expect=BAD_INPUT)
        self.assertIn("--mode graph", refused.stderr)

    def test_only_the_tail_in_parts(self):
        tail = [*GPT, "--mode", "graph", "--budget", "60%", "--steps", "1", "--parts-from"]
        report = json.loads(self.train(*tail, "norm", "--micro-batches", "2", "--json").stdout)
        self.assertEqual(report["micro_batches"], 2)
        self.assertTrue(report["gradients_equal"])
        self.assertTrue(report["peaks_equal"])
        refused = self.train(*tail, "nothing", "--micro-batches", "2", expect=BAD_INPUT)
        self.assertIn("it has ", refused.stderr)
        refused = self.train(*tail, "norm", expect=BAD_INPUT)
        self.assertIn("--micro-batches auto", refused.stderr)

    def test_rounding_where_it_is_allowed(self):
        # The head of so few rows has no blocks with the bits of the whole.
        wide = ["--model", "gpt", "--input", "3x120", "--width", "16", "--layers", "1", "--heads", "2",
                "--vocabulary", "4096", "--mode", "graph", "--steps", "2"]
        refused = self.train(*wide, "--budget", "1000", expect=INFEASIBLE)
        smallest = int(re.search(r"(\d+) bytes \(", refused.stderr.split("smallest")[1]).group(1))
        budget = str(smallest * 9 // 10)
        self.train(*wide, "--budget", budget, expect=INFEASIBLE)
        allowed = [*wide, "--budget", budget, "--allow", "rounding"]
        report = json.loads(self.train(*allowed, "--json").stdout)
        self.assertFalse(report["gradients_equal"])
        self.assertLess(report["largest_difference"], 1e-4)
        self.assertLess(report["last_bit_difference"], 1e-4)
        self.assertTrue(report["peaks_equal"])
        self.assertLessEqual(report["measured_peak_bytes"], int(budget))
        self.assertIn("rounding is allowed", self.train(*allowed).stdout)
        self.train(*wide, "--allow", "anything", expect=BAD_INPUT)
        chain = self.train(*GPT, "--mode", "chain", "--allow", "rounding", expect=BAD_INPUT)
        self.assertIn("--mode graph", chain.stderr)

    def test_a_batch_of_nothing_is_refused(self):
        result = self.train("--model", "mlp", "--batch", "0", expect=BAD_INPUT)
        self.assertIn("--batch", result.stderr)

    def test_infeasible_names_the_smallest_budget(self):
        chain = [*GPT, "--mode", "chain", "--steps", "1"]
        result = self.train(*chain, "--budget", "1000", expect=INFEASIBLE)
        smallest = re.search(r"smallest feasible budget is (\d+) bytes", result.stderr).group(1)
        report = json.loads(self.train(*chain, "--budget", smallest, "--json").stdout)
        self.assertTrue(report["gradients_equal"])
        self.assertLessEqual(report["measured_peak_bytes"], int(smallest))

    def test_interrupt_ends_cleanly(self):
        process = subprocess.Popen(
            [PROGRAM, "train", *GPT, "--data", "synthetic", "--steps", "1000000", "--json",
             "--no-check"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for line in process.stderr:
            if "step" in line:
                break
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, DONE, err)
        report = json.loads(out)
        self.assertTrue(report["stopped"])
        self.assertGreater(report["steps"], 0)

    def state_after(self, name, *runs):
        """Runs the command with each list of options in turn. Returns the bytes of the last state."""
        folder = self.folder / name
        reports = [json.loads(self.train(*GPT, "--json", "--time-limit", "1s", "--state", folder, *options).stdout)
                   for options in runs]
        return (folder / "state.safetensors").read_bytes(), reports

    def test_a_saved_run_goes_on_with_the_same_bits(self):
        dropout = ["--dropout", "0.2", "--optimizer", "adam"]
        whole, _ = self.state_after("whole", [*dropout, "--mode", "graph", "--steps", "6"])
        for mode in ("graph", "chain"):
            halves, reports = self.state_after(
                mode, [*dropout, "--mode", "graph", "--steps", "2"],
                [*dropout, "--mode", mode, "--budget", "90%", "--steps", "6"])
            self.assertEqual([report["went_on_after"] for report in reports], [0, 2])
            self.assertEqual(tensors_of(halves), tensors_of(whole))
        online, _ = self.state_after("online", [*dropout, "--mode", "graph", "--steps", "2"], [
            *dropout, "--mode", "online", "--budget", "100 MiB", "--steps", "6"])
        self.assertEqual(tensors_of(online), tensors_of(whole))

    def test_states_are_saved_on_the_way_and_of_one_run(self):
        folder = self.folder / "state"
        arguments = [*GPT, "--state", folder, "--mode", "chain"]
        self.train(*arguments, "--steps", "2", "--save-every", "1")
        self.assertEqual([path.name for path in folder.iterdir()], ["state.safetensors"])
        for options, words in (
                (["--steps", "2"], "has done its 2 steps"),
                (["--steps", "3", "--seed", "2"], "--seed is 2, and was 1"),
                (["--steps", "3", "--optimizer", "adam"], "--optimizer is adam, and was sgd")):
            result = self.train(*arguments, *options, expect=BAD_INPUT)
            self.assertIn(words, result.stderr)
        state = folder / "state.safetensors"
        state.write_bytes(state.read_bytes()[:-1])
        self.assertIn("state.safetensors", self.train(*arguments, "--steps", "3", expect=BAD_INPUT).stderr)
        result = self.train(*GPT, "--save-every", "1", "--steps", "1", expect=BAD_INPUT)
        self.assertIn("--state", result.stderr)

    def test_bad_arguments(self):
        for arguments, words in (
                (["--model", "resnet19"], "resnet18"),
                (["--model", "mlp", "--input", "4x"], "shape"),
                (["--model", "vgg16_bn", "--input", "2x3x8x8"], "32"),
                (["--model", "mlp", "--budget", "lots"], "lots"),
                (["--model", "mlp", "--optimizer", "lion"], "adam"),
                (["--model", "mlp", "--mode", "tree"], "auto, chain, graph or online"),
                (["--model", "mlp", "--schedule", "steep"], "constant or linear"),
                (["--model", "mlp", "--learning-rate", "nan"], "a number above 0, not nan"),
                (["--model", "mlp", "--learning-rate", "-1"], "a number above 0, not -1"),
                (["--model", "mlp", "--learning-rate", "0"], "a number above 0, not 0"),
                (["--model", "mlp", "--steps", "0"], "--steps is a number from 1 on, not 0"),
                (["--model", "gpt", "--dropout", "-0.5"], "--dropout is a number from 0 on"),
                (["--model", "mlp", "--momentum", "inf"], "a number from 0 on, not inf"),
                (["--model", "mlp", "--optimizer", "adam", "--momentum", "0.9"], "for --optimizer sgd"),
                (["--model", "mlp", "--mode", "graph", "--planner", "chain"], "chain"),
                (["--model", "mlp", "--planner", "magic"], "periodic"),
                (["--model", "mlp", "--save", "/no/such/folder/plan.json"], "/no/such/folder"),
                (["--model", "mlp", "--steps", "-1"], "steps"),
                ([], "--model")):
            with self.subTest(arguments=arguments):
                result = self.train(*arguments, expect=BAD_INPUT)
                self.assertIn(words, result.stderr)
        result = self.run_program("train", "--model", "mlp", "--data", "/no/such/data",
                                  expect=BAD_INPUT)
        self.assertIn("/no/such/data", result.stderr)

    def test_killed_at_any_moment(self):
        """Files are the old or the new ones, and the next run removes what was left behind."""
        names = ("plan.json", "profile.json", "page.html")
        plan, profile, page = (self.folder / name for name in names)
        arguments = [*SMALL, *GPT, "--no-check", "--steps", "1", "--budget", "90%", "--save", plan,
                     "--save-profile", profile, "--report", page]
        self.run_program(*arguments, expect=DONE)
        start = time.monotonic()
        self.run_program(*arguments, expect=DONE)
        whole = time.monotonic() - start
        endings = {name: (self.folder / name).read_text().rstrip()[-2:] for name in names}
        random_moments = random.Random(7)
        for case in range(12):
            with self.subTest(case=case):
                process = subprocess.Popen([PROGRAM, *map(str, arguments)],
                                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                # Files are written at the end of a run, where most of the interesting moments are.
                time.sleep(whole * random_moments.uniform(0.6 if case % 3 else 0.0, 1.0))
                process.send_signal((signal.SIGKILL, signal.SIGTERM, signal.SIGINT)[case % 3])
                process.wait(timeout=60)
                for path in (plan, profile):
                    json.loads(path.read_text())
                for name in names:
                    self.assertEqual((self.folder / name).read_text().rstrip()[-2:], endings[name])
        self.run_program(*arguments, expect=DONE)
        self.run_program("check", profile, plan, expect=DONE)
        self.assertEqual(sorted(self.files()), sorted(names))


if __name__ == "__main__":
    unittest.main()
