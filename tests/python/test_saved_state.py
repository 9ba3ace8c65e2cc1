"""save_state() and load_state(): training goes on with the bits of an uninterrupted run."""

from __future__ import annotations

import os
import pathlib
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
import reprise  # noqa: E402
from test_optimizer import OPTIMIZERS, bits  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402


def network(width: int = 12) -> nn.Sequential:
    blocks = [
        nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.GELU(), nn.Dropout(0.2))
        for _ in range(3)
    ]
    return nn.Sequential(*blocks, nn.Linear(width, 4))


def batch(step: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(256, 12, generator=generator)
    return x, torch.randint(0, 4, (256,), generator=generator)


def train(call: Callable[..., Any], optimizer: Any, first: int, last: int) -> None:
    for step in range(first, last):
        x, y = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(call(x), y).backward()
        optimizer.step()


def everything(model: nn.Module, optimizer: Any) -> Any:
    """All bits of a run, and the next random numbers."""
    # A captured step may make the state of the optimizer in another order than a plain one.
    state = {name: dict(optimizer.state[p]) for name, p in model.named_parameters()}
    return bits(
        {"m": dict(model.named_parameters()) | dict(model.named_buffers()), "o": state}
        | {"r": torch.rand(3), "p": random.random()}
    )


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("fresh", [True, False])
def test_training_goes_on(name: str, fresh: bool, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "state.safetensors"
    torch.manual_seed(1)
    model = network()
    optimizer = OPTIMIZERS[name](list(model.parameters()))
    train(model, optimizer, 0, 3)
    reprise.save_state(path, model=model, optimizer=optimizer, step=3, position=48)
    train(model, optimizer, 3, 6)
    expected = everything(model, optimizer)

    torch.manual_seed(99)
    random.seed(99)
    other = network()
    others_optimizer = OPTIMIZERS[name](list(other.parameters()))
    if not fresh:
        train(other, others_optimizer, 0, 1)
    done = reprise.load_state(path, model=other, optimizer=others_optimizer)
    assert (done.step, done.position, done.ranks) == (3, 48, 1)
    train(other, others_optimizer, 3, 6)
    assert everything(other, others_optimizer) == expected


def plain_runs(tmp_path: pathlib.Path) -> tuple[pathlib.Path, Any]:
    """Returns the file of a state after two plain steps, and the bits after five."""
    path = tmp_path / "state.safetensors"
    torch.manual_seed(1)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train(model, optimizer, 0, 2)
    reprise.save_state(path, model=model, optimizer=optimizer, step=2)
    train(model, optimizer, 2, 5)
    return path, everything(model, optimizer)


@pytest.mark.parametrize("mode", ["chain", "graph", "optimizer inside", "train_step"])
def test_any_mode_goes_on_where_plain_training_stopped(mode: str, tmp_path: pathlib.Path) -> None:
    path, expected = plain_runs(tmp_path)
    torch.manual_seed(99)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(x: Any, y: Any) -> Any:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    if mode == "chain":
        planned = reprise.remat(model, batch(0)[0], budget="80%")
        reprise.load_state(path, model=planned, optimizer=optimizer)
        train(planned, optimizer, 2, 5)
    elif mode == "optimizer inside":
        captured = reprise.capture(step, *batch(0), optimizer=optimizer)
        captured.plan(budget="90%", time_limit=0.2)
        reprise.load_state(path, model=model, optimizer=optimizer)
        for number in range(2, 5):
            captured(*batch(number))
    else:
        if mode == "graph":
            run: Any = reprise.capture(step, *batch(0))
            run.plan(budget="80%", time_limit=0.2)
        else:
            run = reprise.train_step(step, *batch(0), time_limit=0.2)
        reprise.load_state(path, model=model, optimizer=optimizer)
        for number in range(2, 5):
            optimizer.zero_grad()
            run(*batch(number))
            optimizer.step()
    assert everything(model, optimizer) == expected


def test_a_step_with_the_optimizer_inside_goes_on_from_its_own_state(
    tmp_path: pathlib.Path,
) -> None:
    def run(last: int, load: bool) -> Any:
        torch.manual_seed(1)
        random.seed(1)
        model = network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

        def step(x: Any, y: Any) -> Any:
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        captured = reprise.capture(step, *batch(0), optimizer=optimizer)
        plan = captured.plan(budget="90%", time_limit=0.2)
        first = 0
        if load:
            captured(*batch(7))  # The state is loaded into an optimizer that has one.
            done = reprise.load_state(tmp_path / "s", model=model, optimizer=optimizer)
            first = done.step
            assert len(done.plan_sha256) == 64
        for number in range(first, last):
            captured(*batch(number))
        reprise.save_state(tmp_path / "s", model=model, optimizer=optimizer, step=last, plan=plan)
        return everything(model, optimizer)

    expected = run(6, load=False)
    run(3, load=False)
    assert run(6, load=True) == expected


KILLED = """
import sys, torch, reprise
sys.path.insert(0, {tests!r})
from test_saved_state import *
torch.set_num_threads(1)
torch.manual_seed(1)
model = network()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
first = 0
if os.path.exists({path!r}):
    first = reprise.load_state({path!r}, model=model, optimizer=optimizer).step
print("begins", first, flush=True)
for number in range(first, {steps}):
    train(model, optimizer, number, number + 1)
    reprise.save_state({path!r}, model=model, optimizer=optimizer, step=number + 1)
    print("step", number + 1, flush=True)
print("done", flush=True)
"""


def test_a_killed_run_goes_on(tmp_path: pathlib.Path) -> None:
    """The process is killed at any moment, also while it writes, and started again."""
    steps, path = 100, str(tmp_path / "state.safetensors")
    program = KILLED.format(tests=str(pathlib.Path(__file__).parent), path=path, steps=steps)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    dice = random.Random(5)
    for begins in (0, 20, 45):
        child = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment
        )
        assert child.stdout is not None
        begun = int(child.stdout.readline().split()[1])
        assert begins <= begun < steps
        if begins < 45:
            # The next state is being computed or written when the process is killed.
            while int(child.stdout.readline().split()[1]) < begins + 20 + begins // 4:
                pass
            time.sleep(0.005 * dice.random())
            child.send_signal(signal.SIGKILL)
        rest, _ = child.communicate(timeout=120)
    assert rest.endswith("done\n")
    torch.manual_seed(1)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train(model, optimizer, 0, steps)
    expected = everything(model, optimizer)
    other = network()
    others_optimizer = torch.optim.AdamW(other.parameters(), lr=1e-2)
    assert reprise.load_state(path, model=other, optimizer=others_optimizer).step == steps
    # Python's own generator was that of another process.
    del expected["p"]
    found = everything(other, others_optimizer)
    del found["p"]
    assert found == expected


def test_other_objects_and_values(tmp_path: pathlib.Path) -> None:
    numpy = pytest.importorskip("numpy")
    path = tmp_path / "state"
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedules = {
        "steps": torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4]),
        "cosine": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10),
    }
    generators = {
        "torch": torch.Generator().manual_seed(3),
        "python": random.Random(4),
        "numpy": numpy.random.default_rng(5),
    }
    values = {
        "tuple": (1, -2, 2**80, 0.1, float("inf"), None, True, b"\x00\xff"),
        "nested": {"a": [torch.arange(3), {"b": numpy.arange(4.0)}], 7: "seven"},
        "type": torch.bfloat16,
    }
    train(model, optimizer, 0, 3)
    for schedule in schedules.values():
        schedule.step()
    numpy.random.seed(8)
    reprise.save_state(
        path,
        model=model,
        optimizer=optimizer,
        others={**schedules, **generators, **values},
        notes={"why": "a test"},
    )

    def draw() -> Any:
        return (
            torch.rand(2, generator=generators["torch"]).tolist(),
            generators["python"].random(),
            generators["numpy"].random(),
            numpy.random.random(),
            random.random(),
            [schedule.state_dict() for schedule in schedules.values()],
            [group["lr"] for group in optimizer.param_groups],
        )

    expected = draw()
    for schedule in schedules.values():
        schedule.step()
    others = {**schedules, **generators, **dict.fromkeys(values)}
    done = reprise.load_state(path, model=model, optimizer=optimizer, others=others)
    assert draw() == expected
    assert done.notes == {"why": "a test"}
    assert done.others["tuple"] == values["tuple"]
    assert done.others["nested"]["a"][0].tolist() == [0, 1, 2]
    assert done.others["nested"]["a"][1]["b"].tolist() == [0, 1, 2, 3]
    assert done.others["nested"][7] == "seven"
    assert done.others["type"] is torch.bfloat16


def test_several_models_and_optimizers(tmp_path: pathlib.Path) -> None:
    models = {"generator": network(), "critic": network()}
    optimizers = {name: torch.optim.Adam(m.parameters()) for name, m in models.items()}
    for name in models:
        train(models[name], optimizers[name], 0, 2)
    reprise.save_state(tmp_path / "s", model=models, optimizer=optimizers)
    others = {"generator": network(), "critic": network()}
    others_optimizers = {name: torch.optim.Adam(m.parameters()) for name, m in others.items()}
    reprise.load_state(tmp_path / "s", model=others, optimizer=others_optimizers)
    for name in models:
        assert bits(models[name].state_dict()) == bits(others[name].state_dict())
        train(models[name], optimizers[name], 2, 3)
        torch.manual_seed(0)
    with pytest.raises(reprise.InputError, match="no optimizer ''; it has 'generator', 'critic'"):
        reprise.load_state(tmp_path / "s", optimizer=others_optimizers["critic"])


def test_wrappers_stand_for_the_model(tmp_path: pathlib.Path) -> None:
    model = network()
    reprise.save_state(tmp_path / "s", model=torch.compile(model))
    planned = reprise.remat(network(), batch(0)[0])
    reprise.load_state(tmp_path / "s", model=planned)
    assert bits(dict(planned.named_parameters())) == bits(dict(model.named_parameters()))


def test_tied_weights_are_saved_once_and_stay_tied(tmp_path: pathlib.Path) -> None:
    def tied() -> nn.Sequential:
        net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        net[1].weight = net[0].weight
        return net

    model, other = tied(), tied()
    reprise.save_state(tmp_path / "s", model=model)
    reprise.load_state(tmp_path / "s", model=other)
    assert other[1].weight is other[0].weight
    assert bits(other[1].weight) == bits(model[0].weight)


def test_state_of_a_module_that_is_no_tensor(tmp_path: pathlib.Path) -> None:
    class Counting(nn.Linear):
        calls = 0

        def get_extra_state(self) -> Any:
            return {"calls": self.calls}

        def set_extra_state(self, state: Any) -> None:
            self.calls = state["calls"]

    model, other = nn.Sequential(Counting(2, 2)), nn.Sequential(Counting(2, 2))
    model[0].calls = 5  # type: ignore[assignment]
    reprise.save_state(tmp_path / "s", model=model)
    reprise.load_state(tmp_path / "s", model=other)
    assert other[0].calls == 5
