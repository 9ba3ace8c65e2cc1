"""Runs the commands that plan for energy, on good and on bad files."""

import json
import subprocess
import time
import unittest

from harness import BAD_INPUT, CHAINS, DONE, INFEASIBLE, PROGRAM, ProgramTest


class EnergyTest(ProgramTest):
    PROBLEM = CHAINS / "gpt_like.json"
    POWER = CHAINS.parent / "power" / "gpt_like.json"

    def plan(self, *arguments):
        result = self.run_program("plan", self.PROBLEM, "--budget", "65%", "--allow", "rounding",
                                  "--power", self.POWER, "-o", self.folder / "plan.json", "--json",
                                  "--quiet", *arguments)
        self.assertEqual(result.stderr, "")
        return json.loads(result.stdout)

    def test_the_objective_is_energy(self):
        fastest, frugal = self.plan(), self.plan("--objective", "energy")
        self.assertLess(frugal["energy"]["plan"]["total_pj"], fastest["energy"]["plan"]["total_pj"])
        self.assertGreater(frugal["time_ns"], fastest["time_ns"])
        self.assertEqual(frugal["energy"]["fastest"]["time_ns"], fastest["time_ns"])
        self.assertEqual(frugal["energy"]["lower_bound_pj"], frugal["energy"]["plan"]["total_pj"])
        self.assertIn("valid", self.run_program("check", self.PROBLEM, self.folder / "plan.json").stdout)
        text = self.run_program("explain", self.PROBLEM, self.folder / "plan.json",
                                "--power", self.POWER).stdout
        self.assertRegex(text, r"energy of a step +47\.9 J")
        shown = self.run_program("explain", self.PROBLEM, self.folder / "plan.json",
                                 "--power", self.POWER, "--json").stdout
        self.assertEqual(json.loads(shown)["energy"]["plan"], frugal["energy"]["plan"])
        said = self.run_program("plan", self.PROBLEM, "--budget", "65%", "--objective", "energy",
                                "--power", "static=20W,dynamic=45W", "-o", self.folder / "plan.json")
        self.assertRegex(said.stdout, r"lower bound +\S+ J +reached")
        self.assertRegex(said.stderr, r"reprise: energy \S+ J \(\+")

    def test_time_and_energy_within_a_budget(self):
        arguments = ["frontier", self.PROBLEM, "--budget", "65%", "--allow", "rounding", "--power",
                     self.POWER]
        points = json.loads(self.run_program(*arguments, "--json").stdout)["points"]
        times = [point["energy"]["time_ns"] for point in points]
        energies = [point["energy"]["total_pj"] for point in points]
        self.assertGreater(len(points), 2)
        self.assertEqual(times, sorted(times))
        self.assertEqual(energies, sorted(energies, reverse=True))
        self.assertIn("plain training", self.run_program(*arguments).stdout)
        self.run_program("frontier", self.PROBLEM, "--budget", "5%", "--power", self.POWER,
                         expect=INFEASIBLE)

    def test_mistakes(self):
        strange = self.write("power.json", {"format": "reprise.power", "version": 1, "static_mw": 1,
                                            "dynamic_mw": 1, "ops": [{"op": "F99", "dynamic_mw": 1}]})
        for arguments in (["--objective", "energy"], ["--power", "static=20"], ["--objective", "fun"],
                          ["--power", strange], ["--power", "nowhere.json"],
                          ["--power", f"rapl:{self.folder}"]):
            result = self.run_program("plan", self.PROBLEM, "--budget", "65%", *arguments,
                                      expect=BAD_INPUT)
            self.assertEqual(result.stdout, "", arguments)
        for arguments in (["--power", self.POWER], ["--budget", "65%"]):  # each needs the other
            self.run_program("frontier", self.PROBLEM, *arguments, expect=BAD_INPUT)

    def test_power_by_the_counters_of_processors(self):
        """The counters of two packages run at 3 W and at 2 W; that of a part does not count."""
        files = []
        for name, watts in (("intel-rapl:0", 3), ("intel-rapl:1", 2), ("intel-rapl:0:0", 50)):
            (self.folder / name).mkdir()
            files.append((self.folder / name / "energy_uj", watts))
        (self.folder / "intel-rapl:0" / "max_energy_range_uj").write_text("262143328850")

        def tick():
            for file, watts in files:
                beside = file.with_name("next")
                beside.write_text(str(int((time.monotonic() - begin) * watts * 1e6)))
                beside.rename(file)

        begin = time.monotonic()
        tick()
        still = self.run_program("plan", self.PROBLEM, "--budget", "65%", "--power",
                                 f"rapl:{self.folder}", expect=BAD_INPUT)
        self.assertIn("stand still", still.stderr)
        arguments = ["plan", self.PROBLEM, "--budget", "65%", "--power", f"rapl:{self.folder}",
                     "-o", self.folder / "plan.json", "--json"]
        for _ in range(5):  # On a busy machine this process may not get to move the counters.
            with subprocess.Popen([PROGRAM, *map(str, arguments)], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True) as process:
                while process.poll() is None:
                    tick()
                    time.sleep(0.002)
                text, said = process.stdout.read(), process.stderr.read()
            if process.returncode == DONE:
                break
        self.assertRegex(said, r"(?m)^reprise: measured: static=[\d.]+W,dynamic=[\d.]+W$")
        energy = json.loads(text)["energy"]["plan"]
        watts = energy["background_pj"] / energy["time_ns"] / 1e3
        self.assertGreater(watts, 0)
        self.assertLess(watts, 50)  # 5 W; the part alone would have 50 W.


if __name__ == "__main__":
    unittest.main()
