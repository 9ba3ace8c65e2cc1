"""The simulated accelerator from Python. SIM_LIBRARY names the library."""

import os

import pytest
import sim
import torch

sim.load(os.environ["SIM_LIBRARY"], devices=2, capacity=64 << 20)


@pytest.fixture(autouse=True)
def nothing_to_report():
    sim.take_reports()
    yield
    torch.accelerator.synchronize()
    assert sim.take_reports() == []


def train(place):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 5)
    )
    x, y = torch.randn(4, 3, 8, 8), torch.randint(5, (4,))
    model.to(place)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(5):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x.to(place)), y.to(place))
        loss.backward()
        optimizer.step()
    return [loss.detach().cpu()] + [p.detach().cpu() for p in model.parameters()]


def test_it_is_the_accelerator():
    assert torch.accelerator.current_accelerator().type == "sim"
    assert torch.accelerator.device_count() == 2


@pytest.mark.parametrize("place", ["sim:0", "sim:1"])
def test_training_has_the_bits_of_the_cpu(place):
    assert all(torch.equal(a, b) for a, b in zip(train("cpu"), train(place), strict=True))


def test_one_seed_gives_all_devices_the_same_numbers():
    torch.manual_seed(4)
    wanted = torch.rand(5)
    state = torch.sim.get_rng_state("sim:1")
    assert torch.equal(torch.rand(5, device="sim:0").cpu(), wanted)
    assert torch.equal(torch.rand(5, device="sim:1").cpu(), wanted)
    torch.sim.set_rng_state(state, "sim:1")
    assert torch.equal(torch.rand(5, device="sim:1").cpu(), wanted)


def test_out_of_memory():
    sim.set_capacity(1, 1 << 20)
    with pytest.raises(torch.OutOfMemoryError, match="sim:1 is out of memory"):
        torch.empty(1 << 20, device="sim:1")
    sim.set_capacity(1, 64 << 20)


def test_memory_statistics():
    before = torch.accelerator.memory_allocated(0)
    x = torch.empty(1000, device="sim:0")
    assert torch.accelerator.memory_allocated(0) - before == 4096
    del x
    assert torch.accelerator.memory_allocated(0) == before


def test_a_missing_event_is_reported():
    host, x = torch.ones(64).pin_memory(), torch.zeros(64, device="sim:0")
    torch.accelerator.synchronize()
    side = torch.Stream("sim:0")
    with side:
        x.copy_(host, non_blocking=True)
    assert x.sum().item() == 0
    (report,) = sim.take_reports()
    assert "reads what a copy on stream" in report
    torch.accelerator.current_stream().wait_stream(side)
    assert x.sum().item() == 64
