"""Compares the predicted time of a pipeline with a run on two processes whose stages sleep.

A stage sleeps for a known time forward and backward, so that two processes need no core for
themselves. The simulator gets these times and the plan that runs. The link is measured before: the
time of a message there and back, small and as large as those of the pipeline. The measured time is
the median of the steps behind the first one, from one barrier of all ranks to the next.

    torchrun --nproc-per-node 2 bench/python/pipeline_time.py
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
# By case: the seconds that a stage of each rank sleeps forward. Backward it sleeps twice as long.
CASES = {"equal": (0.02, 0.02), "2:3": (0.02, 0.03), "3:1": (0.03, 0.01)}


class Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, seconds: float) -> Any:
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        time.sleep(2 * ctx.seconds)
        return gradients[0].clone(), None


class Sleeper(nn.Module):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.weight, self.seconds = nn.Parameter(torch.zeros(1)), seconds

    def forward(self, x: Any) -> Any:
        return Sleep.apply(x + self.weight, self.seconds)


def link(rank: int) -> tuple[int, int]:
    """Returns the latency in nanoseconds, and the bytes per second."""
    found = []
    for elements in (16, ROWS // MICRO * WIDTH):
        message, times = torch.zeros(elements), []
        for _ in range(25):
            begin = time.perf_counter_ns()
            for turn in range(2):
                dist.send(message, 1 - rank) if rank == turn else dist.recv(message, 1 - rank)
            times.append((time.perf_counter_ns() - begin) / 2)
        found.append((message.nbytes, statistics.median(times)))
    (small, low), (large, high) = found
    return int(low), int((large - small) * 1e9 / max(1.0, high - low))


def predicted(step: Any, seconds: tuple[float, float], latency: int, bandwidth: int) -> int:
    """Returns the time of the step's plan with these times, in nanoseconds."""
    problem = json.loads(json.dumps(step.problem))
    for stage, own in zip(problem["chain"]["stages"], seconds, strict=True):
        stage["forward"]["ns"] = int(own * 1e9)
        for option in stage["options"]:
            option["forward"]["ns"], option["backward"]["ns"] = int(own * 1e9), int(2 * own * 1e9)
    problem["chain"]["loss"]["ns"] = 0
    for one in problem["links"]:
        one |= {"bytes_per_second": bandwidth, "latency_ns": latency}
    return int(_core.simulate_pipeline(json.dumps(problem), json.dumps(step.plan))[0])


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank = dist.get_rank()
    torch.set_num_threads(1)
    latency, bandwidth = link(rank)
    x = torch.randn(ROWS, WIDTH)
    rows = ROWS // MICRO
    for case, seconds in CASES.items():
        for planner in ("1f1b", "gpipe"):
            part = nn.Sequential(Sleeper(seconds[rank]))
            step = reprise.pipeline(
                [part],
                x[:rows].clone() if rank == 0 else None,
                micro_batches=MICRO,
                loss=lambda output, target: (output - target).square().sum(),
                target=x[:rows].clone() if rank == 1 else None,
                planner=planner,
                name=case,
            )
            times = []
            for _ in range(STEPS + 1):
                part.zero_grad()
                dist.barrier()
                begin = time.perf_counter_ns()
                step.step(*((x,) if rank == 0 else ()), target=x if rank == 1 else None)
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
