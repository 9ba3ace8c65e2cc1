"""Compares the predicted time of a pipeline with a run on processes whose stages sleep.

A stage sleeps for a known time forward, for the gradient of its input, and for that of its weight,
so that the processes need no core for themselves. The simulator gets these times and the plan that
runs. The link is measured before: the time of a message between two ranks there and back, small and
as large as those of the pipeline. The measured time is the median of the steps behind the first
one, from one barrier of all ranks to the next.

    torchrun --nproc-per-node 2 bench/python/pipeline_time.py
    torchrun --nproc-per-node 4 bench/python/pipeline_time.py
"""

from __future__ import annotations

import json
import statistics
import time
from datetime import timedelta
from typing import Any

import reprise
import torch
import torch.distributed as dist
from reprise import _core
from torch import nn

MICRO, ROWS, WIDTH, STEPS = 8, 8 * 64, 256, 5
# By case: the seconds that a stage of each rank in turn sleeps forward. Backward it sleeps as long
# for each of its two gradients. The first stage has no gradient of its input, and sleeps twice as
# long for that of its weight.
CASES = {"equal": (0.02, 0.02), "2:3": (0.02, 0.03), "3:1": (0.03, 0.01)}
PLANNERS = ("1f1b", "gpipe", "zb_h1")


class Sleep(torch.autograd.Function):
    """Sleeps forward for some seconds, and backward for others."""

    @staticmethod
    def forward(ctx: Any, x: Any, forward: float, backward: float) -> Any:
        ctx.seconds = backward
        time.sleep(forward)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        time.sleep(ctx.seconds)
        return gradients[0].clone(), None, None


class Sleeper(nn.Module):
    def __init__(self, seconds: float, first: bool) -> None:
        super().__init__()
        self.weight, self.seconds = nn.Parameter(torch.zeros(1)), seconds
        self.for_weight = 2 * seconds if first else seconds

    def forward(self, x: Any) -> Any:
        weight = Sleep.apply(self.weight, 0.0, self.for_weight)
        return Sleep.apply(x, self.seconds, self.seconds) + weight


def link(rank: int) -> tuple[int, int]:
    """Returns the latency in nanoseconds and the bytes per second between the first two ranks."""
    found: list[Any] = []
    for elements in (16, ROWS // MICRO * WIDTH) if rank < 2 else ():
        message, times = torch.zeros(elements), []
        for _ in range(25):
            begin = time.perf_counter_ns()
            for turn in range(2):
                dist.send(message, 1 - rank) if rank == turn else dist.recv(message, 1 - rank)
            times.append((time.perf_counter_ns() - begin) / 2)
        found.append((message.nbytes, statistics.median(times)))
    dist.broadcast_object_list(found_by_first := [found])
    (small, low), (large, high) = found_by_first[0]
    return int(low), int((large - small) * 1e9 / max(1.0, high - low))


def predicted(step: Any, seconds: list[float], latency: int, bandwidth: int) -> int:
    """Returns the time of the step's plan with these times, in nanoseconds."""
    problem = json.loads(json.dumps(step.problem))
    for rank, own in enumerate(seconds):
        stage, facts, ns = problem["chain"]["stages"][rank], problem["stages"][rank], int(own * 1e9)
        stage["forward"]["ns"] = ns
        for option in stage["options"]:
            option["forward"]["ns"], option["backward"]["ns"] = ns, 2 * ns
        facts["weight_part"]["ns"] = ns if rank else 2 * ns
        facts["weight_part"]["input_gradient"]["ns"] = ns if rank else 0
    problem["chain"]["loss"]["ns"] = 0
    for one in problem["links"]:
        one |= {"bytes_per_second": bandwidth, "latency_ns": latency}
    return int(_core.simulate_pipeline(json.dumps(problem), json.dumps(step.plan))[0])


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    latency, bandwidth = link(rank)
    x = torch.randn(ROWS, WIDTH)
    rows = ROWS // MICRO
    for case, times_of_case in CASES.items():
        seconds = [times_of_case[r % 2] for r in range(size)]
        for planner in PLANNERS:
            part = nn.Sequential(Sleeper(seconds[rank], rank == 0))
            step = reprise.pipeline(
                [part],
                x[:rows].clone() if rank == 0 else None,
                micro_batches=MICRO,
                loss=lambda output, target: (output - target).square().sum(),
                target=x[:rows].clone() if rank == size - 1 else None,
                planner=planner,
                name=case,
            )
            times = []
            for _ in range(STEPS + 1):
                part.zero_grad()
                dist.barrier()
                begin = time.perf_counter_ns()
                step.step(*((x,) if rank == 0 else ()), target=x if rank == size - 1 else None)
                dist.barrier()
                times.append(time.perf_counter_ns() - begin)
            measured = statistics.median(times[1:])
            if rank == 0:
                expected = predicted(step, seconds, latency, bandwidth)
                print(
                    f"{case:6} {planner:6} predicted {expected / 1e6:7.1f} ms, measured "
                    f"{measured / 1e6:7.1f} ms, error {100 * (expected / measured - 1):+.1f} %",
                    flush=True,
                )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
