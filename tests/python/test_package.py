"""The package as a package: its types, its style, and stubs that tell the truth."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest
import reprise
from conftest import SOURCE
from reprise._built_for import TORCH_VERSION

PACKAGE = pathlib.Path(reprise.__file__).parent
EXTENSIONS = ["_core"] + (["_runtime"] if TORCH_VERSION else [])


def run(module: str, *arguments: str) -> None:
    """Runs a tool over the sources. Its findings are the failure."""
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        pytest.skip(f"{module} is not installed")
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=SOURCE,
        env={"PYTHONPATH": str(PACKAGE.parent), "MYPYPATH": f"{PACKAGE.parent}:tests/python"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_types() -> None:
    if not TORCH_VERSION:
        pytest.skip("the types of PyTorch are missing")
    run("mypy", "--cache-dir", str(PACKAGE.parent / "mypy"), str(PACKAGE), "tests/python")


def test_style() -> None:
    run("ruff", "check", "--no-cache")
    run("ruff", "format", "--check", "--no-cache")


def test_stubs_have_what_the_extensions_have(tmp_path: pathlib.Path) -> None:
    # Classes of pybind11 have a metaclass of its own; their members are compared all the same.
    allowed = tmp_path / "allowed"
    allowed.write_text(
        "reprise._runtime.CapturedStep\nreprise._runtime.Online\nreprise._runtime.Remat\n"
        "reprise._runtime.PipelinePart\nreprise._runtime.PipelinedStep\n"
        "reprise._runtime.RematJoin\n"
        "reprise._runtime.Encoded\nreprise._runtime.Encoded.__init__\nreprise._runtime.Reversible\nreprise._runtime.TensorFile\n"
        "reprise._runtime.TiledFunction\nreprise._runtime.Watched\n"
    )
    # PyTorch's types do not matter here, and to read them takes long.
    config = tmp_path / "mypy.ini"
    config.write_text("[mypy]\n[mypy-torch.*]\nfollow_imports = skip\nignore_errors = True\n")
    options = ["--concise", "--allowlist", str(allowed), "--ignore-unused-allowlist"]
    options += ["--mypy-config-file", str(config)]
    run("mypy.stubtest", *options, *(f"reprise.{name}" for name in EXTENSIONS))


def is_property(function: ast.FunctionDef) -> bool:
    return any(isinstance(d, ast.Name) and d.id == "property" for d in function.decorator_list)


def functions_of_stub(path: pathlib.Path) -> dict[str, dict[str, str]]:
    """Returns the arguments of each function with their types; methods are "Class.method".

    Private classes are those of the stub alone: what others inherit, and tables of options.
    """
    found = {}
    tree = ast.parse(path.read_text()).body
    classes = {node.name: node for node in tree if isinstance(node, ast.ClassDef)}

    def type_of(annotation: ast.expr | None) -> str:
        return "" if annotation is None else ast.unparse(annotation)

    def options_of(annotation: ast.expr | None) -> dict[str, str]:
        table = classes[type_of(annotation).removeprefix("Unpack[").removesuffix("]")].body
        rows = [row for row in table if isinstance(row, ast.AnnAssign)]
        return {ast.unparse(row.target): type_of(row.annotation) for row in rows}

    for node in tree:
        inside: list[ast.stmt] = [node]
        prefix = ""
        if isinstance(node, ast.ClassDef):
            if node.name.startswith("_"):
                continue
            inherited = [classes[ast.unparse(base)].body for base in node.bases]
            inside, prefix = sum(inherited, node.body), f"{node.name}."
        for function in inside:
            if isinstance(function, ast.FunctionDef) and not is_property(function):
                arguments = function.args
                own = {a.arg: type_of(a.annotation) for a in arguments.kwonlyargs}
                if arguments.kwarg is not None:
                    own |= options_of(arguments.kwarg.annotation)
                names = {a.arg: type_of(a.annotation) for a in arguments.args}
                found[prefix + function.name] = names | ({"*": ""} if own else {}) | own
    return found


def rows_of_table(text: str) -> list[tuple[str, str]]:
    """Returns the names and types of an options table; the type is "" if it does not say one."""
    rows = text.partition("Keywords:\n")[2].splitlines()
    return [(name, type_.strip()) for name, _, type_ in (row.partition(":") for row in rows if row)]


def arguments_of_docstring(text: str) -> list[str]:
    """Returns the arguments of a first line such as "name(a: int, *, b: str) -> None".

    The keyword arguments of an options table stand in a line of their own.
    """
    inside = text.splitlines()[0].partition("(")[2].rpartition(") ->")[0]
    depth, flat = 0, ""
    for letter in inside:
        depth += (letter in "([") - (letter in ")]")
        flat += letter if depth == 0 else ""
    names = [part.partition(":")[0].strip() for part in re.split(r",", flat) if part.strip()]
    if names[-1:] == ["**kwargs"]:
        names[-1:] = ["*", *(name for name, _ in rows_of_table(text))]
    return names


@pytest.mark.parametrize("name", EXTENSIONS)
def test_stubs_name_the_arguments(name: str) -> None:
    """Stubtest cannot see the names of arguments in functions of C++; pybind11 writes them down."""
    if name == "_runtime":
        import torch  # noqa: F401 - the runtime needs its libraries
    module = importlib.import_module(f"reprise.{name}")
    for function, names in functions_of_stub(PACKAGE / f"{name}.pyi").items():
        value = module
        for part in function.split("."):
            value = getattr(value, part)
        assert arguments_of_docstring(value.__doc__ or "") == list(names), function
        for name, type_ in rows_of_table(value.__doc__ or ""):
            assert type_ in ("", names[name].removesuffix(" | None"), names[name]), (function, name)


def test_options_that_are_not_in_the_table_are_refused() -> None:
    pytest.importorskip("torch", reason="the runtime needs PyTorch")
    from reprise._torch import _runtime

    with pytest.raises(TypeError, match="there is no argument plan_afer="):
        _runtime.Online(plan_afer=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="plans= cannot be 'two'"):
        _runtime.Online(plans="two")  # type: ignore[call-arg, arg-type]
    with pytest.raises(reprise.InputError, match="8 GoB"):
        _runtime.Online(budget="8 GoB")  # type: ignore[call-arg]


def test_the_version_is_one() -> None:
    found = re.search(r"project\(reprise VERSION ([\d.]+)", (SOURCE / "CMakeLists.txt").read_text())
    assert found is not None
    assert reprise.__version__ == found.group(1)
    assert f'version = "{reprise.__version__}"' in (SOURCE / "pyproject.toml").read_text()
    assert (PACKAGE / "py.typed").is_file()
