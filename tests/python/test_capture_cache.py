"""`capture(..., cache=...)` keeps measured costs in a folder."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import reprise  # noqa: E402
from torch import nn  # noqa: E402


def program() -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))

    def step(x: Any) -> Any:
        loss = model(x).square().mean()
        loss.backward()
        return loss

    return step, torch.randn(8, 16)


def test_the_second_capture_finds_the_costs(tmp_path: Path) -> None:
    step, x = program()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = reprise.capture(step, x, cache=tmp_path)
        second = reprise.capture(step, x, cache=str(tmp_path))
    assert not first.found_in_cache
    assert second.found_in_cache
    assert first.graph.ops == second.graph.ops
    expected = step(x)
    assert torch.equal(second(x), expected)


def test_a_program_that_starts_again_finds_the_costs(tmp_path: Path) -> None:
    text = textwrap.dedent("""
        import sys
        sys.path.insert(0, sys.argv[2])
        import reprise
        from test_capture_cache import program
        step, x = program()
        print(reprise.capture(step, x, cache=sys.argv[1]).found_in_cache)
    """)
    tests = str(Path(__file__).parent)
    answers = [
        subprocess.run(
            [sys.executable, "-c", text, str(tmp_path), tests],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        for _ in range(2)
    ]
    assert answers == ["False", "True"]


def test_a_damaged_entry_is_ignored_with_one_warning(tmp_path: Path) -> None:
    step, x = program()
    reprise.capture(step, x, cache=tmp_path)
    (entry,) = tmp_path.iterdir()
    entry.write_bytes(entry.read_bytes()[:-100])
    with pytest.warns(RuntimeWarning, match="is not used, and will be replaced") as heard:
        again = reprise.capture(step, x, cache=tmp_path)
    assert len(heard) == 1
    assert not again.found_in_cache
    assert reprise.capture(step, x, cache=tmp_path).found_in_cache


def test_a_folder_that_is_a_file_is_a_warning(tmp_path: Path) -> None:
    step, x = program()
    path = tmp_path / "file"
    path.write_text("")
    with pytest.warns(RuntimeWarning, match="could not be kept"):
        captured = reprise.capture(step, x, cache=path)
    assert torch.equal(captured(x), step(x))
