"""The docstrings tell the truth: they name what the signatures have, and their examples run.

The sources are read and not imported, so that the stubs of the extensions are looked at, too.
"""

from __future__ import annotations

import ast
import doctest
import gc
import pathlib
import re
from collections.abc import Iterator

import pytest
from conftest import SOURCE

Function = ast.FunctionDef
FILES = sorted(
    f for f in (SOURCE / "python" / "reprise").rglob("*.py*") if f.suffix in (".py", ".pyi")
)
SECTION = re.compile(
    r"^(Args|Attributes|Raises|Returns|Examples):\n((?:(?: .*)?\n)*)", re.MULTILINE
)

PRELUDE = """
import reprise, torch
from torch import nn

blocks = [nn.Sequential(nn.Linear(128, 128), nn.LayerNorm(128), nn.GELU()) for _ in range(8)]
plain = nn.Sequential(*blocks, nn.Linear(128, 10))
x, y = torch.randn(2048, 128), torch.randint(0, 10, (2048,))
"""
# Each name is made only for the examples that read it.
NAMES = {
    "chain": 'chain = reprise.load("data/instances/chains/resnet18_like.json")',
    "plan": 'plan = reprise.plan(chain, budget="60%").plan',
    "model": 'model = reprise.remat(plain, x, budget="60%")',
    "siamese": """
siamese = reprise.remat_join({"left": plain[:2], "right": plain[:2]}, (x, x),
                             loss=lambda outputs: nn.functional.mse_loss(*outputs))
""",
    "optimizer": "optimizer = torch.optim.AdamW(plain.parameters())",
    "step": """
def train(x, y):
    loss = nn.functional.cross_entropy(plain(x), y)
    loss.backward()
    return loss
step = reprise.capture(train, x, y)
""",
}


def documented() -> Iterator[tuple[str, ast.ClassDef | Function, str]]:
    """Yields each class and function with a docstring: its place, its node, and the text."""
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.ClassDef, Function)):
                text = ast.get_docstring(node)
                if text is not None:
                    yield f"{file.name}:{node.lineno} {node.name}", node, text + "\n"


def names_in(text: str, section: str) -> list[str] | None:
    """Returns the names that a section describes, or None if the text has no such section."""
    found = {match.group(1): match.group(2) for match in SECTION.finditer(text)}
    if section not in found:
        return None
    rows = re.findall(r"^ {4}(\*{0,2}\w+(?:,\s+\w+)*): ", found[section], re.MULTILINE)
    return [name for row in rows for name in re.split(r",\s+", row)]


def arguments_of(function: Function) -> list[str]:
    given = function.args
    names = [a.arg for a in given.posonlyargs + given.args if a.arg not in ("self", "cls")]
    names += [f"*{given.vararg.arg}"] if given.vararg else []
    names += [a.arg for a in given.kwonlyargs]
    return names + ([f"**{given.kwarg.arg}"] if given.kwarg else [])


def public_names() -> set[str]:
    tree = ast.parse((SOURCE / "python" / "reprise" / "__init__.py").read_text(encoding="utf-8"))
    lists = [n.value for n in tree.body if isinstance(n, ast.Assign) and "__all__" in ast.dump(n)]
    return {ast.literal_eval(item) for found in lists for item in getattr(found, "elts", [])}


def test_arguments_are_those_of_the_signature() -> None:
    public = public_names()
    described = 0
    for place, node, text in documented():
        if not isinstance(node, Function):
            continue
        names = names_in(text, "Args")
        if names is not None:
            assert names == arguments_of(node), place
            described += 1
        elif node.name in public and node.col_offset == 0 and ".pyi:" not in place:
            assert not arguments_of(node), f"{place} describes no arguments"
    assert described > 20


def test_attributes_are_those_of_the_class() -> None:
    public = public_names()
    described = 0
    for place, node, text in documented():
        if not isinstance(node, ast.ClassDef):
            continue
        fields = [
            n.target.id
            for n in node.body
            if isinstance(n, ast.AnnAssign)
            and isinstance(n.target, ast.Name)
            and not n.target.id.startswith("_")
            and "ClassVar" not in ast.unparse(n.annotation)
        ]
        names = names_in(text, "Attributes")
        if names is not None and fields:
            assert names == fields, place
            described += 1
        elif node.name in public:
            assert not fields, f"{place} describes no attributes"
    assert described > 30


def test_public_names_are_described() -> None:
    described = {node.name for _, node, _ in documented()}
    assert public_names() - {"__version__", "nn"} <= described  # nn is a module


def test_exceptions_are_named() -> None:
    for place, _, text in documented():
        names = names_in(text, "Raises")
        assert names is None or set(names) <= {
            "BudgetError",
            "InputError",
            "PeerError",
            "StepMiss",
        }, place
        assert names is None or names, f"{place}: an empty section"


WITH_EXAMPLES = {place: text for place, _, text in documented() if ">>>" in text}


@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize("place", WITH_EXAMPLES)
def test_examples(place: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples may use the names of the prelude."""
    (tmp_path / "data").symlink_to(SOURCE / "data")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(PRELUDE, names)
    text = WITH_EXAMPLES[place]
    words = set(re.findall(r"\w+", " ".join(re.findall(r">>>(.*)", text))))
    for name, code in NAMES.items():
        if name in words or (name == "chain" and "plan" in words):
            exec(code, names)
    messages: list[str] = []
    test = doctest.DocTestParser().get_doctest(text, names, place, None, None)
    assert test.examples
    doctest.DocTestRunner(verbose=False).run(test, out=messages.append)
    names.clear()
    gc.collect()  # A step and its names refer to each other. Their bytes count in later budgets.
    assert not messages, "".join(messages)
