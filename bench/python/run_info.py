"""Says of a run of a benchmark when, where and with which versions it was made."""

from __future__ import annotations

import datetime
import platform
import subprocess
import sys
from collections.abc import Mapping

LIBRARIES = {"torch": "PyTorch", "scipy": "SciPy", "reprise": "Reprise"}


def _output_of(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _commit() -> str:
    commit = _output_of("git", "rev-parse", "--short=10", "HEAD")
    # Documents are not measured, and the benchmark before this one may have just written a page.
    changes = _output_of("git", "status", "--porcelain", "-uno", ":/", ":(top,exclude)docs")
    return (commit or "unknown") + (" and changes" if changes else "")


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(": ")[2].strip()
    except OSError:
        pass
    return platform.machine()


def measured(threads: int | None = None, versions: Mapping[str, str] | None = None) -> str:
    """Returns the line of a stored table that `scripts/stored_tables.py` reads.

    It is the line of `measured()` in bench/common/run_info.cc. Without arguments it has PyTorch's
    threads and the versions of the libraries that the program has imported.
    """
    if threads is None:
        torch = sys.modules.get("torch")
        threads = torch.get_num_threads() if torch else 1
    if versions is None:
        versions = {
            name: sys.modules[library].__version__
            for library, name in LIBRARIES.items()
            if library in sys.modules
        }
    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        f"Measured on {now:%Y-%m-%d %H:%M} UTC with commit {_commit()}: {_processor()}, "
        f"{threads} thread{'' if threads == 1 else 's'}, "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
    )
