"""reprise train on several processes, which find each other by the environment."""

import json
import os
import random
import socket
import struct
import subprocess
import unittest

from harness import BAD_INPUT, DONE, INFEASIBLE, PROGRAM, ProgramTest


class RanksTest(ProgramTest):
    """Two processes that find each other by the environment, as torchrun starts them."""

    def setUp(self):
        super().setUp()
        self.data = self.write("text.txt", "".join(random.Random(1).choices("abcdefgh \n", k=20_000)))

    def start(self, rank, port, *arguments, quiet=True):
        ranks = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                 "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        child = subprocess.Popen(
            [PROGRAM, *self.command(), *(["--quiet"] if quiet else []), *map(str, arguments)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **ranks})
        self.addCleanup(lambda: (child.kill(), child.communicate()))
        return child

    def command(self):
        return ["train", "--model", "gpt", "--data", str(self.data), "--test", "8", "--layers", "2",
                "--width", "32", "--heads", "2", "--dropout", "0", "--optimizer", "adam", "--json"]

    def train(self, *arguments, expect=DONE):
        """Returns what both ranks print: text and errors of each."""
        port = free_port()
        children = [self.start(rank, port, *arguments) for rank in range(2)]
        told = [child.communicate(timeout=100) for child in children]
        self.assertEqual([child.returncode for child in children], [expect, expect], told)
        return told

    def test_two_ranks_train_as_one_process_with_two_parts(self):
        alone = json.loads(self.run_program(
            *self.command(), "--input", "8x32", "--micro-batches", "2", "--steps", "4").stdout)
        for more in ((), ("--consume-gradients", "--shard-optimizer", "--budget", "90%",
                          "--time-limit", "2s")):
            (text, _), (nothing, _) = self.train("--input", "4x32", "--steps", "4", *more)
            self.assertEqual(nothing, "")
            report = json.loads(text)
            self.assertEqual(report["ranks"], 2)
            for name in ("first_loss", "last_loss"):
                loss = struct.unpack("f", struct.pack("f", report[name]))[0]
                self.assertEqual(loss, alone[name])
            self.assertEqual(report["accuracy"], alone["accuracy"])
            self.assertTrue(report["peaks_equal"])
            self.assertLessEqual(report["measured_peak_bytes"], report["budget_bytes"])

    def test_all_ranks_end_when_one_fails(self):
        told = self.train("--input", "4x32", "--steps", "4", "--budget", "400 KiB", expect=INFEASIBLE)
        for _, errors in told:
            self.assertIn("no plan fits", errors)
        port = free_port()
        first, second = (self.start(r, port, "--input", "4x32", "--steps", "100000", quiet=False)
                         for r in (0, 1))
        self.assertTrue(any("step 1/100000" in line for line in first.stderr))
        second.kill()
        _, errors = first.communicate(timeout=30)
        self.assertEqual(first.returncode, 1, errors)
        self.assertIn("another process has ended", errors)

    def test_refuses_what_ranks_cannot_do(self):
        for arguments, words in ((("--state", self.folder / "run"), "--state is for one process"),
                                 (("--shard-optimizer",), "needs --consume-gradients")):
            told = self.train("--input", "4x32", "--steps", "1", *arguments, expect=BAD_INPUT)
            self.assertIn(words, told[0][1])
        alone = self.run_program(*self.command(), "--steps", "1", "--shard-optimizer",
                                 expect=BAD_INPUT)
        self.assertIn("--shard-optimizer is for several processes", alone.stderr)
        child = self.start(0, "none", "--steps", "1")
        _, errors = child.communicate(timeout=30)
        self.assertEqual(child.returncode, BAD_INPUT)
        self.assertIn('MASTER_PORT in the environment is "none"', errors)


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


if __name__ == "__main__":
    unittest.main()
