"""Hostile programs: options, children, parameters, buffers and hooks of modules."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from hostile import CHANGE, Case, at, finish, perceptron, program
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations


def changed_model(
    name: str,
    kind: str,
    names: str,
    model_of: Callable[[], Any],
    change: Callable[[Any], Any],
    *,
    harmless: bool = False,
) -> None:
    """Registers a program whose step calls a model that is changed before call 7."""

    def make() -> Case:
        model = model_of()

        def step(x: Any, y: Any) -> Any:
            return finish(model(x), y)

        return Case(model, step, at(CHANGE, lambda: change(model)))

    make.__name__ = name
    program(kind, names, harmless=harmless)(make)


def option(name: str, middle: Callable[[], Any], attribute: str, value: Any) -> None:
    """Registers a program that changes an option of the module in the middle."""

    def change(model: Any) -> None:
        setattr(model[1], attribute, value)

    changed_model(name, "option", rf"\b{attribute}\b", lambda: perceptron(middle()), change)


option("dropout_p", lambda: nn.Dropout(0.5), "p", 0.1)
option("batch_norm_momentum", lambda: nn.BatchNorm1d(8), "momentum", 0.5)
option("batch_norm_eps", lambda: nn.BatchNorm1d(8), "eps", 0.1)
option("layer_norm_eps", lambda: nn.LayerNorm(8), "eps", 0.1)
option("negative_slope", lambda: nn.LeakyReLU(0.01), "negative_slope", 0.3)
option("groups_of_a_group_norm", lambda: nn.GroupNorm(2, 8), "num_groups", 4)
option("softmax_dim", lambda: nn.Softmax(dim=1), "dim", 0)


class Blocks(nn.Module):
    """A model with blocks in a list that is no ModuleList, and with numbers of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.model = perceptron()
        self.blocks = [nn.LeakyReLU(0.01), nn.Dropout(0.5)]
        self.scale = 1.0
        self.config = types.SimpleNamespace(residual=False)
        self.register_buffer("shift", torch.zeros(3))
        self.mask: Any = None

    def forward(self, x: Any) -> Any:
        hidden = self.model(x)
        for block in self.blocks:
            hidden = block(hidden)
        if self.config.residual:
            hidden = hidden + x[:, :3]
        if self.mask is not None:
            hidden = hidden * self.mask
        return hidden * self.scale + self.shift


def eval_of_a_block(model: Any) -> None:
    model.blocks[1].eval()


def another_slope(model: Any) -> None:
    model.blocks[0].negative_slope = 0.5


def another_block(model: Any) -> None:
    model.blocks[0] = nn.Tanh()


def another_child(model: Any) -> None:
    model[1] = nn.ReLU()


def one_more_child(model: Any) -> None:
    model.append(nn.Tanh())


def eval_of_a_child(model: Any) -> None:
    model[1].eval()


def another_buffer(model: Any) -> None:
    model.register_buffer("shift", torch.arange(3.0))


def values_of_a_buffer(model: Any) -> None:
    model.shift.copy_(torch.arange(3.0))


def tied(model: Any) -> None:
    model[4].weight = model[0].weight


def untied(model: Any) -> None:
    model[4].weight = nn.Parameter(model[0].weight.detach() * 2)


def five_layers() -> Any:
    return perceptron(nn.Tanh(), nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 8))


def tied_layers() -> Any:
    model = five_layers()
    tied(model)
    return model


def another_parameter(model: Any) -> None:
    model[0].weight = nn.Parameter(torch.ones(8, 4))


def another_data(model: Any) -> None:
    model[0].weight.data = torch.ones(8, 4)


def no_bias(model: Any) -> None:
    model[0].bias = None


changed_model("scale_of_a_module", "tree", r"scale", Blocks, lambda m: setattr(m, "scale", 0.5))
changed_model(
    "flag_in_an_object_of_a_module",
    "tree",
    r"residual",
    Blocks,
    lambda m: setattr(m.config, "residual", True),
)
changed_model(
    "tensor_in_place_of_none", "tree", r"mask", Blocks, lambda m: setattr(m, "mask", torch.zeros(3))
)
changed_model("slope_in_a_plain_list", "tree", r"negative_slope", Blocks, another_slope)
changed_model("eval_in_a_plain_list", "tree", r"Dropout|blocks", Blocks, eval_of_a_block)
changed_model("module_in_a_plain_list", "tree", r"blocks|Tanh", Blocks, another_block)
changed_model("child_is_replaced", "tree", r"Tanh|ReLU", perceptron, another_child)
changed_model("child_is_added", "tree", r"Tanh|Sequential", perceptron, one_more_child)
changed_model(
    "child_is_set_to_eval",
    "tree",
    r"training",
    lambda: perceptron(nn.Dropout(0.5)),
    eval_of_a_child,
)
changed_model("buffer_is_registered_again", "tensor", r"shift", Blocks, another_buffer)
changed_model("buffer_gets_other_values", "tensor", r"shift", Blocks, values_of_a_buffer)
changed_model("weights_are_tied", "tensor", r"weight", five_layers, tied)
changed_model("weights_are_untied", "tensor", r"weight", tied_layers, untied)
changed_model("parameter_is_replaced", "tensor", r"weight", perceptron, another_parameter)
changed_model("bias_is_removed", "tensor", r"bias", perceptron, no_bias)
changed_model("data_pointer_is_swapped", "tensor", r"weight", perceptron, another_data)
changed_model(
    "parameter_is_frozen",
    "tensor",
    r"weight",
    perceptron,
    lambda m: m[0].weight.requires_grad_(False),
)
changed_model(
    "parametrization_is_added",
    "tensor",
    r"weight|parametriz",
    perceptron,
    lambda m: parametrizations.weight_norm(m[0]),
)


