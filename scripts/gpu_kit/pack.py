#!/usr/bin/env python3
"""Packs a folder that builds, tests and measures Reprise on a machine with a GPU and no network.

    pack.py build/gpu-kit [--with-cmake]

The folder has the sources, the libraries that their build needs (copied from this machine's packages),
and run.sh. On the other machine there must be a C++20 compiler, CMake, Python with its headers, and
PyTorch. --with-cmake adds CMake and Ninja from pip's index, for a machine that has none.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
HERE = Path(__file__).resolve().parent
LIMIT = 50 * 1024 * 1024  # bytes
MARK = "kit.json"  # A folder with this file is a kit, and packing replaces it.
KEPT = ("work", "results")  # what run.sh has made in the kit before

# The build, the suite and the benchmark need these parts of the project.
SOURCES = ("CMakeLists.txt", "LICENSE", "cmake", "include", "src", "python", "bench/python", "tests/device",
           "tests/cuda")
NOT_NEEDED = ("src/training",)
# Debian package, folder of headers, header that shows that it is there.
HEADERS = (("nlohmann-json3-dev", "nlohmann", "json.hpp"), ("libfmt-dev", "fmt", "format.h"),
           ("nettle-dev", "nettle", "sha2.h"))


def fail(message: str) -> None:
    sys.exit(f"gpu-kit: {message}")


def copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
        shutil.copytree(source, target, ignore=ignored, dirs_exist_ok=True)
    else:
        shutil.copy2(source, target)


def copy_sources(kit: Path) -> None:
    for name in SOURCES:
        copy(ROOT / name, kit / "source" / name)
    for name in NOT_NEEDED:
        shutil.rmtree(kit / "source" / name)


def copy_libraries(kit: Path) -> None:
    for package, folder, header in HEADERS:
        found = [Path(top) / folder for top in ("/usr/include", "/usr/local/include")]
        found = [path for path in found if (path / header).is_file()]
        if not found:
            fail(f"there is no {folder}/{header} in /usr/include or /usr/local/include. `make setup` "
                 f"installs it (Debian's package {package})")
        copy(found[0], kit / "deps" / "include" / folder)
        notice = Path("/usr/share/doc") / package / "copyright"
        if notice.is_file():
            copy(notice, kit / "deps" / "copyright" / package)
    archive = subprocess.run([os.environ.get("CXX", "g++"), "-print-file-name=libnettle.a"],
                             capture_output=True, text=True, check=True).stdout.strip()
    if not Path(archive).is_file():
        fail("there is no libnettle.a, which Debian's nettle-dev has; `make setup` installs it")
    copy(Path(archive), kit / "deps" / "lib" / "libnettle.a")
    copy(HERE / "cmake", kit / "deps" / "cmake")
    try:
        import pybind11
    except ImportError:
        fail(f"{sys.executable} has no pybind11; `make setup` installs it into .venv")
    package = Path(pybind11.__file__).parent
    copy(package / "include", kit / "deps" / "pybind11" / "include")
    copy(package / "share", kit / "deps" / "pybind11" / "share")


def download_cmake(kit: Path) -> None:
    """Puts CMake and Ninja into the kit, as wheels that run.sh unpacks where there is no CMake."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
               "--only-binary=:all:", "-d", str(kit / "deps" / "wheels"), "cmake", "ninja"]
    if subprocess.run(command).returncode:
        fail("pip could not download cmake and ninja (see above); pack without --with-cmake, and the "
             "other machine must have CMake 3.25 or newer")


def commit() -> str:
    """Returns the commit that is packed, marked if files differ from it, or "unknown"."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def size_of(folder: Path) -> tuple[int, int]:
    """Returns the number of files and their bytes."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return len(files), sum(path.stat().st_size for path in files)


def fill(kit: Path, with_cmake: bool) -> None:
    copy_sources(kit)
    copy_libraries(kit)
    if with_cmake:
        download_cmake(kit)
    copy(HERE / "run.sh", kit / "run.sh")
    version = re.search(r"VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"))
    about = {"reprise": version.group(1) if version else "unknown", "commit": commit(),
             "architecture": platform.machine()}
    (kit / MARK).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="the kit; a kit that is there is replaced")
    parser.add_argument("--with-cmake", action="store_true", help="add CMake and Ninja from pip's index")
    options = parser.parse_args()
    target = options.folder.resolve()
    if target.exists() and any(target.iterdir()) and not (target / MARK).is_file():
        fail(f"{target} is there and is no kit: it has no {MARK}. Remove it, or name another folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".gpu-kit-") as place:
        made = Path(place) / "kit"
        made.mkdir()
        fill(made, options.with_cmake)
        files, size = size_of(made)
        if size >= LIMIT:
            fail(f"the kit has {size:,} bytes, and it must have fewer than {LIMIT:,}. "
                 "The largest folders: "
                 + ", ".join(f"{path.name} {size_of(path)[1]:,}" for path in made.iterdir() if path.is_dir()))
        for name in KEPT:
            if (target / name).exists():
                (target / name).rename(made / name)
        shutil.rmtree(target, ignore_errors=True)
        made.rename(target)
    print(f"{options.folder}: {files} files, {size / 2**20:.1f} MiB. On the machine with the GPU: "
          f"{target.name}/run.sh --help")


if __name__ == "__main__":
    main()
