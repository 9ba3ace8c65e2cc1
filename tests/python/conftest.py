"""Fixtures that the tests share. Without PyTorch the tests of the runtime are skipped."""

from __future__ import annotations

import gc
import os
import pathlib
import re
import subprocess
import sys
from typing import Any

import pytest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
WITHOUT_RUNTIME = ("test_core.py", "test_package.py")
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def run_snippets(document: str, names: dict[str, Any]) -> None:
    """Runs all snippets of a page. They share their names, as if one typed them one by one."""
    text = (SOURCE / document).read_text(encoding="utf-8")
    blocks = [(text[: m.start()].count("\n") + 2, m.group(1)) for m in BLOCK.finditer(text)]
    assert blocks
    for line, block in blocks:
        exec(compile("\n" * (line - 1) + block, document, "exec"), names)


def output_of_program(text: str, folder: pathlib.Path) -> str:
    """Runs a program in a process of its own, on one thread, and returns what it prints.

    Its first argument is the folder of the tests.
    """
    program = folder / "program.py"
    program.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(program), str(pathlib.Path(__file__).parent)],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module", autouse=True)
def nothing_of_the_files_before() -> None:
    """Files share a process. What one leaves behind would count in the budgets of the next."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.reset()
    gc.collect()


@pytest.fixture(scope="session", autouse=True)
def short_searches() -> None:
    """Where a test names no time limit, any plan within the budget will do."""
    import reprise
    from reprise._built_for import TORCH_VERSION

    if not TORCH_VERSION:
        return
    from reprise.integrations.steps import by_kind

    steps = [reprise.micro_batches, reprise.capture_clipped, reprise.train_step, by_kind]
    for function in [reprise.plan, reprise.CapturedStep.plan, *steps]:
        (function.__kwdefaults__ or {})["time_limit"] = 0.5


@pytest.fixture
def two_convolutions() -> dict[str, object]:
    """Returns a chain as a dict. Its second stage is twice as large as its first."""
    return {
        "format": "reprise.chain",
        "version": 1,
        "name": "two convolutions",
        "fixed_bytes": 65536,
        "input": {"bytes": 4096},
        "stages": [
            {
                "name": f"conv{i}",
                "output_bytes": 16384 * i,
                "forward": {"ns": 1000 * i},
                "options": [
                    {
                        "name": "keep",
                        "saved_bytes": 8192,
                        "forward": {"ns": 1000 * i},
                        "backward": {"ns": 2000 * i, "workspace_bytes": 4096},
                    }
                ],
            }
            for i in (1, 2)
        ],
    }


@pytest.fixture(autouse=True)
def runtime(request: pytest.FixtureRequest) -> None:
    """Skips a test if the package has no runtime. Bits are compared on one thread."""
    if request.path.name in WITHOUT_RUNTIME:
        return
    from reprise._built_for import TORCH_VERSION

    if not TORCH_VERSION:
        pytest.skip("reprise was built without its PyTorch runtime")
    import torch

    torch.set_num_threads(1)


@pytest.fixture
def alone() -> Any:
    """A process group of this process alone."""
    import reprise
    import torch.distributed as dist

    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    reprise.install_cpu_allocator()
    yield
    dist.destroy_process_group()
