"""The snippets of the documents run in their order, and the examples run."""

from __future__ import annotations

import ast
import gc
import importlib.util
import json
import pathlib
import random
import subprocess
import sys
from typing import Any

import pytest
from conftest import SOURCE, run_snippets


@pytest.mark.parametrize(
    "document",
    [
        "README.md",
        "docs/python.md",
        "docs/faq.md",
        "docs/saved_state.md",
        "docs/coming_from.md",
        "docs/torch_compile.md",
        "docs/fit.md",
        "docs/layers.md",
        "docs/joins.md",
        "docs/integrations/index.md",
    ],
)
def test_snippets(document: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All snippets of a page share their names: a reader types them one after the other."""
    (tmp_path / "data").symlink_to(SOURCE / "data")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    run_snippets(document, names)
    names.clear()
    gc.collect()  # the memory of this page's steps would count in the budgets of the next page


@pytest.mark.parametrize(
    "command",
    [
        ["plan_from_file.py"],
        ["ten_lines.py"],
        ["curve.py", "curve.svg"],
        ["tree_lstm.py", "--steps", "4", "--width", "16", "--batch", "128"],
        ["saved_state.py", "state", "--steps", "2"],
        ["data_parallel.py", "--steps", "2", "--compare"],
        ["pipeline.py", "--steps", "2", "--compare"],
        ["reversible.py", "--depth", "4", "--batch", "2", "--steps", "2"],
        ["corner_matrices.py", "--moves", "20", "--bond", "8", "--couplings", "0.5"],
        ["siamese.py", "--pairs", "4", "--steps", "2"],
        ["gpt_on_text.py", "--steps", "2", "--width", "32", "--layers", "2", "--batch", "4"],
    ],
    ids=lambda command: command[0],
)
def test_examples(command: list[str], tmp_path: pathlib.Path) -> None:
    assert output_of(SOURCE / "examples" / "python" / command[0], command[1:], tmp_path)


def test_one_changed_line_leaves_the_losses(tmp_path: pathlib.Path) -> None:
    program = SOURCE / "examples" / "python" / "nanogpt_like.py"
    (tmp_path / "text").write_text("a text that is learnt, letter by letter; " * 40)
    common = ["--text", "text", "--steps", "2", "--budget"]
    plain = output_of(program, [*common, "none"], tmp_path).splitlines()
    inside = output_of(program, [*common, "70%"], tmp_path).splitlines()
    assert len(plain) == 2 and all("validation" in line for line in plain)
    assert inside[:2] == plain and inside[2].startswith("step 4: measured peak")


def test_an_example_says_which_library_is_missing(tmp_path: pathlib.Path) -> None:
    if importlib.util.find_spec("peft") is not None:
        pytest.skip("peft is installed; test_transformers.py runs the example")
    program = SOURCE / "examples" / "python" / "lora_transformers.py"
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "is not installed: pip install" in done.stderr


def test_the_notebook(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """Its cells run from top to bottom, and what they show has a form for a notebook."""
    monkeypatch.chdir(tmp_path)
    file = SOURCE / "examples" / "python" / "budget.ipynb"
    notebook = json.loads(file.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    names: dict[str, Any] = {}
    shown = []
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] != "code":
            continue
        assert cell["outputs"] == [] and cell["execution_count"] is None  # It is kept empty.
        body = ast.parse("".join(cell["source"]), f"{file.name}, cell {number}").body
        last = body.pop() if isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), f"{file.name}, cell {number}", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), file.name, "eval"), names)
            shown.append(value if isinstance(value, str) else value._repr_html_())
    assert len(shown) == 6 and all(shown)
    names.clear()
    gc.collect()


def test_side_by_side(tmp_path: pathlib.Path) -> None:
    """The comparison with PyTorch's own tools runs, and nobody's gradients differ."""
    program = SOURCE / "bench" / "python" / "side_by_side.py"
    tables = output_of(program, ["resnet18", "--small", "--repeats", "1", "-o", "t.md"], tmp_path)
    assert tables == (tmp_path / "t.md").read_text()
    assert "Reprise**, graph mode" in tables
    assert "differ" not in tables.split("##")[1]


def test_checkmate_lp(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding gives plans within the budget, never faster than the program that is rounded."""
    pytest.importorskip("scipy")
    # Costly operations and cheap ones alternate, and no two are alike. So the program has one
    # solution on every machine, and its rounding fits at every budget.
    layers = [([k - 1] if k else [], 100 + k, (100 + k) * (1, 10)[k % 2 == 0]) for k in range(8)]
    monkeypatch.syspath_prepend(SOURCE / "tests" / "oracle")
    graphs = importlib.import_module("milp_graphs")
    graph = graphs.training_graph("pairs", layers, random.Random(1))
    (tmp_path / "pairs.json").write_text(json.dumps(graph))
    program = SOURCE / "bench" / "python" / "checkmate_lp.py"
    tables = output_of(program, ["pairs.json", "--budgets", "1.0,0.9,0.8,0.7"], tmp_path)
    rows = [line.strip("|").split("|") for line in tables.splitlines() if "| LP rounding" in line]
    assert len(rows) == 4
    for budget, _, _, peak, time, bound in rows:
        assert float(peak) <= float(budget) + 1e-3
        assert float(bound) <= float(time) + 1e-4
    assert float(rows[0][4]) == 1.0
    assert all(1.0 < float(row[4]) < 1.2 for row in rows[1:])


def test_colossal_rotor(tmp_path: pathlib.Path) -> None:
    """Without Colossal-AI, which nothing here installs, the benchmark says so and ends."""
    if importlib.util.find_spec("colossalai"):
        pytest.skip("Colossal-AI is installed")
    program = SOURCE / "bench" / "python" / "colossal_rotor.py"
    assert "nothing is measured" in output_of(program, ["-o", "t.md"], tmp_path)
    assert not (tmp_path / "t.md").exists()


def test_planners(tmp_path: pathlib.Path) -> None:
    """The benchmark of every planner runs: peaks as predicted, gradients as in plain training."""
    program = SOURCE / "bench" / "python" / "planners.py"
    names = ["floating", "dtr", "join", "save_on_cpu"]
    tables = output_of(program, [*names, "--small", "--repeats", "1"], tmp_path)
    rows = [line for line in tables.splitlines() if line.startswith("| `")]
    assert len(rows) == len(names)
    assert all("| the same |" in row and row.endswith("| equal |") for row in rows)


def output_of(program: pathlib.Path, arguments: list[str], folder: pathlib.Path) -> str:
    import reprise

    done = subprocess.run(
        [sys.executable, program, *arguments],
        cwd=folder,
        env={"PYTHONPATH": str(pathlib.Path(reprise.__file__).parents[1]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
