"""Measures what attention's projections, norms and soft-max would save by blocks of rows.

Projections: in the measured graph of a step, each layer norm becomes one op with the product behind
it, and each product whose result is only added to something becomes one op with this sum. So do the
projections of attention, and the first and last products of perceptrons. What lies between them
then does not exist, and the backward makes the result of the norm again. The blocks themselves cost
nothing there, so no implementation can do better.

Soft-max and norms: the time of one call after the other on whole tensors, each over an operand
where that is possible, against the time of the same calls on one tile of rows after the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import reprise
import torch
from by_rows import NETWORKS
from networks import Network
from side_by_side import plain
from stored_page import Page, arguments, steady_memory
from torch import Tensor

SHARES = (1.0, 0.5, 0.3)
TILE = 1 << 16  # elements
aten = torch.ops.aten


def kind(op: dict[str, Any]) -> str:
    """Returns the operator of "12:add_.Tensor@block0": "add_"."""
    name: str = op["id"]
    return name.split(":")[1].split("@")[0].split(".")[0]


def names(op: dict[str, Any], key: str) -> list[str]:
    return [value for variant in op["variants"] for value in variant.get(key, [])]


class Fusion:
    """Joins ops of a graph (a dict of its file format) that need not leave values whole."""

    def __init__(self, graph: dict[str, Any]) -> None:
        self.graph = graph
        chosen = {
            op
            for choice in graph.get("choices", [])
            for realization in choice["realizations"]
            for op in realization["ops"]
        }
        self.ops = [op for op in graph["ops"] if op["id"] not in chosen]
        self.chosen = [op for op in graph["ops"] if op["id"] in chosen]
        self.joined = 0

    def readers(self, value: str) -> list[dict[str, Any]]:
        return [op for op in [*self.ops, *self.chosen] if value in names(op, "reads")]

    def run(self) -> int:
        """Returns how many ops were joined to another."""
        for op in list(self.ops):
            if kind(op) == "native_layer_norm":
                self.join_norm(op)
            elif kind(op) in ("mm", "addmm") and op.get("phase", "forward") == "forward":
                self.join_additions(op)
        kept = {op["id"] for op in [*self.ops, *self.chosen]}
        self.graph["ops"] = [op for op in self.graph["ops"] if op["id"] in kept]
        used = {v for op in self.graph["ops"] for k in ("reads", "writes") for v in names(op, k)}
        self.graph["values"] = [
            v for v in self.graph["values"] if v["id"] in used or v.get("kind") == "input"
        ]
        return self.joined

    def join_norm(self, norm: dict[str, Any]) -> None:
        """The product behind a norm also makes the statistics; the backward reads the operand."""
        variant = norm["variants"][0]
        result, *statistics = variant["writes"]
        readers = self.readers(result)
        forward = [op for op in readers if op.get("phase", "forward") == "forward"]
        backward = [op for op in readers if op.get("phase") == "backward"]
        if len(forward) != 1 or len(backward) != 1 or any(op in self.chosen for op in readers):
            return
        product = forward[0]["variants"][0]
        forward[0]["variants"] = [product]
        product["writes"] += statistics
        for one in (product, *backward[0]["variants"]):
            one["ns"] += variant["ns"]
            reads = [value for value in one["reads"] if value != result]
            wanted = variant["reads"] + (statistics if one is not product else [])
            one["reads"] = reads + [value for value in wanted if value not in reads]
            one["reuses"] = [pair for pair in one.get("reuses", []) if pair[1] != result]
        self.ops.remove(norm)
        self.joined += 1

    def join_additions(self, product: dict[str, Any]) -> None:
        """The additions that alone read a product's result run with the product, at their place."""
        last, behind = product, []
        while len(readers := self.readers(last["variants"][0]["writes"][0])) == 1:
            if readers[0] in self.chosen or kind(readers[0]) not in ("add", "add_"):
                break
            last = readers[0]
            behind.append(last)
        if (
            last is product or len(last["variants"][0]["reads"]) < 2
        ):  # no sum, or that with the bias alone
            return
        variant = product["variants"][0]
        for op in behind:
            add, made = op["variants"][0], variant["writes"][0]
            variant["ns"] += add["ns"]
            variant["reads"] += [value for value in add["reads"] if value != made]
            variant["writes"] = add["writes"]
            self.ops.remove(op)
        product["variants"] = [variant]
        order = self.graph["ops"]
        order.remove(product)
        order.insert(order.index(last), product)
        self.joined += len(behind)


def measured_graph(network: Network) -> dict[str, Any]:
    step = plain(network)
    captured = reprise.capture(lambda _: step(), network.x, modules=[network.module])
    graph: dict[str, Any] = captured.profile().to_dict()["problem"]
    return graph


def projections(networks: dict[str, Callable[[], Network]], say: Callable[[str], None]) -> None:
    say("\n## Projections as if they ran by rows\n")
    say("Planned time over plain training's; in brackets the bound. In the second row of a network")
    say(
        "a norm and the product behind it are one op, and so are a product and the sum behind it.\n"
    )
    say("| network | ops | " + " | ".join(f"{share:.1f}" for share in SHARES) + " | smallest |")
    say("|---|--:|" + "--:|" * (len(SHARES) + 1))
    for name, make in networks.items():
        torch.manual_seed(0)
        network = make()
        graph = measured_graph(network)
        whole = reprise.plan(graph, budget="100%").plan
        assert whole is not None
        peak, least = whole.baseline.peak_bytes, whole.baseline.time_ns
        for joined in (False, True):
            row = f"{Fusion(graph).run()} fewer" if joined else str(len(graph["ops"]))
            cells = []
            for share in SHARES:
                result = reprise.plan(graph, budget=int(share * peak))
                found = result.plan
                cells.append(
                    f"{found.time_ns / least:.3f} ({found.lower_bound_ns / least:.3f})"
                    if found
                    else "-"
                )
            smallest = reprise.plan(graph, budget=1).smallest_budget_bytes
            cells.append(f"{smallest / peak:.3f}" if smallest else "-")
            say(f"| {name} | {row} | {' | '.join(cells)} |")


