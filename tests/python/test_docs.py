"""The snippets of the documents run, in their order; so do the examples."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
from typing import Any

import pytest
from conftest import SOURCE

pytestmark = pytest.mark.usefixtures("runtime")

BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "document", ["README.md", "docs/python.md", "docs/faq.md", "docs/coming_from.md"]
)
def test_snippets(document: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a page share their names, as a reader would type them one after the other."""
    text = (SOURCE / document).read_text(encoding="utf-8")
    blocks = [(text[: m.start()].count("\n") + 2, m.group(1)) for m in BLOCK.finditer(text)]
    assert blocks
    chain = SOURCE / "data" / "instances" / "chains" / "resnet18_like.json"
    (tmp_path / "resnet18.json").write_text(chain.read_text())
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for line, block in blocks:
        exec(compile("\n" * (line - 1) + block, document, "exec"), names)


@pytest.mark.parametrize(
    "command",
    [
        ["plan_from_file.py"],
        ["ten_lines.py"],
        ["curve.py", "curve.svg"],
        ["gpt_on_text.py", "--steps", "2", "--width", "32", "--layers", "2", "--batch", "4"],
    ],
    ids=lambda command: command[0],
)
def test_examples(command: list[str], tmp_path: pathlib.Path) -> None:
    import reprise

    program = SOURCE / "examples" / "python" / command[0]
    done = subprocess.run(
        [sys.executable, program, *command[1:]],
        cwd=tmp_path,
        env={"PYTHONPATH": str(pathlib.Path(reprise.__file__).parents[1]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout
