"""A graph network within a budget: messages along edges find the communities of a generated graph.

The graph is drawn from a stochastic block model: nodes of one community are joined more often. Each
node knows noise, and one node in five its community. The network gathers the states of both ends of
each edge, makes a message of them, and adds the messages up at the end of the edge. The tensors of
the edges are most of the memory. The script trains plainly and as a captured step within budgets,
and prints the peak memory, the time of a step, whether all parameters have the same bits
afterwards, and how many of the nodes without a label get their community.
"""

import argparse
import time

import reprise
import torch
from torch import nn
from torch.nn import functional as F


def make_graph(nodes, communities, degree, inside=0.8):
    """Returns the communities of the nodes, and the two ends of edges in both directions.

    A share `inside` of the edges joins nodes of one community.
    """
    of_node = torch.randint(communities, (nodes,))
    count = nodes * degree // 2
    first = torch.randint(nodes, (count,))
    other = torch.randint(nodes, (count,))
    members = [torch.nonzero(of_node == c).flatten() for c in range(communities)]
    # Each edge draws a node of each community, and takes the one of its own.
    mates = torch.stack([m[torch.randint(len(m), (count,))] for m in members])
    mate = mates.gather(0, of_node[first].unsqueeze(0)).squeeze(0)
    other = torch.where(torch.rand(count) < inside, mate, other)
    return of_node, torch.cat([first, other]), torch.cat([other, first])


class MessagePassing(nn.Module):
    """One round: a message of each edge, their mean at each node, and a new state."""

    def __init__(self, width):
        super().__init__()
        self.sender, self.receiver = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.update = nn.Linear(2 * width, width)

    def forward(self, x, source, target, degrees):
        sent = self.sender(x).index_select(0, source)
        received = self.receiver(x).index_select(0, target)
        messages = F.gelu(sent + received)
        sums = torch.zeros_like(x).index_add(0, target, messages)
        return x + F.relu(self.update(torch.cat([x, sums / degrees], 1)))


class GraphNetwork(nn.Module):
    def __init__(self, communities, width, rounds):
        super().__init__()
        self.enter = nn.Linear(communities + 1, width)
        self.rounds = nn.ModuleList([MessagePassing(width) for _ in range(rounds)])
        self.leave = nn.Linear(width, communities)

    def forward(self, features, source, target):
        ones = torch.ones_like(target, dtype=features.dtype)
        degrees = features.new_zeros(len(features)).index_add(0, target, ones)
        degrees = degrees.clamp_min(1).unsqueeze(1)
        x = F.relu(self.enter(features))
        for one in self.rounds:
            x = one(x, source, target, degrees)
        return self.leave(x)


def train(graph, options, budget=None):
    """Returns the parameters, peak, seconds a step, and the share of right answers."""
    of_node, source, target = graph
    torch.manual_seed(1)
    model = GraphNetwork(options.communities, options.width, options.rounds)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    known = torch.rand(options.nodes) < 0.2

    def features_for(shown):
        """The communities of the nodes in `shown`, and a column of noise."""
        labels = F.one_hot(of_node, options.communities) * shown.unsqueeze(1)
        return torch.cat([labels.float(), torch.rand(options.nodes, 1)], 1)

    def loss_of(features, source, target, asked):
        output = model(features, source, target)
        loss = F.cross_entropy(output, of_node, reduction="none")
        loss = (loss * asked).sum() / asked.sum()
        loss.backward()
        return loss

    def sample():
        """Half of the known nodes show their community, and the others are asked for theirs."""
        shown = known & (torch.rand(options.nodes) < 0.5)
        return features_for(shown), source, target, (known & ~shown).float()

    step = loss_of
    if budget is not None:
        step = reprise.capture(loss_of, *sample(), modules=[model])
        step.plan(budget=budget)
    torch.manual_seed(2)
    seconds = []
    for _ in range(options.steps):
        optimizer.zero_grad()
        batch = sample()
        reprise.reset_peak()
        begin = time.perf_counter()
        loss = step(*batch)
        seconds.append(time.perf_counter() - begin)
        peak = reprise.peak_bytes()
        del loss
        optimizer.step()
    with torch.no_grad():
        answers = model(features_for(known), source, target).argmax(1)
    right = (answers == of_node)[~known].float().mean().item()
    return [p.detach().clone() for p in model.parameters()], peak, min(seconds), right


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--degree", type=int, default=20)
    parser.add_argument("--communities", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--budgets", nargs="*", default=["70%", "40%"])
    options = parser.parse_args()
    reprise.install_cpu_allocator()
    torch.manual_seed(0)
    graph = make_graph(options.nodes, options.communities, options.degree)
    plain = None
    for budget in [None, *options.budgets]:
        parameters, peak, seconds, right = train(graph, options, budget)
        plain = plain or (parameters, peak, seconds)
        same = all(torch.equal(a, b) for a, b in zip(parameters, plain[0], strict=True))
        print(
            f"{budget or 'plain':>6}: {peak / 2**20:7.2f} MiB ({peak / plain[1]:.3f}), "
            f"{1e3 * seconds:6.1f} ms a step ({seconds / plain[2]:.2f}), "
            f"{100 * right:.1f} % right, {'same bits' if same else 'other bits'}"
        )
        assert same


if __name__ == "__main__":
    main()
