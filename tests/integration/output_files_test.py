"""Outputs that cannot be written: exit code 2, the path is named, and old files stay."""

import os
import resource
import signal
import subprocess
import unittest

from harness import BAD_INPUT, CHAINS, PROGRAM, ProgramTest

CHAIN = CHAINS / "uniform8.json"


class OutputFilesTest(ProgramTest):
    def commands(self, path):
        yield ["plan", CHAIN, "--budget", "80%", "-o", path]
        yield ["plan", CHAIN, "--budget", "80%", "-o", "/dev/null", "--report", path]
        yield ["frontier", CHAIN, "-o", path]
        yield ["frontier", CHAIN, "--svg", path]

    def refused(self, path):
        before = self.files()
        for arguments in self.commands(path):
            result = self.run_program(*arguments, expect=BAD_INPUT)
            self.assertIn(str(path), result.stderr)
            self.assertEqual(result.stdout, "")
        self.assertEqual(self.files(), before)

    def test_missing_folder(self):
        self.refused(self.folder / "missing" / "out.json")

    def test_a_folder(self):
        (self.folder / "here").mkdir()
        self.refused(self.folder / "here")

    def test_a_file_as_folder(self):
        self.refused(self.write("file", "old") / "out.json")

    def test_a_loop_of_links(self):
        os.symlink("loop", self.folder / "loop")
        self.refused(self.folder / "loop")

    def test_a_name_that_is_too_long(self):
        self.refused(self.folder / ("n" * 300))

    def test_full_device(self):
        for arguments in self.commands("/dev/full"):
            result = self.run_program(*arguments, expect=BAD_INPUT)
            self.assertIn("/dev/full", result.stderr)

    def test_a_limit_on_the_size_of_files(self):
        path = self.folder / "plan.json"
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY))
        result = self.run_program("plan", CHAIN, "--budget", "80%", "-o", path, expect=BAD_INPUT,
                                  preexec_fn=limit)
        self.assertIn("plan.json", result.stderr)
        self.assertEqual(self.files(), {})

    @unittest.skipIf(os.geteuid() == 0, "root may write everything")
    def test_no_permission(self):
        locked = self.folder / "locked"
        locked.mkdir()
        locked.chmod(0o555)
        self.refused(locked / "out.json")
        read_only = self.write("read_only.json", "old")
        read_only.chmod(0o444)
        self.refused(read_only)

    def test_a_file_that_another_argument_names(self):
        problem = self.write("chain.json", CHAIN.read_text())
        os.symlink("chain.json", self.folder / "link.json")
        plan = self.folder / "plan.json"
        self.run_program("plan", problem, "--budget", "80%", "-o", plan)
        one = self.folder / "one"
        before = self.files()
        for arguments, names in (
                (["plan", problem, "--budget", "80%", "-o", problem], "PROBLEM and --output"),
                (["plan", problem, "--budget", "80%", "-o", self.folder / "link.json"],
                 "PROBLEM and --output"),
                (["plan", problem, "--budget", "80%", "-o", one, "--report", one],
                 "--output and --report"),
                (["frontier", problem, "-o", one, "--svg", one], "--output and --svg"),
                (["report", problem, plan, "-o", plan], "PLAN and --output"),
                (["report", problem, plan, "-o", one, "--trace", one], "--output and --trace")):
            result = self.run_program(*arguments, expect=BAD_INPUT)
            self.assertIn(f"{names} are the same file", result.stderr)
            self.assertEqual(self.files(), before)

    def test_a_pipe_without_a_reader_can_be_interrupted(self):
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        with subprocess.Popen([PROGRAM, "plan", CHAIN, "--budget", "80%", "-o", pipe],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                with self.assertRaises(subprocess.TimeoutExpired):
                    process.wait(1)  # It waits for a reader.
                process.send_signal(signal.SIGINT)
                self.assertEqual(process.wait(20), -signal.SIGINT)
            finally:
                process.kill()

    def test_devices_stay_devices(self):
        for arguments in self.commands("/dev/null"):
            self.run_program(*arguments)
        self.assertFalse(os.path.isfile("/dev/null"))

    def test_links_stay_links(self):
        os.symlink("target.json", self.folder / "link.json")
        self.run_program("plan", CHAIN, "--budget", "80%", "-o", self.folder / "link.json")
        self.assertTrue((self.folder / "link.json").is_symlink())
        self.assertTrue((self.folder / "target.json").is_file())

    def test_permissions_follow_the_umask(self):
        path = self.folder / "plan.json"
        old = os.umask(0o027)
        try:
            self.run_program("plan", CHAIN, "--budget", "80%", "-o", path)
        finally:
            os.umask(old)
        self.assertEqual(path.stat().st_mode & 0o777, 0o640)


if __name__ == "__main__":
    unittest.main()
