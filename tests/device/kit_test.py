#!/usr/bin/env python3
"""The kit for a machine with a GPU: what is in it, how large it is, and what its script says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PACK = ROOT / "scripts" / "gpu_kit" / "pack.py"
LIMIT = 50 * 1024 * 1024

# Each is there for a reason: sources, what find_package() asks for, the suite, the benchmark.
FILES = (
    "run.sh",
    "kit.json",
    "source/CMakeLists.txt",
    "source/cmake/RepriseTorch.cmake",
    "source/src/runtime/CMakeLists.txt",
    "source/include/reprise/runtime.h",
    "source/python/src/core_module.cc",
    "source/tests/device/suite.py",
    "source/tests/cuda/cuda_check.cc",
    "source/bench/python/gpu.py",
    "source/bench/python/gpu_case.py",
    "deps/include/nlohmann/json.hpp",
    "deps/include/fmt/format.h",
    "deps/include/nettle/sha2.h",
    "deps/lib/libnettle.a",
    "deps/pybind11/share/cmake/pybind11/pybind11Config.cmake",
    "deps/cmake/Findfmt.cmake",
    "deps/cmake/Findnlohmann_json.cmake",
    "deps/cmake/FindPkgConfig.cmake",
)


def pack(target: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-B", str(PACK), str(target)], capture_output=True, text=True
    )


class Kit(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.place = tempfile.TemporaryDirectory()
        cls.kit = Path(cls.place.name) / "kit"
        done = pack(cls.kit)
        if done.returncode:
            raise AssertionError(done.stderr)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.place.cleanup()

    def run_script(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", str(self.kit / "run.sh"), *arguments],
            capture_output=True,
            text=True,
            env=os.environ | environment,
        )

    def test_the_files_are_there(self) -> None:
        for name in FILES:
            self.assertTrue((self.kit / name).is_file(), name)
        self.assertFalse(list(self.kit.rglob("__pycache__")))
        self.assertFalse((self.kit / "source/src/training").exists())
        self.assertIn("architecture", json.loads((self.kit / "kit.json").read_text()))

    def test_it_is_small(self) -> None:
        size = sum(path.stat().st_size for path in self.kit.rglob("*") if path.is_file())
        self.assertLess(size, LIMIT)

    def test_the_sources_build_files_name_are_packed(self) -> None:
        """CMake configures what the kit builds, as far as it needs no PyTorch."""
        if shutil.which("cmake") is None:
            self.skipTest("there is no cmake")
        build = self.kit.parent / "build"
        done = subprocess.run(
            ["cmake", "-S", str(self.kit / "source"), "-B", str(build)]
            + [f"-DCMAKE_MODULE_PATH={self.kit / 'deps/cmake'}"]
            + [f"-Dpybind11_DIR={self.kit / 'deps/pybind11/share/cmake/pybind11'}"]
            + [f"-DPython_EXECUTABLE={sys.executable}", "-DREPRISE_BUILD_RUNTIME=OFF"]
            + [f"-DREPRISE_BUILD_{part}=OFF" for part in ("CLI", "TESTS", "BENCH", "EXAMPLES")]
            + ["-DREPRISE_BUILD_PYTHON=ON"],
            capture_output=True,
            text=True,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        cache = (build / "CMakeCache.txt").read_text(encoding="utf-8")
        for name in ("fmt_DIR", "nlohmann_json_DIR", "PKG_CONFIG_EXECUTABLE"):
            self.assertNotIn(f"{name}:", cache, "the kit's own libraries are not used")

    def test_the_script_explains_itself(self) -> None:
        done = self.run_script("--help")
        self.assertEqual(done.returncode, 0, done.stderr)
        for word in ("--device", "--quick", "--minutes", "--only", "PYTHON"):
            self.assertIn(word, done.stdout)

    def test_mistakes_are_named(self) -> None:
        for arguments, said in (
            (("--fast",), "there is no option --fast"),
            (("--device",), "--device needs a value"),
            (("--only", "tests"), "--only takes build, suite or bench"),
        ):
            done = self.run_script(*arguments)
            self.assertEqual(done.returncode, 1)
            self.assertIn(said, done.stderr)

    def test_a_python_without_pytorch_is_named(self) -> None:
        done = self.run_script("--device", "cpu", PYTHON="no-such-python")
        self.assertEqual(done.returncode, 1)
        self.assertIn("there is no no-such-python", done.stderr)

    def test_packing_again_keeps_results_and_nothing_else(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            kit = Path(place) / "kit"
            (kit / "results").mkdir(parents=True)
            (kit / "kit.json").write_text("{}")
            (kit / "old.txt").write_text("")
            (kit / "results" / "gpu.json").write_text("{}")
            done = pack(kit)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertTrue((kit / "results" / "gpu.json").is_file())
            self.assertFalse((kit / "old.txt").exists())

    def test_another_folder_is_not_replaced(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            (Path(place) / "mine.txt").write_text("")
            done = pack(Path(place))
            self.assertEqual(done.returncode, 1)
            self.assertIn("is no kit", done.stderr)
            self.assertTrue((Path(place) / "mine.txt").is_file())


if __name__ == "__main__":
    unittest.main()
