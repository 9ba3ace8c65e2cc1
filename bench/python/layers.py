"""Measures the activations of reprise.nn beside plain ones: what they keep, their time and error.

One activation of a tensor runs forward and backward. The kept bytes are those that live between the
two, beside input and result. Times are the least of several runs, which take turns; they are over
those of the activation written out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import reprise
import torch
from stored_page import Page, arguments, steady_memory
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

Function = Callable[[torch.Tensor], torch.Tensor]


def tanh_gelu(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1 + (0.7978845608028654 * (x + 0.044715 * x**3)).tanh())


def swish(x: torch.Tensor) -> torch.Tensor:
    return x * x.sigmoid()


def mish(x: torch.Tensor) -> torch.Tensor:
    return x * F.softplus(x).tanh()


def hard_swish(x: torch.Tensor) -> torch.Tensor:
    return x * F.relu6(x + 3) / 6


# The activation written out, PyTorch's own operator, and the name of the few-bit one.
ACTIVATIONS: dict[str, tuple[Function, Function, str]] = {
    "GELU (tanh)": (tanh_gelu, lambda x: F.gelu(x, approximate="tanh"), "gelu-tanh"),
    "Swish": (swish, F.silu, "silu"),
    "Mish": (mish, F.mish, "mish"),
    "hard-swish": (hard_swish, F.hardswish, "hard-swish"),
}


def measure(call: Function, x: torch.Tensor, g: torch.Tensor) -> tuple[float, float, torch.Tensor]:
    """Returns seconds, the bytes an element that are kept, and the gradient."""
    leaf = x.detach().requires_grad_()
    before = reprise.live_bytes()
    begin = time.perf_counter()
    result = call(leaf)
    kept = reprise.live_bytes() - before - result.nbytes
    result.backward(g)
    seconds = time.perf_counter() - begin
    assert leaf.grad is not None
    return seconds, kept / x.numel(), leaf.grad


def main() -> None:
    parser = arguments(__doc__, repeats=9)
    parser.add_argument("--elements", type=int, default=1 << 22)
    options = parser.parse_args()
    steady_memory()
    say = Page(options.output, "Layers that keep less")
    say(f"- Tensors have {options.elements:,} numbers, float32.")
    say(
        "- Kept: bytes an element, beside input and result. Error: of the gradient, relative to the"
    )
    say("  largest one. Time: forward and backward, over the first row.")
    torch.manual_seed(0)
    x, g = torch.randn(options.elements), torch.randn(options.elements)
    for name, (written, native, few) in ACTIVATIONS.items():
        calls: dict[str, Function] = {
            "written out": written,
            "`torch.utils.checkpoint`": partial(checkpoint, written, use_reentrant=False),
            "`ForwardAD`": reprise.nn.ForwardAD(written),
            "`ForwardAD`, 8 bits": reprise.nn.ForwardAD(written, storage=torch.int8),
            "`InTile`": reprise.nn.InTile(written),
            "PyTorch's operator": native,
            "`FewBit`, 3 bits": reprise.nn.FewBit(few, bits=3),
        }
        least: dict[str, float] = {}
        rest: dict[str, tuple[float, torch.Tensor]] = {}
        for repeat in range(options.repeats + 1):
            for row, call in calls.items():
                seconds, kept, gradient = measure(call, x, g)
                rest[row] = kept, gradient
                if repeat > 0:
                    least[row] = min(least.get(row, seconds), seconds)
        exact = rest["written out"][1]
        say(f"\n## {name}\n")
        nanoseconds = least["written out"] / options.elements * 1e9
        say(f"Written out it takes {nanoseconds:.1f} ns an element.\n")
        say("| function | kept | time | error |")
        say("|---|--:|--:|--:|")
        for row in calls:
            kept, gradient = rest[row]
            error = float((gradient - exact).abs().max() / exact.abs().max())
            said = "equal" if torch.equal(gradient, exact) else f"{error:.0e}"
            say(f"| {row} | {kept:.2f} | {least[row] / least['written out']:.2f} | {said} |")


if __name__ == "__main__":
    main()
