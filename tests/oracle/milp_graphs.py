"""Makes small training graphs for the oracle: random ones, and some like networks."""

import random


class Builder:
    def __init__(self, name):
        self.graph = {"format": "reprise.graph", "version": 1, "name": name, "fixed_bytes": 0,
                      "values": [], "ops": [], "choices": [], "results": []}

    def value(self, name, size, kind="activation"):
        self.graph["values"].append({"id": name, "bytes": size, "kind": kind})
        return name

    def op(self, name, phase, variants):
        self.graph["ops"].append({"id": name, "phase": phase, "variants": variants})


def variant(ns, reads, writes, workspace=0, name="default", **more):
    return {"name": name, "ns": ns, "workspace_bytes": workspace, "reads": reads, "writes": writes,
            **more}


def training_graph(name, forward, rng):
    """forward: by operation, its inputs (by number), bytes, ns. Each backward operation reads the
    gradient of its operation and what this read; gradients of values with several readers add up."""
    build = Builder(name)
    build.value("x", 3, "input")
    for k, (inputs, size, ns) in enumerate(forward):
        reads = [f"v{i}" for i in inputs] or ["x"]
        build.value(f"v{k}", size)
        build.op(f"F{k}", "forward", [variant(ns, reads, [f"v{k}"], rng.randrange(2))])
    last = len(forward) - 1
    build.value(f"g{last}.0", forward[last][1], "gradient")
    build.op("loss", "loss", [variant(1, [f"v{last}"], [f"g{last}.0"])])
    parts = {last: [f"g{last}.0"]}
    for k in range(last, -1, -1):
        inputs, size, ns = forward[k]
        gradients = parts.get(k, [])
        if not gradients:
            continue
        reads = gradients + [f"v{i}" for i in inputs]
        if rng.randrange(2):
            reads.append(f"v{k}")
        writes = []
        for i in inputs:
            name = f"g{i}.{len(parts.setdefault(i, []))}"
            parts[i].append(build.value(name, forward[i][1], "gradient"))
            writes.append(name)
        if not inputs:
            writes.append(build.value(f"w{k}", 2, "gradient"))
            build.graph["results"].append(f"w{k}")
        build.op(f"B{k}", "backward", [variant(2 * ns, reads, writes, rng.randrange(3))])
    return build.graph


def add_ways(graph, rng):
    """Adds second variants, roles, in-place operations, choices."""
    readers = {}
    sizes = {v["id"]: v["bytes"] for v in graph["values"]}
    for op in graph["ops"]:
        for value in op["variants"][0]["reads"]:
            readers.setdefault(value, []).append(op["id"])
    for op in [op for op in graph["ops"] if op["phase"] == "forward"]:
        way = op["variants"][0]
        kind = rng.randrange(5)
        if kind == 0:
            op["variants"].append({**way, "name": "small", "ns": way["ns"] + 1, "workspace_bytes": 0})
        elif kind == 1:
            replay = {**way, "name": "replay", "ns": max(1, way["ns"] - 1), "role": "replay"}
            op["variants"] = [{**way, "role": "first"}, replay]
        elif kind == 2 and sizes[way["reads"][0]] == sizes[way["writes"][0]]:
            if way["reads"][0] != "x" and readers[way["reads"][0]][-1] == op["id"]:
                way["reuses"] = [[way["writes"][0], way["reads"][0]]]
        elif kind == 3 and way["ns"] > 1:
            twin = {"id": op["id"] + ".twin", "phase": "forward",
                    "variants": [{**way, "ns": way["ns"] + 2, "workspace_bytes": 0}]}
            graph["ops"].insert(graph["ops"].index(op) + 1, twin)
            graph["choices"].append({"id": op["id"] + "?",
                                     "realizations": [[op["id"]], [twin["id"]]]})
    return graph


def random_forward(rng, count):
    forward = []
    for k in range(count):
        inputs = sorted(rng.sample(range(k), min(k, rng.choice([1, 1, 2])))) if k else []
        if k and k - 1 not in inputs and rng.randrange(4):
            inputs = sorted({*inputs[1:], k - 1})
        forward.append((inputs, rng.choice([1, 4, 4, 9]), rng.randint(1, 9)))
    return forward


def chain(rng, count):
    return [([k - 1] if k else [], rng.choice([4, 8]), rng.randint(2, 9)) for k in range(count)]


def u_net(rng, depth):
    forward = [([], 16, 4)]
    skips = []
    for level in range(depth):
        skips.append(len(forward) - 1)
        forward.append(([len(forward) - 1], 16 >> level, 3 + rng.randrange(3)))
        forward.append(([len(forward) - 1], 8 >> level, 1))
    for level in range(depth - 1, -1, -1):
        forward.append(([len(forward) - 1], 16 >> level, 2))
        forward.append(([len(forward) - 1, skips[level]], 16 >> level, 4))
    return forward


def residual(rng, blocks):
    forward = [([], 8, 3)]
    for _ in range(blocks):
        start = len(forward) - 1
        for size in (8, 8, 4):
            forward.append(([len(forward) - 1], size, rng.randint(1, 6)))
        forward.append(([len(forward) - 1, start], 8, 1))
    return forward


def recurrent(rng, steps):
    """Makes a state of 2 and gates of 6 a step: to make a state again takes long rows of
    operations.
    """
    forward = [([], 2, 1)]
    for _ in range(steps):
        state = len(forward) - 1
        forward.append(([state], 6, 8))
        forward.append(([len(forward) - 1, state], 2, 1))
    return forward


def cases(seed, full):
    """Yields (graph, share of what lies between the smallest and plain training's peak)."""
    rng = random.Random(seed)
    shapes = [("random", lambda: random_forward(rng, rng.randint(4, 8)))] * (40 if full else 8)
    shapes += [("chain", lambda: chain(rng, 10)), ("u-net", lambda: u_net(rng, 2)),
               ("residual", lambda: residual(rng, 2)), ("recurrent", lambda: recurrent(rng, 5))]
    if full:
        shapes += [("chain of 39", lambda: chain(rng, 39)), ("deep u-net", lambda: u_net(rng, 4)),
                   ("residual of 37", lambda: residual(rng, 9)),
                   ("recurrent of 35", lambda: recurrent(rng, 17))]
    for name, make in shapes:
        graph = training_graph(name, make(), rng)
        if name == "random" and rng.randrange(2):
            graph = add_ways(graph, rng)
        for share in (0.15, 0.5) if name == "random" else (0.2, 0.4, 0.7):
            yield graph, share
