#!/usr/bin/env python3
"""Builds and runs a small project that uses Reprise in every way that is offered, with each compiler.

  installed, static       cmake --install, find_package(Reprise)
  installed, shared       the same with BUILD_SHARED_LIBS
  moved                   the installed tree stands elsewhere, and where it was is nothing
  subdirectory            add_subdirectory(reprise)
  wheel                   built with each compiler, installed into an empty environment of Python

The core only. Not optimised: what is tested is that things are found, linked and run.
Usage: packaging_test.py [COMPILER...]   (default: g++ and, where there is one, clang++-19 or clang++)
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
CONSUMER = pathlib.Path(__file__).resolve().parent / "consumer"
CORE_ONLY = [f"-DREPRISE_BUILD_{part}=OFF" for part in
             ("RUNTIME", "PYTHON", "CLI", "TESTS", "BENCH", "EXAMPLES")]


def run(*words):
    words = [str(word) for word in words]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"failed: {' '.join(words)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done.stdout


def configure(source, build, compiler, *settings):
    run("cmake", "-S", source, "-B", build, "-G", "Ninja", f"-DCMAKE_CXX_COMPILER={compiler}",
        "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O0", *settings)


def build_and_run(name, compiler, build, *settings):
    configure(CONSUMER, build, compiler, *settings)
    run("cmake", "--build", build)
    output = run(build / "consumer")
    if not output.startswith("peak "):
        sys.exit(f"{name}: the program said {output!r}")
    print(f"packaging: {compiler}: {name}: built and run", flush=True)


def installed(folder, compiler, shared):
    kind = "shared" if shared else "static"
    build, prefix = folder / f"build-{kind}", folder / f"prefix-{kind}"
    configure(SOURCE, build, compiler, f"-DBUILD_SHARED_LIBS={'ON' if shared else 'OFF'}",
              f"-DCMAKE_INSTALL_PREFIX={prefix}", *CORE_ONLY)
    run("cmake", "--build", build)
    run("cmake", "--install", build)
    shutil.rmtree(build)
    build_and_run(f"installed, {kind}", compiler, folder / f"use-{kind}", f"-DCMAKE_PREFIX_PATH={prefix}")
    elsewhere = folder / "else where" / kind
    elsewhere.parent.mkdir(exist_ok=True)
    prefix.rename(elsewhere)
    text = "".join(path.read_text() for path in elsewhere.rglob("*.cmake"))
    for old in (prefix, SOURCE):
        if str(old) in text:
            sys.exit(f"the installed CMake files name {old}, where they may not be found")
    build_and_run(f"moved, {kind}", compiler, folder / f"use-moved-{kind}",
                  f"-DCMAKE_PREFIX_PATH={elsewhere}")


def wheel(folder, compiler):
    """Needs scikit-build-core and pybind11 beside this Python, as `make setup` puts them into .venv."""
    os.environ["CXX"] = compiler
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "--no-index",
        "--wheel-dir", folder, "-C", "cmake.define.REPRISE_BUILD_RUNTIME=OFF",
        "-C", f"build-dir={folder / 'build-wheel'}", "-C", "cmake.build-type=Debug",
        "-C", "cmake.define.CMAKE_CXX_FLAGS_DEBUG=-O0", SOURCE)
    (built,) = folder.glob("reprise-*.whl")
    environment = folder / "empty environment"
    run(sys.executable, "-m", "venv", environment)
    python = environment / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-index", built)
    # Python with -I takes nothing from the current folder or from the user's own packages.
    output = run(python, "-I", CONSUMER / "use_wheel.py")
    if not output.startswith("peak "):
        sys.exit(f"wheel: the program said {output!r}")
    print(f"packaging: {compiler}: wheel: built, installed alone and run", flush=True)


def main():
    compilers = sys.argv[1:]
    if not compilers:
        clang = next((name for name in ("clang++-19", "clang++") if shutil.which(name)), None)
        compilers = ["g++"] + ([clang] if clang else [])
        if not clang:
            print("packaging: there is no clang++ here, g++ only")
    if shutil.which("ccache"):
        os.environ.setdefault("CMAKE_CXX_COMPILER_LAUNCHER", "ccache")
    for compiler in compilers:
        with tempfile.TemporaryDirectory(prefix="reprise-packaging-") as name:
            folder = pathlib.Path(name)
            for shared in (False, True):
                installed(folder, compiler, shared)
            build_and_run("subdirectory", compiler, folder / "use-subdirectory",
                          f"-DREPRISE_SOURCE_DIR={SOURCE}")
            wheel(folder, compiler)
    print("packaging: all built and run")


if __name__ == "__main__":
    main()
