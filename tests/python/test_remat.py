"""A planned chain of stages is the model: same bits, same names, within the budget."""

from __future__ import annotations

import copy
import io
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
import reprise  # noqa: E402
from models import (  # noqa: E402
    GptBlock,
    GptConfig,
    ResNet,
    assert_same_bits,
    compare_steps,
    one_step,
    perceptron,
    state_of,
    vectors,
)
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402


@pytest.mark.parametrize("budget", [None, "95%", "80%"])
def test_a_sequential_trains_as_before(budget: str | None) -> None:
    torch.manual_seed(1)
    plain = perceptron()
    source = copy.deepcopy(plain)
    x, y = vectors()
    before = state_of(source)
    model = reprise.remat(source, x, budget=budget)
    assert_same_bits(state_of(source), before)  # measuring leaves no trace
    assert model.chain.stages[0].name.startswith("0.0")
    assert list(model.state_dict()) == list(plain.state_dict())
    assert [id(p) for p in model.parameters()] == [id(p) for p in source.parameters()]
    compare_steps(model, plain, x, y)
    report = model.report()
    assert report.steps == 2
    assert report.predicted_peak_bytes == report.measured_peak_bytes
    if report.budget_bytes is not None:
        assert report.measured_peak_bytes <= report.budget_bytes
    assert model.planned.plan is not None


def test_a_list_of_stages_with_the_names_of_its_module() -> None:
    torch.manual_seed(2)
    plain = ResNet()
    source = copy.deepcopy(plain)
    x, y = torch.randn(8, 3, 16, 16), torch.randint(0, 10, (8,))
    model = reprise.remat(source.stages(), x, budget="90%", module=source)
    assert list(model.state_dict()) == list(plain.state_dict())
    compare_steps(model, plain, x, y)
    assert model.report().predicted_peak_bytes == model.report().measured_peak_bytes


class Pair(NamedTuple):
    x: Any
    skip: Any


def test_stages_hand_over_structures() -> None:
    """Stages are functions that close over modules, and hand over tuples and dicts."""

    def build() -> tuple[nn.ModuleList, list[Callable[..., Any]]]:
        torch.manual_seed(3)
        layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))
        first, second, third = layers
        return layers, [
            lambda x, shift: Pair(torch.relu(first(x)) + shift, x),
            lambda pair: {"y": torch.relu(second(pair.x)), "skip": pair.skip},
            lambda value: third(value["y"]) + value["skip"],
        ]

    def loss(y: Any) -> Any:
        return y.square().mean()

    layers, stages = build()
    plain_layers, plain_stages = build()
    x, shift = torch.randn(128, 64), torch.randn(128, 64, requires_grad=True)
    plain_shift = shift.detach().clone().requires_grad_()
    model = reprise.remat(stages, (x, shift), loss=loss, budget="98%", module=layers)
    loss(model(x, shift)).backward()
    value: Any = plain_stages[0](x, plain_shift)
    for stage in plain_stages[1:]:
        value = stage(value)
    loss(value).backward()
    assert_same_bits(state_of(model), state_of(plain_layers))
    assert shift.grad is not None
    assert plain_shift.grad is not None
    assert torch.equal(shift.grad, plain_shift.grad)
    # Without `module`, the modules that the functions close over are the children.
    children = reprise.remat(build()[1], (x, shift), loss=loss)
    assert list(children.state_dict()) == list(layers.state_dict())


def test_transformer_blocks_under_autocast() -> None:
    torch.manual_seed(4)
    plain = nn.Sequential(nn.Linear(16, 32), *(GptBlock(GptConfig()) for _ in range(3)))
    source = copy.deepcopy(plain)
    x = torch.randn(8, 24, 16)

    def step(model: nn.Module) -> Any:
        torch.manual_seed(5)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(x).float().square().mean()
        loss.backward()
        return loss.detach()

    def loss(y: Any) -> Any:
        return y.float().square().mean()

    with torch.autocast("cpu", dtype=torch.bfloat16):
        model = reprise.remat(source, x, loss=loss, budget="85%")
    assert torch.equal(step(model), step(plain))
    assert_same_bits(state_of(model), state_of(plain))
    report = model.report()
    assert report.plans == 1
    assert report.measured_peak_bytes <= report.predicted_peak_bytes


