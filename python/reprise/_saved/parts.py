"""The parts of a saved state: models, optimizers, random states, and objects with a state."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from .._step.far_state import fetch_parameters, fetch_state
from .._step.shards import Shard, shard_of
from ..errors import InputError
from .tree import Read, Tensors, decode, encode, tensors_in

Models = nn.Module | Mapping[str, nn.Module] | None
Optimizers = torch.optim.Optimizer | Mapping[str, torch.optim.Optimizer] | None
Todo = list[Callable[[], None]]
# Returns how a tensor differs from the saved one of this name in shape or type, "" if it does not,
# or None if there is none.
Differs = Callable[[str, torch.Tensor], str | None]
_SHOWN = 5


def unwrapped(module: nn.Module) -> nn.Module:
    """Returns the module inside DistributedDataParallel and torch.compile()."""
    while True:
        inside = module._modules.get("_orig_mod")
        if inside is None and isinstance(module, nn.parallel.DistributedDataParallel):
            inside = module.module
        if inside is None:
            return module
        module = inside


def _mapping(value: Any, kind: type, what: str) -> dict[str, Any]:
    """Returns what was given for a part as a dict; one object has the name ""."""
    if value is None:
        return {}
    found = dict(value) if isinstance(value, Mapping) else {"": value}
    for item in found.values():
        if not isinstance(item, kind):
            raise InputError(f"{what} is {type(item).__name__}, and {kind.__name__} is expected")
    return found


def _joined(*names: str) -> str:
    return ".".join(name for name in names if name)


class Parts:
    """The objects whose state is saved, or that a state is loaded into.

    Attributes:
        tensors: Parameters and buffers, each once, by the names that they have in files.
    """

    def __init__(self, model: Models, optimizer: Optimizers, others: Mapping[str, Any]) -> None:
        models = _mapping(model, nn.Module, "model")
        self._models = {name: unwrapped(module) for name, module in models.items()}
        self._optimizers = _mapping(optimizer, torch.optim.Optimizer, "optimizer")
        self._others = others
        self.tensors: Tensors = {}
        self._names: dict[int, str] = {}  # of parameters, by identity
        seen: set[int] = set()
        for prefix, module in self._models.items():
            fetch_parameters(module)
            for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
                if id(tensor) not in seen:
                    seen.add(id(tensor))
                    self._names[id(tensor)] = _joined(prefix, name)
                    self.tensors[_joined("model", prefix, name)] = tensor

    def sharded(self) -> dict[str, Shard]:
        """Returns the shards of the optimizers whose state is sharded, by their keys."""
        shards = {key: shard_of(optimizer) for key, optimizer in self._optimizers.items()}
        return {key: shard for key, shard in shards.items() if shard is not None}

    def keep_shards(self, text: dict[str, Any]) -> None:
        """Drops from a saved text the state of parameters whose state other processes keep."""
        for key, shard in self.sharded().items():
            state = text["optimizers"].get(key, {}).get("state", {})
            for identity, name in self._parameter_names(self._optimizers[key]).items():
                if identity not in shard.kept:
                    state.pop(name, None)

    def _extras(self) -> Iterator[tuple[str, nn.Module]]:
        """Gives the modules that have an extra state of their own, by name."""
        for prefix, module in self._models.items():
            for name, part in module.named_modules():
                if type(part).get_extra_state is not nn.Module.get_extra_state:
                    yield _joined(prefix, name), part

    def _parameter_names(self, optimizer: torch.optim.Optimizer) -> dict[int, str]:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        return {id(p): self._names.get(id(p), f"#{i}") for i, p in enumerate(parameters)}

    def encode(self) -> tuple[dict[str, Any], Tensors]:
        """Returns the texts and the tensors of all parts beside the model's tensors."""
        tensors: Tensors = {}
        optimizers = {
            key: self._encode_optimizer(key, optimizer, tensors)
            for key, optimizer in self._optimizers.items()
        }
        extras = {
            name: encode(part.get_extra_state(), f"extra.{name}", tensors)
            for name, part in self._extras()
        }
        text = {"optimizers": optimizers, "random": self._encode_random(tensors)}
        if extras:
            text["extra"] = extras
        text["others"] = {
            name: encode(_state_of(item), f"others.{name}", tensors)
            for name, item in self._others.items()
        }
        return text, tensors

    def _encode_optimizer(
        self, key: str, optimizer: torch.optim.Optimizer, tensors: Tensors
    ) -> dict[str, Any]:
        fetch_state(optimizer)
        names = self._parameter_names(optimizer)
        prefix = _joined("optimizer", key)
        groups = [
            {
                "parameters": [names[id(p)] for p in group["params"]],
                "options": {
                    option: encode(value, _joined(prefix, f"groups.{g}", option), tensors)
                    for option, value in group.items()
                    if option not in ("params", "param_names")
                },
            }
            for g, group in enumerate(optimizer.param_groups)
        ]
        state = {
            names[id(p)]: {
                field: encode(value, _joined(prefix, names[id(p)], field), tensors)
                for field, value in optimizer.state[p].items()
            }
            for group in optimizer.param_groups
            for p in group["params"]
            if p in optimizer.state
        }
        return {"class": type(optimizer).__name__, "groups": groups, "state": state}

    def _devices(self) -> list[torch.device]:
        """Returns the devices of the model's tensors, without the CPU."""
        found = {t.device for t in self.tensors.values()}
        return sorted((d for d in found if d.type not in ("cpu", "meta")), key=str)

    def _encode_random(self, tensors: Tensors) -> dict[str, Any]:
        random_states: dict[str, Any] = {"cpu": torch.get_rng_state()}
        for device in self._devices():
            random_states[str(device)] = torch.get_device_module(device).get_rng_state(device)
        random_states["python"] = random.getstate()
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            kind, keys, *rest = numpy.random.get_state()
            random_states["numpy"] = (kind, keys.tolist(), *rest)
        return {
            name: encode(state, f"random.{name}", tensors) for name, state in random_states.items()
        }

    def compare_tensors(self, names: list[str], differs: Differs) -> None:
        """Raises InputError unless the model's tensors are those of these names, in all respects.

        Args:
            names: The names of all tensors of the state.
            differs: Says how a tensor differs from the saved one of its name.
        """
        if not self._models:
            return
        missing, other = [], []
        for name, tensor in self.tensors.items():
            difference = differs(name, tensor)
            if difference is None:
                missing.append(name.removeprefix("model."))
            elif difference:
                other.append(f"{name.removeprefix('model.')} {difference}")
        unknown = [
            name.removeprefix("model.")
            for name in names
            if name.startswith("model.") and name not in self.tensors
        ]
        lines = [
            _listed("not in the state", missing),
            _listed("only in the state", unknown),
            _listed("different", other),
        ]
        if any(lines):
            raise InputError("the state is that of another model:" + "".join(lines))

    def hints(self, text: dict[str, Any]) -> Tensors:
        """Returns the parameter of each tensor that the optimizers saved, by the tensor's name."""
        found: Tensors = {}
        for key, optimizer in self._optimizers.items():
            names = self._parameter_names(optimizer)
            saved = text["optimizers"].get(key, {}).get("state", {})
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    fields = saved.get(names[id(parameter)], {})
                    found.update(dict.fromkeys(tensors_in(fields), parameter))
        return found

    def plan_load(self, text: dict[str, Any], read: Read) -> Todo:
        """Compares all parts with a saved text, and returns what loads them.

        Args:
            text: The text of the state.
            read: Returns a saved tensor by its name.

        Raises:
            InputError: A part is another one than the saved one.
        """
        todo: Todo = []
        for key, optimizer in self._optimizers.items():
            saved = text["optimizers"].get(key)
            if saved is None:
                known = ", ".join(map(repr, text["optimizers"])) or "none"
                raise InputError(f"the state has no optimizer {key!r}; it has {known}")
            self._plan_optimizer(saved, optimizer, read, todo)
        for name, part in self._extras():
            if name not in text.get("extra", {}):
                raise InputError(f"the state has no extra state of the module {name!r}")
            todo.append(_setting(part.set_extra_state, text["extra"][name], read))
        for name, item in self._others.items():
            if name not in text["others"]:
                known = ", ".join(map(repr, text["others"])) or "none"
                raise InputError(f"the state has no {name!r} among others; it has {known}")
            setter = _setter_of(item)
            if setter is not None:
                todo.append(_setting(setter, text["others"][name], read))
        return todo

    def _plan_optimizer(
        self,
        saved: dict[str, Any],
        optimizer: torch.optim.Optimizer,
        read: Read,
        todo: Todo,
    ) -> None:
        fetch_state(optimizer)
        name = type(optimizer).__name__
        if saved["class"] != name:
            raise InputError(
                f"the state is that of the optimizer {saved['class']}, and the program has {name}"
            )
        groups = saved["groups"]
        if len(groups) != len(optimizer.param_groups):
            raise InputError(
                f"the saved optimizer has {len(groups)} groups of parameters, and the program's "
                f"{len(optimizer.param_groups)}"
            )
        names = self._parameter_names(optimizer)
        for g, (group, theirs) in enumerate(zip(optimizer.param_groups, groups, strict=True)):
            ours = [names[id(p)] for p in group["params"]]
            if ours != theirs["parameters"]:
                raise InputError(
                    f"group {g} of the saved optimizer has other parameters: "
                    f"{', '.join(theirs['parameters'])}, and the program's {', '.join(ours)}"
                )
        todo.append(lambda: _load_optimizer(saved, optimizer, names, read))

    def plan_random(self, saved: dict[str, Any], read: Read) -> Todo:
        """Returns what puts the random states back. Raises InputError if one cannot be."""
        state = read(saved["cpu"]["tensor"])
        if state.shape != torch.get_rng_state().shape:
            raise InputError("the random state is that of another version of PyTorch")
        todo: Todo = [lambda: torch.set_rng_state(state)]
        for device in self._devices():
            if str(device) in saved:
                module = torch.get_device_module(device)
                todo.append(
                    lambda module=module, device=device: module.set_rng_state(  # type: ignore[misc]
                        read(saved[str(device)]["tensor"]), device
                    )
                )
        if "python" in saved:
            todo.append(lambda: random.setstate(decode(saved["python"], read)))
        numpy = sys.modules.get("numpy")
        if "numpy" in saved and numpy is not None:
            todo.append(lambda: numpy.random.set_state(decode(saved["numpy"], read)))
        return todo


