#!/usr/bin/env python3
"""Tests the tests: breaks the sources one line at a time and asks whether a named test notices.

Each entry of mutants.json has a file, a line of it (or a part), the text in its place, and the test that must fail.
The mutant is compiled from a scratch copy and linked before the library. So each mutant compiles one file and links
one program, and the sources and the build stay as they are. The named tests must pass without the
mutant. A mutant that does not compile, or that no test kills, is a failure of this script.

A mutant of the runtime is compiled with the files that are one unit with it, which takes a minute or two. So these
mutants are a list of their own (--runtime), for a build of all.

Usage: run.py BUILD_DIR [--runtime] [--only TEXT] [--jobs N]
       run.py --match                  compiles nothing, and says which lines are no longer there
(BUILD_DIR: build/mutants, where each file is compiled by itself; build/release with --runtime)
"""

import argparse
import concurrent.futures
import json
import pathlib
import shlex
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
RUNTIME = "reprise_runtime_tests"
FAULTS = ("FileFaults", "AllocationFaults", "ThreadFaults")
LIMIT_SECONDS = 1200  # of one test; one that hangs is killed, and its mutant with it


def changed_text(mutant):
    """Returns the text of the mutant's file with the change. The line must be there once."""
    text = (ROOT / mutant["file"]).read_text()
    if text.count(mutant["old"]) != 1:
        raise ValueError(f"{mutant['old']!r} is {text.count(mutant['old'])} times in {mutant['file']}")
    return text.replace(mutant["old"], mutant["new"])


def match(mutants):
    """Returns a text for each mutant whose line is no longer there once."""
    faults = []
    for mutant in mutants:
        try:
            changed_text(mutant)
        except (OSError, ValueError) as error:
            faults.append(f"{mutant['says']}: {error}")
    return faults


def compile_commands(build):
    return {entry["file"]: entry for entry in json.loads((build / "compile_commands.json").read_text())}


def unit_of(compile, source):
    """Returns the file that is compiled for a source, and the text of the include in it where it is one of several."""
    if source in compile:
        return source, None
    include = f'#include "{source}"'
    for unit in compile:
        if unit.endswith("_cxx.cxx") and include in pathlib.Path(unit).read_text():
            return unit, include
    raise ValueError(f"{source} is not compiled")


def link_commands(build, program):
    """Returns the command with which Ninja would link the program."""
    lines = subprocess.run(["ninja", "-C", build, "-t", "commands", "-s", program], check=True,
                           capture_output=True, text=True).stdout.splitlines()
    return lines[-1]


class Builder:
    def __init__(self, build, programs):
        self.build = build
        self.compile = compile_commands(build)
        self.links = {program: link_commands(build, program) for program in programs}

    def make(self, mutant, folder, program):
        """Compiles the mutant and links it before its library. Returns the program."""
        source = ROOT / mutant["file"]
        changed = folder / source.name
        changed.write_text(changed_text(mutant))
        unit, include = unit_of(self.compile, str(source))
        words = shlex.split(self.compile[unit]["command"])
        if include:
            text = pathlib.Path(unit).read_text().replace(include, f'#include "{changed}"')
            changed = folder / "unit.cc"
            changed.write_text(text)
        flags = [word for word in words if word != "-Werror"]
        flags[flags.index("-o") + 1] = str(folder / "mutant.o")
        flags[flags.index("-c") + 1] = str(changed)
        # Nearly all the time of a compilation goes into optimising. Whether a test fails does not
        # depend on it.
        flags += ["-O0", "-w"]
        self.call(flags, "does not compile")
        link = shlex.split(self.links[program].replace(": && ", "").replace(" && :", ""))
        link[link.index("-o") + 1] = str(folder / program)
        name = "libreprise_runtime.a" if program == RUNTIME else "libreprise.a"
        library = next(k for k, word in enumerate(link) if word.endswith(name))
        link.insert(library, str(folder / "mutant.o"))
        self.call(link, "does not link")
        return folder / program

    def call(self, words, complaint):
        done = subprocess.run(words, cwd=self.build, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ValueError(f"{complaint}:\n{done.stderr[-2000:]}")


def passes(program, tests, folder):
    """Tells whether the tests ran and none failed."""
    try:
        done = subprocess.run([program, f"--gtest_filter={tests}", "--gtest_brief=1",
                               "--gtest_break_on_failure=0", "--gtest_fail_fast"],
                              cwd=folder, capture_output=True, text=True, errors="replace", check=False,
                              timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    if "[==========] 0 tests" in done.stdout:
        raise ValueError(f"no test is called {tests}")
    return done.returncode == 0


def program_of(mutant):
    if mutant["file"].startswith("src/runtime/"):
        return RUNTIME
    return "reprise_fault_tests" if mutant["killed_by"].startswith(FAULTS) else "reprise_core_tests"


def judge(builder, mutant):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        program = program_of(mutant)
        return "survived" if passes(builder.make(mutant, folder, program), mutant["killed_by"], folder) else "killed"


def report(number, mutant, verdict, seconds):
    print(f"{number:3} {verdict:9} {seconds:5.0f} s  {mutant['file']}: {mutant['says']}"
          f"\n                        {mutant['killed_by']}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path, nargs="?")
    parser.add_argument("--match", action="store_true", help="only look for the lines of the mutants")
    parser.add_argument("--runtime", action="store_true", help="the mutants of the runtime, and no others")
    parser.add_argument("--only", default="", help="mutants whose file or description has this text")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--skip-unchanged", action="store_true", help="do not first run the tests as they are")
    arguments = parser.parse_args()
    mutants = json.loads((ROOT / "tests/mutants/mutants.json").read_text())
    if arguments.match:
        faults = match(mutants)
        sys.exit("\n".join(faults) or None)
    if arguments.build is None:
        parser.error("say where the build is, or --match")
    build = arguments.build.resolve()
    mutants = [m for m in mutants if (program_of(m) == RUNTIME) == arguments.runtime]
    mutants = [m for m in mutants if arguments.only in m["file"] + m["says"] + m["killed_by"]]
    if not mutants:
        sys.exit("no such mutant")
    programs = sorted({program_of(m) for m in mutants})
    builder = Builder(build, programs)
    if not arguments.skip_unchanged:
        for program in programs:
            tests = ":".join(sorted({m["killed_by"] for m in mutants if program_of(m) == program}))
            if not passes(build / program, tests, build):
                sys.exit(f"{program} fails without any mutant: {tests}")

    survivors = 0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        def work(mutant):
            start = time.monotonic()
            try:
                return judge(builder, mutant), time.monotonic() - start
            except ValueError as error:
                return f"unusable: {error}", time.monotonic() - start

        for number, (mutant, (verdict, seconds)) in enumerate(zip(mutants, pool.map(work, mutants)), 1):
            report(number, mutant, verdict, seconds)
            survivors += verdict != "killed"
    print(f"mutants: {len(mutants)} mutants, {len(mutants) - survivors} killed")
    sys.exit(survivors != 0)


if __name__ == "__main__":
    main()
