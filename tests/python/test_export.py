"""export(): the layers of a plan, and models that are checkpointed as it says."""

from __future__ import annotations

import copy
import pathlib
from typing import Any

import pytest
import reprise

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - It needs torch.


def small_problem(owners: list[str]) -> tuple[reprise.Graph, reprise.Plan]:
    """Returns a graph in which every layer has one op, and plain training's plan of it."""
    forward = [
        reprise.Op(
            f"f{n}",
            (reprise.Variant(10, reads=(f"v{n}",), writes=(f"v{n + 1}",)),),
            owner=owner,
        )
        for n, owner in enumerate(owners)
    ]
    last = len(owners)
    reads = tuple(f"v{n}" for n in range(1, last + 1))
    backward = reprise.Op("b", (reprise.Variant(10, reads=reads, writes=("g",)),), "backward")
    values = [reprise.Value("v0", 8, "input"), reprise.Value("g", 8, "gradient")]
    values += [reprise.Value(f"v{n}", 100) for n in range(1, last + 1)]
    graph = reprise.Graph("small", tuple(values), (*forward, backward), ("g",))
    plan = reprise.plan(graph, time_limit=0.2).plan
    assert plan is not None
    return graph, plan


def with_runs_again(plan: reprise.Plan, ids: list[str]) -> dict[str, Any]:
    """Returns a plan in which ops run again, as far as export() looks at it."""
    value = plan.to_dict()
    value["actions"] += [["run", id, "default"] for id in ids]
    return value


def test_layers_are_found_by_their_numbers() -> None:
    owners = ["stem", "blocks.0.a", "blocks.0.b", "blocks.1.a", "blocks.1.list.3", "10.x", "head"]
    graph, plan = small_problem(owners)
    found = reprise.export(graph, with_runs_again(plan, ["f1", "f4", "f0"]))
    layers = {layer.path: layer for layer in found.layers}
    assert list(layers) == ["blocks.0", "blocks.1", "10"]
    assert layers["blocks.0"].made_bytes == 200 and layers["blocks.0"].again_bytes == 100
    assert layers["blocks.0"].forward_ns == 20
    assert found.again == ("blocks.0", "blocks.1")
    named = reprise.export(graph, plan, layers=["stem", "blocks.1"])
    assert [layer.path for layer in named.layers] == ["stem", "blocks.1"]
    assert named.again == ()


def test_texts_of_the_targets() -> None:
    graph, plan = small_problem([f"layers.{n}" for n in range(8)])
    again = with_runs_again(plan, ["f0", "f4"])
    transformers = str(reprise.export(graph, again, to="transformers"))
    assert '{"every_n_layers": 4}' in transformers and "2 of 8" in transformers
    assert str(reprise.export(graph, plan, to="transformers")).endswith("= False")
    remat = str(reprise.export(graph, again, to="torch_remat")).splitlines()
    assert remat[2] == '# layers.0: x = remat.checkpoint(region_name="layers.0")(layer)(x)'
    assert remat[3] == "# layers.1: x = layer(x)" and len(remat) == 10
    assert "layers.4" in reprise.export(graph, again)._repr_html_()


def test_files_and_wrong_arguments(tmp_path: pathlib.Path) -> None:
    graph, plan = small_problem(["a.0", "a.1"])
    graph.save(tmp_path / "graph.json")
    plan.save(tmp_path / "plan.json")
    found = reprise.export(tmp_path / "graph.json", tmp_path / "plan.json")
    assert found == reprise.export(graph, plan)
    with pytest.raises(reprise.InputError, match="not to 'onnx'"):
        reprise.export(graph, plan, to="onnx")
    with pytest.raises(reprise.InputError, match='belongs to "b"'):
        reprise.export(graph, plan, layers=["b"])
    bare, bare_plan = small_problem(["stem", "head"])
    with pytest.raises(reprise.InputError, match=r"repeats no layer.*stem, head"):
        reprise.export(bare, bare_plan)
    with pytest.raises(reprise.InputError, match="another problem"):
        reprise.export(graph, with_runs_again(plan, ["zz"]))
    with pytest.raises(reprise.InputError, match=r'no module "a\.0"'):
        again = reprise.export(graph, with_runs_again(plan, ["f0"]))
        again.apply(nn.Sequential(nn.Linear(2, 2)))


@pytest.mark.usefixtures("runtime")
def test_a_model_is_checkpointed_as_the_plan_says() -> None:
    torch.manual_seed(0)

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(
                nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 32)) for _ in range(5)
            )

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = x + layer(x)
            return x

    def step_of(model: nn.Module) -> Any:
        def step(x: Any) -> Any:
            loss = model(x).square().mean()
            loss.backward()
            return loss.detach()

        return step

    model, x = Layers(), torch.randn(512, 32)
    captured = reprise.capture(step_of(model), x, alternatives=[])
    with pytest.raises(reprise.BudgetError) as least:
        captured.plan(budget=1)
    plan = captured.plan(budget=least.value.requested).plan
    assert plan is not None
    found = reprise.export(captured.graph, plan)
    assert [layer.path for layer in found.layers] == [f"layers.{n}" for n in range(5)]
    assert found.again
    wrapped = found.apply(copy.deepcopy(model))
    assert wrapped.state_dict().keys() == model.state_dict().keys()
    judged = reprise.judge(step_of(wrapped), x, compare=False, repeats=1)
    assert judged.well, judged
    assert judged.again
    program = str(found)
    other = copy.deepcopy(model)
    exec(program, {"model": other})
    again = reprise.judge(step_of(other), x, compare=False, repeats=1)
    assert again.well and again.again == judged.again
    plain, step = judged.step("plain"), judged.step("this step")
    assert plain is not None and step is not None and step.peak_bytes < plain.peak_bytes
