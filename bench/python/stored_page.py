"""What benchmarks with a page in docs/benchmarks share: their arguments, and the page."""

from __future__ import annotations

import argparse
import ctypes
import pathlib
import sys
from collections.abc import Collection

import reprise
from run_info import measured

PROGRAM = "PYTHONPATH=build/release/python .venv/bin/python \\\n      {}"


def arguments(
    doc: str | None,
    names: Collection[str] = (),
    word: str = "network",
    *,
    repeats: int | None = None,
    small: bool = False,
) -> argparse.ArgumentParser:
    """Returns a parser of what most benchmarks take: the file of the page, and names to measure."""

    def known(name: str) -> str:
        if name not in names:
            raise argparse.ArgumentTypeError(
                f"there is no {word} {name!r}; there are {', '.join(names)}"
            )
        return name

    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("-o", "--output", help="the page goes to this file (Markdown), too")
    if names:
        every = f"of {', '.join(names)} (default: all)"
        parser.add_argument(f"{word}s", nargs="*", type=known, default=list(names), help=every)
    if repeats is not None:
        parser.add_argument("--repeats", type=int, default=repeats)
    if small:
        parser.add_argument("--small", action="store_true", help="small, to see that it works")
    return parser


def steady_memory() -> None:
    """Takes Reprise's allocator, and tells glibc to keep freed pages, so that steps fault none."""
    trim_threshold, mmap_threshold, largest = -1, -3, 2**31 - 1
    libc = ctypes.CDLL(None)
    libc.mallopt(mmap_threshold, largest)
    libc.mallopt(trim_threshold, largest)
    reprise.install_cpu_allocator()


class Page:
    """A page prints its lines, and writes them to a file if there is one.

    The file is written at each line, so that an interrupted run keeps what it has.

    Args:
        output: The file, or None.
        title: The title of the page.
        link: A sentence that links to the document which explains the page.
        program: How the program runs; `{}` stands for its name and its arguments.
        text: What the page says before the line of `measured()`.
    """

    def __init__(
        self,
        output: str | None,
        title: str,
        link: str = "",
        program: str = PROGRAM,
        text: str = "",
    ) -> None:
        self._file = pathlib.Path(output) if output else None
        self._lines: list[str] = []
        self(f"# {title}\n")
        self("A program writes this file, so do not edit it.")
        if link:
            self(link)
        self("This command writes the file again:\n")
        self(f"    OMP_NUM_THREADS=1 {program.format(' '.join(sys.argv))}\n")
        if text:
            self(f"{text}\n")
        self(f"- {measured()}")

    def __call__(self, line: str) -> None:
        """Adds a line, or several."""
        print(line, flush=True)
        self._lines.append(line)
        if self._file is not None:
            self._file.write_text("\n".join(self._lines) + "\n", encoding="utf-8")
