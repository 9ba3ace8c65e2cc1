"""The examples in the documentation are read by the program, and the commands in it run."""

import json
import re
import shlex
import subprocess
import unittest

from harness import BROKEN, CHAINS, DONE, INFEASIBLE, PROGRAM, SOURCE, ProgramTest


class DocumentationTest(ProgramTest):
    def test_format_examples(self):
        text = (SOURCE / "docs" / "formats.md").read_text(encoding="utf-8")
        examples = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
        seen = set()
        for example in examples:
            kind = json.loads(example)["format"]
            seen.add(kind)
            path = self.write("example.json", example)
            if kind in ("reprise.chain", "reprise.graph", "reprise.join", "reprise.profile"):
                self.run_program("plan", path, "--budget", "100%")
            elif kind == "reprise.runlog":  # of the first example, planned without a limit
                chain = self.write("chain.json", examples[0])
                plan = self.make_plan(chain)
                self.run_program("report", chain, plan, "--runlog", path)
            elif kind == "reprise.machine":
                self.run_program("plan", CHAINS / "uniform8.json", "--budget", "60%", "--machine", path)
            elif kind == "reprise.power":
                self.run_program("plan", CHAINS / "gpt_like.json", "--budget", "60%", "--power", path)
            elif kind == "reprise.pipeline":
                pipeline = path = self.write("pipeline.json", example)
                self.run_program("pipeline", path)
            elif kind == "reprise.pipeline_plan":  # an excerpt of a plan of the example before
                self.run_program("check", pipeline, path, expect=BROKEN)
            elif kind == "reprise.plan":  # an excerpt: read, and judged incomplete
                self.run_program("check", CHAINS / "uniform8.json", path, expect=BROKEN)
        self.assertEqual(len(seen), 11)

    def test_command_examples(self):
        """Runs commands in the order of the pages: later ones use files of earlier ones."""
        text = "".join((SOURCE / "docs" / name).read_text(encoding="utf-8")
                       for name in ("commands.md", "report.md", "pipelines.md"))
        commands = re.findall(r"(?m)^    (?:\$ )?reprise ((?:plan|pipeline|frontier|check|explain|report) data/.*)$",
                              text)
        self.assertGreaterEqual(len(commands), 5)
        (self.folder / "data").symlink_to(SOURCE / "data")
        for command in commands:
            words = shlex.split(command)
            if words[0] in ("plan", "pipeline", "frontier") and "--time-limit" not in words:
                words += ["--time-limit", "1s"]  # The pages show how, not what a long search finds.
            result = subprocess.run([PROGRAM, *words], cwd=self.folder, text=True,
                                    capture_output=True, check=False, timeout=120)
            infeasible = command.endswith("--budget 5")
            self.assertEqual(result.returncode, INFEASIBLE if infeasible else DONE, result.stderr)
            if infeasible:
                for line in result.stderr.splitlines():
                    self.assertIn("    " + line, text)


if __name__ == "__main__":
    unittest.main()
