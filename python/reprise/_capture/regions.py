"""Compiles regions of captured steps with inductor, for the alternative "fused-regions".

The runtime describes a region in lines of text (src/runtime/rewrite/regions/region_text.h):

    in a0 float32 (4, 256, 64) (16384, 64, 1)
    v1 = aten.neg.default(look(a0, (4, 256, 32), (16384, 64, 1), 32, (4, 256, 64), (16384, 64, 1)))
    out v1 float32 (4, 256, 32) (8192, 32, 1)

Inductor makes C++ loops of it. All regions of a capture are compiled together into one shared
object, which the runtime loads. A region gets one function in it,
`void region(char** inputs, char** outputs, char** scratch)`. The function needs no Python and asks
for no memory. What is compiled is kept in a folder of the user, by content, so that a program that
starts again compiles nothing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pathlib
import platform
import re
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .._torch import _runtime

# A change of what this module makes of a text, so that what older versions kept is not used.
FORMAT = 1


class Refused(Exception):
    """The region cannot be compiled. The message says why."""


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A line `in` or `out`: a tensor with its sizes and strides in elements."""

    name: str
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Region:
    """A region as the runtime describes it."""

    inputs: list[Tensor]
    lines: list[str]
    outputs: list[Tensor]


def parsed(text: str) -> Region:
    """Returns the region of a description."""
    region = Region([], [], [])
    for line in text.splitlines():
        match = re.fullmatch(r"(in|out) (\w+) (\w+) (\(.*?\)) (\(.*?\))", line)
        if match is None:
            region.lines.append(line)
            continue
        kind, name, dtype, sizes, strides = match.groups()
        sizes, strides = (tuple(json.loads(f"[{one[1:-1]}]")) for one in (sizes, strides))
        tensor = Tensor(name, getattr(torch, dtype), sizes, strides)
        (region.inputs if kind == "in" else region.outputs).append(tensor)
    return region


def look(
    value: torch.Tensor,
    sizes: Sequence[int],
    strides: Sequence[int],
    offset: int,
    of_sizes: Sequence[int],
    of_strides: Sequence[int],
) -> torch.Tensor:
    """Looks at the memory of a value of the region with other sizes, strides and offset.

    Strides are in elements of the memory, whose dense layout is that of `of_sizes` and
    `of_strides`. The look is made of permutations, slices and expansions, because inductor fuses
    these and not `as_strided`.

    It raises Refused if the look is not made of such steps.
    """
    rank = len(of_sizes)
    outer_first = sorted(range(rank), key=lambda d: (-of_strides[d], of_sizes[d] == 1))
    flat = value.permute(outer_first)
    dims = [d for d in range(len(sizes)) if sizes[d] != 1 and strides[d] != 0]
    dims.sort(key=lambda d: -strides[d])
    # The memory has a dimension for each stride, and one for what lies within the smallest stride.
    radices, total = [], flat.numel()
    for d in dims:
        if total % strides[d] != 0 or total == strides[d]:
            raise Refused("it looks at a value of its own in an order that is not made of slices")
        radices.append(total // strides[d])
        total = strides[d]
    radices.append(total)
    view = flat.reshape(radices)
    rest = offset
    for position, d in enumerate(dims):
        begin, rest = divmod(rest, strides[d])
        if begin + sizes[d] > radices[position]:
            raise Refused("it looks at a value of its own in an order that is not made of slices")
        view = view.narrow(position, begin, sizes[d])
    view = view.select(len(dims), rest)
    view = view.permute([dims.index(d) for d in sorted(dims)])
    for d in range(len(sizes)):
        if d not in dims:
            view = view.unsqueeze(d)
    return view.expand(list(sizes))


def function_of(region: Region) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Returns the region as a function of its inputs."""
    names: dict[str, Any] = {
        "aten": torch.ops.aten,
        "torch": torch,
        "look": look,
        "inf": float("inf"),
        "nan": float("nan"),
        "cast": cast,
    }
    head = f"def region({', '.join(one.name for one in region.inputs)}):"
    tail = f"return ({' '.join(one.name + ',' for one in region.outputs)})"
    exec("\n  ".join([head, *region.lines, tail]), names)
    values: Callable[..., tuple[torch.Tensor, ...]] = names["region"]

    def results(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = values(*inputs)
        return tuple(laid_out(*pair) for pair in zip(made, region.outputs, strict=True))

    return results


def cast(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns a copy of the value in another type, or in its own."""
    return value.to(dtype, copy=True)


def has_layout(sizes: Sequence[int], strides: Sequence[int], wanted: Tensor) -> bool:
    """Returns whether a tensor has the layout of another. Dimensions of size 1 have no stride."""
    return tuple(sizes) == wanted.sizes and all(
        size == 1 or mine == theirs
        for size, mine, theirs in zip(wanted.sizes, strides, wanted.strides, strict=True)
    )


def laid_out(value: torch.Tensor, wanted: Tensor) -> torch.Tensor:
    """Returns the value with the layout that the step has."""
    if has_layout(value.shape, value.stride(), wanted):
        return value
    outer_first = sorted(range(value.dim()), key=lambda d: -wanted.strides[d])
    dense = value.permute(outer_first).clone(memory_format=torch.contiguous_format)
    return dense.permute([outer_first.index(d) for d in range(value.dim())])


@dataclasses.dataclass(frozen=True)
class Buffer:
    """Memory in the code that inductor writes around its loops, with an offset in bytes."""

    kind: str  # "inputs", "outputs" or "scratch"
    index: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    offset: int = 0


class Loops:
    """Runs what inductor writes around its loops, and notes which loops get which memory."""

    def __init__(self) -> None:
        self.sources: list[str] = []
        self.calls: list[tuple[int, tuple[Any, ...]]] = []
        self.allocated: list[Buffer] = []

    def cpp_pybinding(self, _types: Any, source: str) -> Callable[..., None]:
        self.sources.append(source)
        position = len(self.sources) - 1
        return lambda *arguments: self.calls.append((position, arguments))

    def wait(self, _scope: Any) -> None:
        pass

    def allocate(self, sizes: Any, strides: Any, dtype: torch.dtype) -> Buffer:
        made = Buffer("scratch", len(self.allocated), tuple(sizes), tuple(strides), dtype)
        self.allocated.append(made)
        return made

    @staticmethod
    def look(memory: Buffer, sizes: Any, strides: Any, offset: int) -> Buffer:
        return dataclasses.replace(
            memory,
            sizes=tuple(sizes),
            strides=tuple(strides),
            offset=memory.offset + offset * memory.dtype.itemsize,
        )


def silu_backward(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Returns the backward of SiLU as ATen's kernel computes it, with one contracted multiply-add.

    ATen is compiled with contraction, so `1 + x * (1 - sigmoid)` is rounded once there. Inductor's
    own decomposition rounds twice.
    """
    from torch._inductor.inductor_prims import fma

    dtype = x.dtype
    if dtype in (torch.float16, torch.bfloat16):
        gradient, x = gradient.float(), x.float()
    sigmoid = torch.sigmoid(x)
    slope = fma(x, 1 - sigmoid, torch.ones_like(x))
    result: torch.Tensor = (gradient * sigmoid * slope).to(dtype)
    return result


def lowered(region: Region) -> str:
    """Returns the Python program that inductor makes of a region."""
    from torch._inductor import config
    from torch._inductor.debug import DebugContext
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    settings: dict[str, Any] = {
        "cpp_wrapper": False,
        "emulate_precision_casts": True,
        "eager_numerics.division_rounding": True,
        "fallback_random": True,
        "freezing": False,
        "size_asserts": False,
        "cpp.threads": torch.get_num_threads(),
    }
    table = {**select_decomp_table(), torch.ops.aten.silu_backward.default: silu_backward}
    fake = FakeTensorMode()
    with fake, config.patch({k: v for k, v in settings.items() if has_setting(config, k)}):
        inputs = [
            torch.empty_strided(one.sizes, one.strides, dtype=one.dtype) for one in region.inputs
        ]
        traced = make_fx(function_of(region), decomposition_table=table)(*inputs)
        results = traced.graph.find_nodes(op="output")[0]
        results.meta["user_visible_output_idxs"] = list(range(len(region.outputs)))
        results.meta["original_output_strides"] = [list(one.strides) for one in region.outputs]
        graph = GraphLowering(traced)
        with V.set_graph_handler(graph), V.set_fake_mode(fake), DebugContext():
            graph.run(*inputs)
            code: Any = graph.codegen()[0]
    return str(getattr(code, "value", code))


def has_setting(config: Any, name: str) -> bool:
    """Returns whether this version of inductor has the setting."""
    for part in name.split("."):
        if not hasattr(config, part):
            return False
        config = getattr(config, part)
    return True


@dataclasses.dataclass(frozen=True)
class Source:
    """The C++ source of a region, and the bytes of each scratch buffer."""

    text: str
    scratch: list[int]


def source_of(region: Region, symbol: str) -> Source:
    """Returns C++ of a region with one function of this name.

    It raises Refused if inductor makes something else of it than loops.
    """
    loops = Loops()
    code = lowered(region).replace("async_compile = AsyncCompile()", "")
    scope: dict[str, Any] = {"async_compile": loops, "__name__": "region"}
    exec(code, scope)
    scope["empty_strided_cpu"] = loops.allocate
    scope["reinterpret_tensor"] = loops.look
    inputs = [
        Buffer("inputs", k, one.sizes, one.strides, one.dtype)
        for k, one in enumerate(region.inputs)
    ]
    try:
        made = scope["call"](list(inputs))
    except Exception as error:
        raise Refused("inductor calls something else than loops") from error
    outputs: dict[int, int] = {}
    for k, (one, wanted) in enumerate(zip(made, region.outputs, strict=True)):
        if not isinstance(one, Buffer) or one.kind != "scratch" or one.index in outputs:
            raise Refused("a result is no memory of its own")
        if one.dtype != wanted.dtype or not has_layout(one.sizes, one.strides, wanted):
            raise Refused("inductor gives a result another type or layout")
        outputs[one.index] = k
    if not loops.calls:
        raise Refused("inductor makes no loops of it")
    scratch: dict[int, int] = {}

    def pointer(one: Any) -> str:
        if not isinstance(one, Buffer):
            raise Refused("a loop takes something else than memory")
        kind, index = one.kind, one.index
        if kind == "scratch" and index in outputs:
            kind, index = "outputs", outputs[index]
        elif kind == "scratch":
            index = scratch.setdefault(index, len(scratch))
        return f"Pointer{{{kind}[{index}] + {one.offset}}}"

    parts, body = [], []
    for position, source in enumerate(loops.sources):
        include, _, loop = source.strip().partition("\n")
        if "cpp_prefix.h" not in include:
            raise Refused("inductor writes its loops in a form that is not known here")
        name = f"{symbol}_{position}"
        parts.append(re.sub(r'extern "C"\s+void\s+\w+\(', f"static void {name}(", loop, count=1))
    for position, arguments in loops.calls:
        body.append(f"  {symbol}_{position}({', '.join(map(pointer, arguments))});")
    parts.append(
        f'extern "C" __attribute__((visibility("default"))) void {symbol}('
        "char** inputs, char** outputs, char** scratch) {\n" + "\n".join(body) + "\n}\n"
    )
    sizes = [0] * len(scratch)
    for index, position in scratch.items():
        buffer = loops.allocated[index]
        last = sum((size - 1) * s for size, s in zip(buffer.sizes, buffer.strides, strict=True))
        sizes[position] = (last + 1) * buffer.dtype.itemsize
    return Source("\n".join(parts), sizes)


PREFIX = """#include <torch/csrc/inductor/cpp_prefix.h>
namespace {
struct Pointer {
  char* at;
  template <class T>
  operator T*() const { return reinterpret_cast<T*>(at); }
};
}
"""


def build(source: str, name: str, folder: pathlib.Path) -> pathlib.Path:
    """Compiles C++ into a shared object in a folder, with inductor's flags but for signs of zeros.

    It raises Refused if there is no compiler, or it fails.
    """
    from torch._inductor.cpp_builder import CppBuilder, CppTorchOptions
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    file = folder / f"{name}.cpp"
    file.write_text(source)
    options = CppTorchOptions(vec_isa=pick_vec_isa(), warning_all=False)
    builder = CppBuilder(name, str(file), options, output_dir=str(folder))
    command = builder.get_command_line().replace(" -fno-signed-zeros", "")
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Refused(f"the C++ compiler fails: {done.stderr.strip()[:300]}")
    return pathlib.Path(builder.get_target_file_path())


def cache_folder() -> pathlib.Path:
    """Returns the folder in which compiled regions are kept.

    It raises Refused if it belongs to another user, who could put programs there.
    """
    home = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    folder = pathlib.Path(home) / "reprise" / "regions"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise Refused(f"the folder {folder} belongs to another user")
    return folder


def key_of(text: str) -> str:
    """Returns a name for what is compiled of a text in this process, on this machine."""
    parts = [
        str(FORMAT),
        torch.__version__,
        torch.backends.cpu.get_cpu_capability(),
        platform.machine(),
        str(torch.get_num_threads()),
        os.environ.get("CXX", ""),
        text,
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def store(file: pathlib.Path, text: str) -> None:
    """Writes a file at once, so that another process finds all of it or nothing."""
    aside = file.with_suffix(f".{os.getpid()}")
    aside.write_text(text)
    aside.replace(file)


# A region has the file of the shared object, the function, the bytes of its scratch buffers, and
# the reason if there is no such function.
Compiled = tuple[str, str, list[int], str]


def known(folder: pathlib.Path, key: str) -> Compiled | None:
    """Returns what the folder has of a region."""
    try:
        library, symbol, scratch, refusal = json.loads((folder / f"{key}.json").read_text())
    except (OSError, ValueError):
        return None
    if refusal:
        return "", "", [], str(refusal)
    file = folder / library
    return (str(file), symbol, scratch, "") if file.exists() else None


def compile_new(folder: pathlib.Path, texts: dict[str, str]) -> dict[str, Compiled]:
    """Compiles the regions that the folder does not have.

    Args:
        folder: Where the shared object and what is known of the regions are kept.
        texts: The regions by key.
    """
    compiled: dict[str, Compiled] = {}
    sources: dict[str, Source] = {}
    for key, text in texts.items():
        try:
            sources[key] = source_of(parsed(text), f"region_{key}")
        except Exception as error:
            reason = str(error) if isinstance(error, Refused) else f"inductor fails: {error}"
            compiled[key] = ("", "", [], reason.splitlines()[0][:200])
            store(folder / f"{key}.json", json.dumps(compiled[key]))
    groups = [list(sources)] if sources else []
    while groups:
        keys = groups.pop()
        name = "regions_" + hashlib.sha256("".join(keys).encode()).hexdigest()[:24]
        with tempfile.TemporaryDirectory(dir=folder) as aside:
            try:
                text = PREFIX + "\n".join(sources[key].text for key in keys)
                made = build(text, name, pathlib.Path(aside))
                made.replace(folder / made.name)
            except Refused as error:
                if len(keys) > 1:  # One of them fails. The others are compiled without it.
                    groups += [[key] for key in keys]
                else:
                    compiled[keys[0]] = ("", "", [], str(error))
                continue
        for key in keys:
            one = (made.name, f"region_{key}", sources[key].scratch, "")
            store(folder / f"{key}.json", json.dumps(one))
            compiled[key] = (str(folder / made.name), *one[1:])
    return compiled


def compile_regions(texts: list[str]) -> list[Compiled]:
    """Compiles regions; the runtime calls it while it captures a step.

    Args:
        texts: The descriptions.

    Returns:
        What is compiled of each of them.
    """
    keys = [key_of(text) for text in texts]
    found: dict[str, Compiled] = {}

    def work() -> None:
        folder = cache_folder()
        for key in keys:
            one = known(folder, key)
            if one is not None:
                found[key] = one
        new = {key: text for key, text in zip(keys, texts, strict=True) if key not in found}
        if new:
            found.update(compile_new(folder, new))

    failures: list[str] = []

    def guarded() -> None:
        try:
            work()
        except Exception as error:
            failures.append(f"{type(error).__name__}: {error}")

    # The thread of the capture has left autograd and autocast. Inductor gets a thread as a program
    # begins with.
    thread = threading.Thread(target=guarded)
    thread.start()
    thread.join()
    reason = failures[0] if failures else "it was not compiled"
    return [found.get(key, ("", "", [], reason)) for key in keys]


def offer() -> None:
    """Lets the runtime ask this module for kernels of regions."""
    _runtime.compile_regions_with(compile_regions)