def squared(_module: Any, _inputs: Any, output: Any) -> Any:
    return output.square()


def doubled_inputs(_module: Any, inputs: Any) -> Any:
    return (2 * inputs[0],)


def doubled_gradients(_module: Any, inputs: Any, _outputs: Any) -> Any:
    return tuple(None if g is None else 2 * g for g in inputs)


def clipped(parameter: Any) -> None:
    parameter.grad.clamp_(-0.01, 0.01)


hook = r"hook"
changed_model(
    "forward_hook_is_added", "hook", hook, perceptron, lambda m: m[1].register_forward_hook(squared)
)
changed_model(
    "forward_pre_hook_is_added",
    "hook",
    hook,
    perceptron,
    lambda m: m[1].register_forward_pre_hook(doubled_inputs),
)
changed_model(
    "backward_hook_is_added",
    "hook",
    hook,
    perceptron,
    lambda m: m[1].register_full_backward_hook(doubled_gradients),
)
changed_model(
    "tensor_hook_is_added",
    "hook",
    hook,
    perceptron,
    lambda m: m[0].weight.register_hook(lambda g: 2 * g),
)
changed_model(
    "post_accumulate_hook_is_added",
    "hook",
    hook,
    perceptron,
    lambda m: m[0].weight.register_post_accumulate_grad_hook(clipped),
)
changed_model(
    "global_forward_hook_is_added",
    "hook",
    hook,
    perceptron,
    lambda model: register_globally(model),
)


def register_globally(model: Any) -> None:
    """Registers a hook of all modules. It acts on this model only, also after the program."""

    def squared_here(module: Any, _inputs: Any, output: Any) -> Any:
        return output.square() if module is model[1] else None

    nn.modules.module.register_module_forward_hook(squared_here)


def with_a_hook_that_goes(name: str, register: Callable[[Any], Any]) -> None:
    """Registers a program with a hook that is there when the step is captured, and then removed."""

    def make() -> Case:
        model = perceptron()
        handle = register(model)

        def step(x: Any, y: Any) -> Any:
            return finish(model(x), y)

        return Case(model, step, at(CHANGE, handle.remove))

    make.__name__ = name
    program("hook", hook)(make)


with_a_hook_that_goes("forward_hook_is_removed", lambda m: m[1].register_forward_hook(squared))
with_a_hook_that_goes(
    "backward_hook_is_removed", lambda m: m[1].register_full_backward_hook(doubled_gradients)
)
with_a_hook_that_goes(
    "tensor_hook_is_removed", lambda m: m[0].weight.register_hook(lambda g: 2 * g)
)
with_a_hook_that_goes(
    "post_accumulate_hook_is_removed",
    lambda m: m[0].weight.register_post_accumulate_grad_hook(clipped),
)


@program("hook", r"hook|gate")
def number_that_a_hook_reads() -> Case:
    model, gate = perceptron(), {"factor": 1.0}

    def gated(_module: Any, _inputs: Any, output: Any) -> Any:
        return output * gate["factor"]

    model[1].register_forward_hook(gated)

    def step(x: Any, y: Any) -> Any:
        return finish(model(x), y)

    return Case(model, step, at(CHANGE, lambda: gate.update(factor=0.5)))


@program("patch", r"forward")
def forward_of_a_module_is_replaced() -> Case:
    model = perceptron()

    def step(x: Any, y: Any) -> Any:
        return finish(model(x), y)

    return Case(model, step, at(CHANGE, lambda: setattr(model[1], "forward", torch.relu)))


@program("patch", r"forward")
def forward_of_a_class_is_replaced() -> Case:
    class Activation(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.tanh(x)

    def relu(_self: Any, x: Any) -> Any:
        return torch.relu(x)

    model = perceptron(Activation())

    def step(x: Any, y: Any) -> Any:
        return finish(model(x), y)

    return Case(model, step, at(CHANGE, lambda: setattr(Activation, "forward", relu)))


@program("patch", r"Tanh|Sigmoid")
def class_of_a_module_is_replaced() -> Case:
    model = perceptron(nn.Tanh())

    def step(x: Any, y: Any) -> Any:
        return finish(model(x), y)

    return Case(model, step, at(CHANGE, lambda: setattr(model[1], "__class__", nn.Sigmoid)))


@program("patch", r"scale")
def attribute_of_a_parameter() -> Case:
    model = perceptron()
    model[0].weight.scale = 1.0

    def step(x: Any, y: Any) -> Any:
        hidden = F.linear(x, model[0].weight * model[0].weight.scale, model[0].bias)
        return finish(model[2](model[1](hidden)), y)

    return Case(model, step, at(CHANGE, lambda: setattr(model[0].weight, "scale", 0.5)))


@program("option", r"label_smoothing")
def label_smoothing_of_a_loss() -> Case:
    model, criterion = perceptron(), nn.CrossEntropyLoss()

    def step(x: Any, y: Any) -> Any:
        loss = criterion(model(x), y)
        loss.backward()
        return loss

    return Case(model, step, at(CHANGE, lambda: setattr(criterion, "label_smoothing", 0.1)))
