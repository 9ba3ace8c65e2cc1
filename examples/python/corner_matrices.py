"""An endless network of tensors in a tenth of its memory: corner matrices of the Ising model.

The lattice around a spin is four corners and four edges. Each move puts one more row and column
into them, and keeps the largest singular vectors of the corner (Nishino and Okunishi 1996). The
moves are a chain of stages. The gradient by the coupling K runs through all decompositions (Liao
et al., arXiv 1903.09650), and is minus the energy of a spin.

The script differentiates the chain plainly and within a budget, and compares both with Onsager's
solution.
"""

import argparse
import math
import time

import reprise
import torch
from reprise.nn import safe_svd


def spin(coupling):
    """Returns the tensor of one spin, the corner and the edge of the smallest lattice."""
    root = torch.stack([(2 * coupling.cosh()).sqrt(), (2 * coupling.sinh()).sqrt()])
    legs = torch.arange(2)
    even = (legs.view(2, 1, 1, 1) + legs.view(2, 1, 1) + legs.view(2, 1) + legs) % 2 == 0
    one = torch.einsum("u,l,d,r->uldr", root, root, root, root) * even / 2
    return one, one.sum((0, 1)), one.sum(0)


def move(one, corner, edge, bond):
    """Puts a row and a column into the corner and the edge, and cuts them to the bond."""
    wide = torch.einsum("xy,xup,yvq,uvrs->prqs", corner, edge, edge, one)
    size = 2 * wide.size(0)
    square = wide.reshape(size, size)
    square = (square + square.mT) / 2
    kept = safe_svd(square).u[:, :bond]
    legs = kept.reshape(size // 2, 2, -1)
    corner = kept.mT @ square @ kept
    edge = torch.einsum("xuy,uwrs,xwi,ysj->irj", edge, one, legs, legs)
    corner, edge = corner + corner.mT, edge + edge.permute(2, 1, 0)
    return one, corner / corner.norm(), edge / edge.norm()


def close(one, corner, edge):
    """Returns ln Z of a spin: a site times four corners over two edges between corners."""
    row, pair = torch.einsum("xy,yuz,zw->xuw", corner, edge, corner), corner @ corner
    site = torch.einsum("xuw,wrz,zdy,ylx,uldr->", row, edge, row, edge, one)
    edges = torch.einsum("xy,yuz,zw,wux->", pair, edge, pair, edge)
    return site.log() + (pair @ pair).trace().log() - 2 * edges.log()


def make_stages(bond, moves):
    moved = [lambda values: move(*values, bond) for _ in range(moves)]
    return [spin, *moved, lambda values: close(*values)]


def onsager(coupling, points=1 << 15):
    """Returns ln Z of a spin of an infinite lattice, and its energy."""
    k = torch.tensor(coupling, requires_grad=True)
    angle = (torch.arange(points) + 0.5) * (math.pi / 2 / points)
    modulus = 2 * (2 * k).sinh() / (2 * k).cosh().square()
    inner = (1 - (modulus * angle.sin()).square()).sqrt()
    exact = (math.sqrt(2) * (2 * k).cosh()).log() + (1 + inner).log().mean() / 2
    exact.backward()
    return exact.item(), -k.grad.item()


def differentiate(name, coupling, forward):
    """Prints ln Z, the energy, the peak and the time, and returns ln Z and the gradient."""
    k = torch.tensor(coupling, requires_grad=True)
    reprise.reset_peak()
    begin = time.perf_counter()
    found = forward(k)
    found.backward()
    took, peak = time.perf_counter() - begin, reprise.peak_bytes()
    numbers = f"{found.item():.12f} {-k.grad.item():.12f}"
    print(f"  {name:<12} {numbers} {peak / 1e6:9.2f} MB {took:7.2f} s")
    return found.detach(), k.grad


def plainly(stages, values):
    for stage in stages:
        values = stage(values)
    return values


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bond", type=int, default=16)
    parser.add_argument("--moves", type=int, default=60)
    parser.add_argument("--budget", default="10%")
    parser.add_argument("--couplings", type=float, nargs="*", default=[0.40, 0.50])
    options = parser.parse_args()
    reprise.install_cpu_allocator()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)  # The matrices are small.
    stages = make_stages(options.bond, options.moves)
    for coupling in options.couplings:
        exact, energy = onsager(coupling)
        print(f"K = {coupling}: ln Z of a spin, energy, peak, time")
        print(f"  {'Onsager':<12} {exact:.12f} {energy:.12f}")
        plain = differentiate("plain", coupling, lambda k: plainly(stages, k))
        sample = torch.tensor(coupling, requires_grad=True)
        model = reprise.remat(stages, sample, budget=options.budget, loss=lambda out: out)
        planned = differentiate(f"in {options.budget}", coupling, model)
        report = model.report()
        same = all(map(torch.equal, plain, planned))
        foretold = report.predicted_peak_bytes == report.measured_peak_bytes
        print(
            f"  bits are {'equal' if same else 'DIFFERENT'}, the peak is "
            f"{'the predicted one' if foretold else 'NOT THE PREDICTED ONE'}"
        )
        if not same or not foretold:
            raise SystemExit(1)


if __name__ == "__main__":
    main()