def _load_optimizer(
    saved: dict[str, Any],
    optimizer: torch.optim.Optimizer,
    names: dict[int, str],
    read: Read,
) -> None:
    """Puts options and state into an optimizer, into the tensors that it has where they fit."""
    for group, theirs in zip(optimizer.param_groups, saved["groups"], strict=True):
        for option, value in theirs["options"].items():
            group[option] = _placed(option, value, group.get(option), None, read)
        on_device = bool(group.get("capturable") or group.get("fused"))
        for parameter in group["params"]:
            before = optimizer.state.get(parameter, {})
            fields = saved["state"].get(names[id(parameter)])
            optimizer.state.pop(parameter, None)
            if fields is None:
                continue
            optimizer.state[parameter] = {
                field: _placed(
                    field,
                    value,
                    before.get(field),
                    None if field == "step" and not on_device else parameter,
                    read,
                )
                for field, value in fields.items()
            }


def _placed(field: str, value: Any, before: Any, beside: torch.Tensor | None, read: Read) -> Any:
    """Returns a saved value of an optimizer, in the tensor that is there if that fits."""
    found = decode(value, read)
    if not isinstance(found, torch.Tensor):
        return found
    if field == "step" and not found.is_floating_point():
        found = found.to(torch.float32)  # C++ counts steps in whole numbers.
    if isinstance(before, torch.Tensor) and _same_kind(before, found):
        with torch.no_grad():
            before.copy_(found)
        return before
    if beside is None:
        return found
    if found.shape == beside.shape:
        made = torch.empty_like(beside, dtype=found.dtype, requires_grad=False)
        with torch.no_grad():
            return made.copy_(found)
    return found.to(beside.device)


def _same_kind(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype


def _listed(what: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"\n  {what}: {', '.join(names[:_SHOWN])}{more}"


def _state_of(item: Any) -> Any:
    """Returns the state of an object, or the object itself if it is a plain value."""
    if hasattr(item, "state_dict"):
        return item.state_dict()
    if isinstance(item, torch.Generator):
        return item.get_state()
    if isinstance(item, random.Random):
        return item.getstate()
    bits = getattr(item, "bit_generator", None)  # numpy.random.Generator
    return item if bits is None else bits.state


def _setter_of(item: Any) -> Callable[[Any], Any] | None:
    """Returns the function that puts a state back into an object, or None for a plain value."""
    setter: Callable[[Any], Any] | None = getattr(item, "load_state_dict", None)
    if setter is not None:
        return setter
    if isinstance(item, torch.Generator):
        return item.set_state
    if isinstance(item, random.Random):
        return item.setstate
    bits = getattr(item, "bit_generator", None)
    return None if bits is None else lambda state: setattr(bits, "state", state)


def _setting(setter: Callable[[Any], Any], value: Any, read: Read) -> Callable[[], None]:
    def put() -> None:
        setter(decode(value, read))

    return put
