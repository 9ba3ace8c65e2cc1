"""State that a function names is compared before each call, wherever it lies."""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
np = pytest.importorskip("numpy")
import reprise  # noqa: E402
from reprise.errors import StepMiss  # noqa: E402
from torch import nn  # noqa: E402

X = torch.randn(32, 16)


class Settings:
    def __init__(self) -> None:
        self.factor = 2.0


settings_module: Any = types.ModuleType("settings_of_this_test")
settings_module.factor = 2.0

Case = tuple[Callable[[], float], Callable[[], None]]


def array() -> Case:
    values = np.full(100_000, 2.0)
    return lambda: float(values[77_777]), lambda: values.__setitem__(77_777, 3.0)


def long_list() -> Case:
    values = [2.0] * 2000
    return lambda: values[1234], lambda: values.__setitem__(1234, 3.0)


def of_bytes() -> Case:
    values = bytearray([2, 2])
    return lambda: float(values[1]), lambda: values.__setitem__(1, 3)


def weak_reference() -> Case:
    settings = Settings()
    keep.append(settings)
    reference = weakref.ref(settings)

    def read() -> float:
        found = reference()
        assert found is not None
        return found.factor

    return read, lambda: setattr(settings, "factor", 3.0)


def weak_proxy() -> Case:
    settings = Settings()
    keep.append(settings)
    proxy = weakref.proxy(settings)
    return lambda: proxy.factor, lambda: setattr(settings, "factor", 3.0)


def imported_module() -> Case:
    def read() -> float:
        import settings_of_this_test  # type: ignore[import-not-found]

        value: float = settings_of_this_test.factor
        return value

    return read, lambda: setattr(settings_module, "factor", 3.0)


def imported_name() -> Case:
    def read() -> float:
        from settings_of_this_test import factor

        value: float = factor
        return value

    return read, lambda: setattr(settings_module, "factor", 3.0)


keep: list[Any] = []
CASES = [array, long_list, of_bytes, weak_reference, weak_proxy, imported_module, imported_name]


@pytest.mark.parametrize("case", CASES)
def test_a_change_is_noticed_at_the_next_call(
    case: Callable[[], Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "settings_of_this_test", settings_module)
    monkeypatch.setattr(settings_module, "factor", 2.0)
    read, change = case()
    torch.manual_seed(0)
    net = nn.Linear(16, 16)

    def step(x: Any) -> Any:
        loss = net(x).square().mean() * read()
        loss.backward()
        return loss.detach()

    captured = reprise.capture(step, X)
    for _ in range(4):  # Lockstep compares the first two calls, and then the tenth.
        captured(X)
    change()
    with pytest.raises(StepMiss, match="was captured for something else"):
        captured(X)


def test_an_object_behind_a_weak_reference_is_not_kept_alive() -> None:
    settings, net = Settings(), nn.Linear(16, 16)
    reference = weakref.ref(settings)

    def step(x: Any) -> Any:
        found = reference()
        loss = net(x).square().mean() * (1.0 if found is None else found.factor)
        loss.backward()
        return loss.detach()

    captured = reprise.capture(step, X)
    captured(X)
    del settings
    assert reference() is None
    with pytest.raises(StepMiss, match="was captured for something else"):
        captured(X)