class FullPrecision(nn.Module):
    """A linear layer that leaves autocast."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            return self.inner(x.float()).tanh()


@pytest.mark.parametrize("backward_within", [False, True])
def test_gradients_have_the_autocast_state_of_the_backward_pass(backward_within: bool) -> None:
    torch.manual_seed(4)
    plain = nn.Sequential(
        *(part for _ in range(4) for part in (nn.Linear(32, 32), FullPrecision(32)))
    )
    source = copy.deepcopy(plain)
    x = torch.randn(64, 32)

    def step(model: nn.Module) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(x).float().square().mean()
            if backward_within:
                loss.backward()
        if not backward_within:
            loss.backward()
        return loss.detach()

    with torch.autocast("cpu", dtype=torch.bfloat16):
        model = reprise.remat(source, x, loss=lambda y: y.float().square().mean(), budget="85%")
    assert torch.equal(step(model), step(plain))
    assert_same_bits(state_of(model), state_of(plain))


def test_eval_and_no_grad_run_the_stages() -> None:
    plain = perceptron()
    model = reprise.remat(copy.deepcopy(plain), vectors()[0], budget="90%")
    x, y = vectors()
    for one in (model, plain):
        one.eval()
    assert not model._stages()[0][1].training  # type: ignore[attr-defined]
    with torch.no_grad():
        assert torch.equal(model(x), plain(x))
    with torch.inference_mode():
        assert torch.equal(model(x), plain(x))
    compare_steps(model, plain, x, y, steps=1)  # The model has gradients in evaluation mode.
    for one in (model, plain):
        one.train()
    compare_steps(model, plain, x, y, steps=1)


def test_gradients_accumulate_and_hooks_fire_once() -> None:
    plain = perceptron(dropout=0.0)
    model = reprise.remat(copy.deepcopy(plain), vectors()[0], budget="80%")
    fired: list[str] = []
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: fired.append(name))
    for seed in range(3):
        batch = vectors()
        fired.clear()
        assert torch.equal(one_step(model, *batch, seed), one_step(plain, *batch, seed))
        assert sorted(fired) == sorted(name for name, _ in model.named_parameters())
    assert_same_bits(state_of(model), state_of(plain))


def test_data_parallel_training() -> None:
    """The hooks of DistributedDataParallel, here of one process, see each parameter once."""
    import torch.distributed as dist

    if not dist.is_available():
        pytest.skip("this PyTorch has no torch.distributed")
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        plain = perceptron()
        model = reprise.remat(copy.deepcopy(plain), vectors()[0], budget="95%")
        parallel = nn.parallel.DistributedDataParallel(model)
        x, y = vectors()
        for seed in range(2):
            assert torch.equal(one_step(parallel, x, y, seed), one_step(plain, x, y, seed))
        assert_same_bits(state_of(model), state_of(plain))
    finally:
        dist.destroy_process_group()


def test_copies_and_files() -> None:
    torch.manual_seed(6)
    plain = perceptron()
    x, y = vectors()
    model = reprise.remat(copy.deepcopy(plain), x, budget="90%")
    twin = copy.deepcopy(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    for other in (twin, loaded):
        assert {id(p) for p in other.parameters()}.isdisjoint(id(p) for p in model.parameters())
        assert list(other.state_dict()) == list(plain.state_dict())
        compare_steps(other, copy.deepcopy(plain), x, y)
    compare_steps(model, copy.deepcopy(plain), x, y)  # The copies have not touched the model.
    trained = perceptron()
    trained.load_state_dict(model.state_dict())
    model.load_state_dict(twin.state_dict())


def test_other_inputs_plan_again() -> None:
    plain = perceptron()
    source = copy.deepcopy(plain)
    model = reprise.remat(source, vectors()[0], budget="90%")
    for count in (256, 128, 256):
        compare_steps(model, plain, *vectors(count), steps=1)
    assert model.report().plans >= 2
    # A layer is frozen, a layer is replaced, and the type changes.
    for layers in (source, plain):
        layers[0].requires_grad_(False)
    compare_steps(model, plain, *vectors(), steps=1)
    replaced = nn.Linear(64, 10)
    source[6], plain[6] = copy.deepcopy(replaced), copy.deepcopy(replaced)
    compare_steps(model, plain, *vectors(), steps=1)
    x, y = vectors()
    for one in (model, plain):
        one.double()
    compare_steps(model, plain, x.double(), y, steps=1)


def test_exceptions_of_stages_are_those_of_the_user() -> None:
    class Odd(Exception):
        pass

    fail = False

    class Fails(nn.Module):
        def forward(self, x: Any) -> Any:
            if fail:
                raise Odd("of the user")
            return torch.relu(x)

    source = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(64, 64), Fails())])
    x, y = vectors()
    model = reprise.remat(source, x, budget="90%")
    fail = True
    with pytest.raises(Odd, match="of the user") as caught:
        model(x)
    if sys.version_info >= (3, 11):
        assert caught.value.__notes__ == ["in stage '1' of a planned model"]
    fail = False
    output = model(x)
    fail = True
    with pytest.raises(Odd, match="of the user"):
        F.cross_entropy(output, y).backward()  # a stage runs again


def test_what_is_no_chain_is_refused() -> None:
    x = torch.randn(4, 64)
    with pytest.raises(reprise.InputError, match="capture"):
        reprise.remat(ResNet(), x)  # type: ignore[arg-type]
    with pytest.raises(reprise.InputError, match="no stage"):
        reprise.remat(nn.Sequential(), x)
    with pytest.raises(reprise.InputError, match="not"):
        reprise.remat(7, x, module=nn.Linear(1, 1))  # type: ignore[arg-type]
    with pytest.raises(reprise.InputError, match="stage 1"):
        reprise.remat([nn.Linear(64, 64), 7], x)  # type: ignore[list-item]
    with pytest.raises(reprise.InputError, match="tensors only"):
        reprise.remat([lambda x: (x, 7), lambda pair: pair[0]], x)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        reprise.remat(nn.Sequential(nn.Linear(64, 32), nn.Linear(64, 32)), x)
    model = reprise.remat(perceptron(), vectors()[0])
    loss = model(vectors()[0]).sum()
    loss.backward()
    with pytest.raises((reprise.InputError, RuntimeError), match=r"forward again|second time"):
        loss.backward()


class Checkpointed(nn.Module):
    """A stage whose saved tensors belong to a checkpoint.

    Whoever asks for them too early makes the checkpoint run the batch norm again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(64, 64), nn.BatchNorm1d(64)
        self.layer_norm = nn.LayerNorm(64)

    def forward(self, x: Any) -> Any:
        inner = checkpoint(lambda y: self.norm(self.linear(y)).relu(), x, use_reentrant=False)
        return self.layer_norm(x + inner).relu()


def test_checkpoints_inside_a_stage() -> None:
    torch.manual_seed(4)
    plain = nn.Sequential(*(Checkpointed() for _ in range(3)), nn.Linear(64, 10))
    x, y = vectors(1024)
    for budget in (None, "80%"):
        model = reprise.remat(copy.deepcopy(plain), x, budget=budget)
        compare_steps(model, copy.deepcopy(plain), x, y)


def test_another_pytorch_is_refused_before_anything_is_loaded() -> None:
    from reprise._torch import check

    check("2.13.0", "2.13.0+cpu")
    for built, installed, message in (
        ("2.13.0", "2.12.1", "built for PyTorch 2.13.0, and 2.12.1"),
        ("", "2.13.0", "without its PyTorch runtime"),
        ("2.13.0", None, "not installed"),
    ):
        with pytest.raises(reprise.InputError, match=message):
            check(built, installed)
