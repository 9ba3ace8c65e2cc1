"""Runs the `reprise` program for the tests beside this file. Standard library only."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

PROGRAM = os.environ.get("REPRISE_PROGRAM", "build/release/reprise")
SOURCE = pathlib.Path(os.environ.get("REPRISE_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
CHAINS = SOURCE / "data" / "instances" / "chains"

DONE, BROKEN, BAD_INPUT, INFEASIBLE, OUT_OF_TIME, INTERNAL = 0, 1, 2, 3, 4, 70


class ProgramTest(unittest.TestCase):
    """A test has a folder of its own and the program at hand."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_program(self, *arguments, expect=DONE, **options):
        options.setdefault("timeout", 120)
        result = subprocess.run(
            [PROGRAM, *map(str, arguments)], capture_output=True, text=True, errors="replace",
            stdin=subprocess.DEVNULL, check=False, **options)
        self.assertEqual(
            result.returncode, expect,
            f"reprise {' '.join(map(str, arguments))}\n{result.stdout}\n{result.stderr}")
        return result

    def write(self, name, content):
        path = self.folder / name
        path.write_text(content if isinstance(content, str) else json.dumps(content),
                        encoding="utf-8")
        return path

    def make_plan(self, problem, budget="100%", name="plan.json"):
        path = self.folder / name
        self.run_program("plan", problem, "--budget", budget, "-o", path, "--quiet")
        return path

    def files(self):
        """Returns names and contents of everything in the folder, hidden files too."""
        return {path.name: path.read_bytes() for path in self.folder.iterdir() if path.is_file()}