def in_blocks(rows: int, width: int, tensors: list[Tensor]) -> list[list[Tensor]]:
    """Returns the rows of each tile of each tensor, as matrices."""
    count = max(1, TILE // width)
    flat = [tensor.view(rows, width) for tensor in tensors]
    return [[one[k : k + count] for one in flat] for k in range(0, rows, count)]


def least_times(parts: dict[str, Callable[[], None]], repeats: int) -> dict[str, float]:
    least = dict.fromkeys(parts, float("inf"))
    for _ in range(3 * repeats):
        for name, part in parts.items():
            begin = time.process_time()
            part()
            least[name] = min(least[name], time.process_time() - begin)
    return least


def soft_max(rows: int, width: int) -> dict[str, Callable[[], None]]:
    """Scale, soft-max and dropout's factors, and their backward."""
    shape = (rows, width)
    scores, factors, gradient = torch.randn(shape), torch.rand(shape), torch.randn(shape)
    soft, dropped, back = (torch.empty(shape) for _ in range(3))
    block = torch.empty(max(1, TILE // width), width)
    tiles = in_blocks(rows, width, [scores, factors, gradient, soft, dropped, back])

    def forward(s: Tensor, f: Tensor, p: Tensor, d: Tensor, t: Tensor) -> None:
        torch.mul(s, 0.125, out=t)
        aten._softmax.out(t, -1, False, out=p)
        torch.mul(p, f, out=d)

    def backward(g: Tensor, f: Tensor, p: Tensor, t: Tensor, b: Tensor) -> None:
        torch.mul(g, f, out=t)
        aten._softmax_backward_data.out(t, p, -1, torch.float32, grad_input=t)
        torch.mul(t, 0.125, out=b)

    def tiled_forward() -> None:
        for s, f, _, p, d, _ in tiles:
            forward(s, f, p, d, block[: len(s)])

    def tiled_backward() -> None:
        for _, f, g, p, _, b in tiles:
            backward(g, f, p, block[: len(g)], b)

    return {
        "forward": lambda: forward(scores, factors, soft, dropped, soft),
        "forward in tiles": tiled_forward,
        "backward": lambda: backward(gradient, factors, soft, back, back),
        "backward in tiles": tiled_backward,
    }


def norm(rows: int, width: int) -> dict[str, Callable[[], None]]:
    """A residual sum and a layer norm; the gradient of the norm's operand and its sum."""
    shape = (rows, width)
    x, branch, gradient, other = (torch.randn(shape) for _ in range(4))
    weight, bias = torch.randn(width), torch.randn(width)
    total, result, back = (torch.empty(shape) for _ in range(3))
    _, mean, scale = aten.native_layer_norm(x, [width], weight, bias, 1e-5)
    statistics = in_blocks(rows, 1, [mean, scale])[0]
    tiles = in_blocks(rows, width, [x, branch, total, result, gradient, other, back])
    count = max(1, TILE // width)

    def forward(a: Tensor, b: Tensor, t: Tensor, y: Tensor) -> None:
        torch.add(a, b, out=t)
        y.copy_(aten.native_layer_norm(t, [width], weight, bias, 1e-5)[0])

    def backward(g: Tensor, a: Tensor, m: Tensor, s: Tensor, o: Tensor, b: Tensor) -> None:
        mask = [True, False, False]
        dx = aten.native_layer_norm_backward(g, a, [width], m, s, weight, bias, mask)[0]
        torch.add(dx, o, out=b)

    def tiled_forward() -> None:
        for a, b, t, y, *_ in tiles:
            forward(a, b, t, y)

    def tiled_backward() -> None:
        for k, (a, _, _, _, g, o, b) in enumerate(tiles):
            m, s = (one[k * count : (k + 1) * count] for one in statistics)
            backward(g, a, m, s, o, b)

    return {
        "forward": lambda: forward(x, branch, total, result),
        "forward in tiles": tiled_forward,
        "backward": lambda: backward(gradient, x, mean, scale, other, back),
        "backward in tiles": tiled_backward,
    }


def soft_max_and_norms(repeats: int, say: Callable[[str], None]) -> None:
    say("\n## Soft-max and norms in tiles\n")
    say(f"Milliseconds; tiles of {TILE} elements, called from Python.\n")
    say("| calls | rows | forward | in tiles | backward | in tiles |")
    say("|---|---|--:|--:|--:|--:|")
    for name, make, shapes in (
        ("scale, soft-max, dropout", soft_max, ((4096, 256), (16384, 256), (16384, 1024))),
        ("residual sum, layer norm", norm, ((1024, 256), (8192, 768), (16384, 1024))),
    ):
        for rows, width in shapes:
            times = least_times(make(rows, width), repeats)
            cells = " | ".join(f"{1e3 * one:.2f}" for one in times.values())
            say(f"| {name} | {rows}x{width} | {cells} |")


def main() -> None:
    options = arguments(__doc__, repeats=5).parse_args()
    steady_memory()
    say = Page(options.output, "Soft-max, norms and projections by rows")
    soft_max_and_norms(options.repeats, say)
    projections({name: NETWORKS[name] for name in NETWORKS if name.startswith("GPT")}, say)


if __name__ == "__main__":
    main()
