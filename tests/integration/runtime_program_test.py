"""Commands of reprise-runtime are handed over to it, beside the program or in PATH."""

import shutil
import subprocess
import unittest

from harness import BAD_INPUT, PROGRAM, ProgramTest

FAKE = """#!/bin/sh
echo "runtime:$#"
for argument in "$@"; do echo "[$argument]"; done
exit 7
"""


class RuntimeProgramTest(ProgramTest):
    def setUp(self):
        super().setUp()
        self.bin = self.folder / "bin"
        self.bin.mkdir()
        # A copy, so that a real reprise-runtime beside the original is not found.
        self.program = self.bin / "reprise"
        shutil.copy(PROGRAM, self.program)

    def install(self, folder):
        folder.mkdir(exist_ok=True)
        path = folder / "reprise-runtime"
        path.write_text(FAKE, encoding="utf-8")
        path.chmod(0o755)

    def run_copy(self, *arguments, expect, path="/usr/bin:/bin"):
        result = subprocess.run([self.program, *arguments], capture_output=True, text=True,
                                env={"PATH": path}, cwd=self.folder, check=False)
        self.assertEqual(result.returncode, expect, result.stderr)
        return result

    def test_missing(self):
        for command in ("train", "profile", "models", "alternatives"):
            for arguments in ([command], [command, "--help"]):
                result = self.run_copy(*arguments, expect=BAD_INPUT)
                self.assertIn("REPRISE_BUILD_RUNTIME", result.stderr)
        self.assertIn("not found", self.run_copy("doctor", expect=0).stdout)
        self.assertIn("reprise-runtime", self.run_copy("doctor", "--model", "mlp",
                                                       expect=BAD_INPUT).stderr)

    def test_arguments_are_handed_over_untouched(self):
        self.install(self.bin)
        arguments = ["train", "--help", "--budget", "60%", "", "a b", "--", "-x"]
        lines = self.run_copy(*arguments, expect=7).stdout.splitlines()
        self.assertEqual(lines, ["runtime:8", *(f"[{argument}]" for argument in arguments)])

    def test_found_in_path(self):
        self.install(self.folder / "elsewhere")
        path = f"/nowhere::{self.folder / 'elsewhere'}:/usr/bin:/bin"
        self.run_copy("models", expect=7, path=path)

    def test_not_taken_from_the_current_folder(self):
        self.install(self.folder)
        self.run_copy("models", expect=BAD_INPUT, path=":/usr/bin:/bin:")

    def test_doctor_passes_its_output_through(self):
        self.install(self.bin)
        result = self.run_copy("doctor", expect=7)
        self.assertIn("compiler", result.stdout)
        self.assertIn("runtime:1\n[doctor]", result.stdout)
        words = self.run_copy("doctor", "--input", "2x8", "--model", "gpt", expect=7).stdout
        for word in ("[--model]", "[gpt]", "[--input]", "[2x8]"):
            self.assertIn(word, words)

    def test_core_commands_do_not_need_it(self):
        self.install(self.bin)
        self.run_copy("planners", expect=0)


if __name__ == "__main__":
    unittest.main()
