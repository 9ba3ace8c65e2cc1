#!/usr/bin/env python3
"""Builds a folder that CMake has configured for Ninja, and shows how far the build is and what time is left.

Ninja itself says something only when a part is ready, and the first part may take half a minute. This script prints
a line when a part is ready, and every ten seconds. The time that is left follows from the bytes of the sources: a part
costs its headers, which count as a constant, and its own lines. Whatever else the build prints, such as errors,
passes as it is. The exit status is the build's.

Usage: build_progress.py FOLDER [JOBS] | --self-test
"""

import json
import os
import pathlib
import queue
import re
import subprocess
import sys
import threading
import time

HEADERS = 60_000      # the headers of a part cost as much time as so many bytes of source
BYTES_PER_SECOND = 25_000  # of two cores, until the first parts are ready
EVERY = 10            # seconds between two lines
STATUS = "@ "         # marks Ninja's own lines


def weight(source):
    """Returns the bytes that a file of a build stands for, with those that a file of CMake's unity builds includes."""
    text = source.read_text(errors="replace") if source.is_file() else ""
    included = re.findall(r'^#include "(/[^"]+\.cc)"', text, re.M)
    return HEADERS + sum(os.path.getsize(name) for name in included if os.path.isfile(name)) + len(text)


def weights(folder):
    """Returns the weight of each object file of a build, by its path in the folder."""
    result = {}
    for entry in json.loads((folder / "compile_commands.json").read_text()):
        output = entry.get("output") or re.search(r" -o (\S+)", entry["command"])[1]
        result[os.path.relpath(os.path.join(entry["directory"], output), folder)] = weight(pathlib.Path(entry["file"]))
    return result


def part(name):
    """Returns what a reader may call an object file or a library."""
    name = re.sub(r"_*cxx\.cxx\.o$", "", re.sub(r".*/unity_", "", name))
    if "cmake_pch" in name:
        return "headers of LibTorch"
    return re.sub(r"[_\W]+", " ", re.sub(r"\.(cc\.o|a)$", "", name.split("/")[-1])).strip()


def time_left(done, rest, seconds):
    """Returns the seconds that `rest` bytes take, if `done` bytes took `seconds`. Half a minute of the guess counts."""
    guessed = 30 * BYTES_PER_SECOND
    return rest * (seconds + 30) / (done + guessed)


def line(done, rest, seconds, what):
    percent = 100 * done // max(done + rest, 1)
    return f"  {percent:3d} %, {seconds:4.0f} s, about {time_left(done, rest, seconds):3.0f} s left: {what}"


def build(folder, jobs):
    # Ninja's own dry run says nothing here, because CMake first looks for new sources.
    open_parts = {name: bytes_of for name, bytes_of in weights(folder).items() if not (folder / name).exists()}
    done, start, waiting = 0, time.monotonic(), queue.Queue()
    environment = dict(os.environ, NINJA_STATUS=STATUS)
    process = subprocess.Popen(["cmake", "--build", str(folder), *(["-j", jobs] if jobs else [])], env=environment,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")

    def read():
        for text in process.stdout:
            waiting.put(text.rstrip("\n"))
        waiting.put(None)

    threading.Thread(target=read, daemon=True).start()
    if open_parts:
        print(line(0, sum(open_parts.values()), 0, f"{len(open_parts)} parts to compile"), flush=True)
    while True:
        try:
            text = waiting.get(timeout=EVERY)
        except queue.Empty:
            print(line(done, sum(open_parts.values()), time.monotonic() - start, "compiling"), flush=True)
            continue
        if text is None:
            return process.wait()
        if not text.startswith(STATUS):
            print(text, flush=True)
        elif " object " in text:
            name = text.split()[-1]
            done += open_parts.pop(name, 0)
            print(line(done, sum(open_parts.values()), time.monotonic() - start, part(name)), flush=True)


def self_test():
    assert part("CMakeFiles/reprise.dir/Unity/unity__src_plan_graph__cxx.cxx.o") == "src plan graph"
    assert part("src/runtime/CMakeFiles/r.dir/cmake_pch.hxx.gch") == "headers of LibTorch"
    assert part("src/CMakeFiles/r.dir/norm/channel_norm.cc.o") == "channel norm"
    assert time_left(0, 30 * BYTES_PER_SECOND, 0) == 30            # nothing is known: the guess
    assert 300 < time_left(10**9, 10**9, 300) < 331                # much is known: the measured pace
    assert line(50, 50, 0, "x").startswith("   50 %")
    print("build_progress.py: self-test passed")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    return build(pathlib.Path(sys.argv[1]).resolve(), sys.argv[2] if len(sys.argv) > 2 else "")


if __name__ == "__main__":
    sys.exit(main())
