"""Hostile programs: global settings of PyTorch, and inputs that look different."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hostile import CHANGE, HERE, Case, at, batch, finish, perceptron, program
from torch.nn import functional as F


def setting(
    name: str,
    names: str,
    change: Callable[[], Any],
    *,
    harmless: bool = False,
    end: int | None = None,
    undo: Callable[[], Any] = lambda: torch.set_autocast_enabled("cpu", False),
) -> None:
    """Registers a program that changes a global setting before call 7."""

    def make() -> Case:
        model = perceptron()

        def step(x: Any, y: Any) -> Any:
            weights = torch.ones(3) * torch.tensor(1 / 3)
            loss: Any = F.cross_entropy((model(x) * weights).float(), y)
            if loss.requires_grad:
                loss.backward()
            return loss, weights

        def between(i: int) -> None:
            torch.clear_autocast_cache()  # The end of a scope of autocast does so, too.
            if i == CHANGE:
                change()
            if i == end:
                undo()

        return Case(model, step, between)

    make.__name__ = name
    program("setting", names, harmless=harmless)(make)


def autocast(enabled: bool) -> None:
    torch.set_autocast_enabled("cpu", enabled)


setting("default_dtype", r"default.{0,3}dtype", lambda: torch.set_default_dtype(torch.float64))
setting("autocast_goes_on", r"autocast", lambda: autocast(True))
setting("autocast_is_on_for_a_while", r"autocast", lambda: autocast(True), end=9)
setting("gradients_go_off", r"grad", lambda: torch.set_grad_enabled(False))
setting(
    "gradients_are_off_for_a_while",
    r"grad",
    lambda: torch.set_grad_enabled(False),
    end=9,
    undo=lambda: torch.set_grad_enabled(True),
)
setting(
    "deterministic_algorithms",
    r"determinis",
    lambda: torch.use_deterministic_algorithms(True),
    harmless=True,
)
setting(
    "matmul_precision",
    r"precision|TF32",
    lambda: torch.set_float32_matmul_precision("high"),
    harmless=True,
)
setting("number_of_threads", r"threads", lambda: torch.set_num_threads(2), harmless=True)


@program("setting", r"mixed")
def autocast_inside_the_step() -> Case:
    model, config = perceptron(), {"mixed": False}

    def step(x: Any, y: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=config["mixed"]):
            logits = model(x)
        return finish(logits.float(), y)

    return Case(model, step, at(CHANGE, lambda: config.update(mixed=True)))


@program("setting", rf"attention|sdp|{HERE}")
def attention_backend() -> Case:
    model = torch.nn.Linear(4, 3)

    def step(x: Any, y: Any) -> Any:
        # A long sequence: the backends add up in different orders.
        q = x.repeat(64, 1)[None, None]
        return finish(model(F.scaled_dot_product_attention(q, q, q)[0, 0, :6]), y)

    return Case(model, step, at(CHANGE, lambda: torch.backends.cuda.enable_flash_sdp(False)))


@program("input", r"input", harmless=True)
def values_of_an_input_of_which_the_shape_is_read() -> Case:
    model = perceptron()

    def step(x: Any, y: Any, like: Any) -> Any:
        return finish(model(x) * like.shape[0], y)

    def inputs(i: int) -> tuple[Any, ...]:
        return (*batch(0), torch.full((2,), float(i)))

    return Case(model, step, inputs=inputs)


@program("input", r"input|stride|layout")
def layout_of_an_input() -> Case:
    model, now = perceptron(), {"transposed": False}

    def step(x: Any, y: Any) -> Any:
        # The step reads the layout, as a step with its own kernels does.
        return finish(model(x) * (1.0 if x.is_contiguous() else 2.0), y)

    def inputs(i: int) -> tuple[Any, ...]:
        x, y = batch(i)
        return (x.T.contiguous().T if now["transposed"] else x), y

    return Case(model, step, at(CHANGE, lambda: now.update(transposed=True)), inputs)


@program("input", r"input|gradient")
def input_wants_a_gradient() -> Case:
    model, now = perceptron(), {"wanted": False}

    def step(x: Any, y: Any) -> Any:
        return finish(model(x), y)

    def inputs(i: int) -> tuple[Any, ...]:
        x, y = batch(i)
        return x.requires_grad_(now["wanted"]), y

    return Case(model, step, at(CHANGE, lambda: now.update(wanted=True)), inputs)


@program("input", r"input|same|memory|alias")
def one_tensor_for_two_inputs() -> Case:
    model, now = perceptron(), {"same": False}

    def step(x: Any, z: Any, y: Any) -> Any:
        return finish(model(x) + model(z * z), y)

    def inputs(i: int) -> tuple[Any, ...]:
        x, y = batch(i)
        x.requires_grad_()
        z = x if now["same"] else x.detach().clone().requires_grad_()
        return x, z, y

    return Case(model, step, at(CHANGE, lambda: now.update(same=True)), inputs)


@program("input", r"input|mode")
def number_beside_the_tensors() -> Case:
    model, now = perceptron(), {"mode": 1.0}

    def step(x: Any, y: Any, mode: float) -> Any:
        return finish(model(x) * mode, y)

    def inputs(i: int) -> tuple[Any, ...]:
        return (*batch(i), now["mode"])

    return Case(model, step, at(CHANGE, lambda: now.update(mode=2.0)), inputs)


@program("input", rf"mirrored|{HERE}")
def branch_on_a_value_of_an_input() -> Case:
    model, now = perceptron(), {"mirrored": False}

    def step(x: Any, y: Any, mirrored: Any) -> Any:
        return finish(model(-x if mirrored else x), y)

    def inputs(i: int) -> tuple[Any, ...]:
        return (*batch(i), torch.tensor(now["mirrored"]))

    return Case(model, step, at(CHANGE, lambda: now.update(mirrored=True)), inputs)
