"""Compares ways to train large networks on a GPU: memory, fragmentation, time, largest batch.

Rows run in other processes (gpu_case.py), so that a row that runs out of memory or crashes says why
and ends nothing else. Rows that share a capture share a process. Per network and precision, at
batches from comfortable to impossible: eager PyTorch, torch.utils.checkpoint per stage,
torch.compile with and without activation_memory_budget, and with Reprise's backend; Reprise in
chain, graph and online mode, with and without host memory and device graphs, and with AdamW inside
the step. Budgets are shares of eager's peak, and the peak of checkpoint. Then the largest batch
that trains in 8 GB and in all of the device.

    python gpu.py --device cuda -o results [--networks gpt] [--precisions bfloat16] [--minutes 8]

gpu.json is written anew after every row, gpu.md at the end. With --resume, rows of an earlier run
on this machine are kept. Several runs may share a device: with --lock they take turns. On the CPU,
peaks are those of Reprise's allocator, and the page says that the figures of a GPU are missing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpu_networks import GPU_NETWORKS, QUICK_BATCH
from gpu_page import BUDGET_SHARE, label, page, told
from gpu_ways import CAPTURING, WAYS, WITH_OPTIMIZER, Case

PRECISIONS = ("float32", "bfloat16")
# The batches are those for which eager training would need these shares of the device's memory.
SIZES = {"tight": 0.8, "beyond": 1.5, "comfortable": 0.25, "far beyond": 3.0}
SMALL = "small"  # so few samples that starting the kernels takes most of the time
GIVEN = "given"  # by --batches
# Budgets as shares of eager's peak, from small to large: a smaller plan then has no memory of a
# larger one in its process.
PEAK_SHARES = {"30 % of it": 0.3, "40 % of it": 0.4, "half of it": 0.5, "eager's peak": 1.0}
BUDGETS = (*PEAK_SHARES, "checkpoint's peak")
# Where all fits, nothing moves, and nothing is made again.
BELOW_PEAK = {way for way in WAYS if "host memory" in way or way == "torch.compile, Reprise"}
KEPT_SHARES = (0.5, 0.2)  # of the activations, for torch.compile
SIMULATED = 8_000_000_000  # bytes
EXPANDABLE = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
Row = dict[str, Any]


class Bench:
    """Runs rows and keeps what was measured."""

    def __init__(self, options: argparse.Namespace, about: Row, total: int | None) -> None:
        self.options, self.about, self.total = options, about, total
        self.gpu = about["device"].startswith("cuda")
        self.begin = time.monotonic()
        self.rows: list[Row] = []
        self.left_out = 0
        self.file = Path(options.output) / "gpu.json"
        self.before: list[Row] = []
        if options.resume and self.file.is_file():
            stored = json.loads(self.file.read_text(encoding="utf-8"))
            if stored["machine"] == about:
                self.before = stored["rows"]
            else:
                print("gpu.json is of another machine or version: all rows are measured again")

    def out_of_time(self) -> bool:
        minutes = self.options.minutes
        return minutes is not None and time.monotonic() - self.begin > 60 * minutes

    def asked_for(
        self, size: str, network: str, precision: str, batch: int, way: str, **more: Any
    ) -> Row:
        """Returns what says which row is meant."""
        expandable = more.pop("expandable", False)
        asked = more.pop("asked", "")
        case = Case(
            network,
            precision,
            batch,
            way,
            self.options.device,
            quick=self.options.quick,
            repeats=self.options.repeats,
            plan_seconds=self.options.plan_seconds,
            backend="inductor" if self.gpu else "aot_eager",
            sim_library=self.options.sim_library,
            deterministic=self.options.deterministic,
            **more,
        )
        return {"size": size, "expandable": expandable, "asked": asked, "case": asdict(case)}

    def rows_of(self, heads: list[Row]) -> list[Row]:
        """Runs rows in one process, or takes them from an earlier run."""
        found: list[Row] = []
        left = [head for head in heads if head["case"]["way"] in self.options.ways]
        for head in list(left):
            for stored in self.before:
                if all(stored[key] == value for key, value in head.items()):
                    self.rows.append(stored)
                    found.append(stored)
                    left.remove(head)
                    break
        while left:
            if self.out_of_time():
                self.left_out += len(left)
                break
            begin = time.monotonic()
            count = len(found)
            for row in run(
                [json.dumps([head["case"] for head in left])],
                self.environment(left[0]),
                self.seconds_left(len(left)),
            ):
                head = left.pop(0)
                row = head | row | {"wall_s": round(time.monotonic() - begin, 1)}
                begin = time.monotonic()
                found.append(row)
                self.rows.append(row)
                self.write()
                case = row["case"]
                about = f"{case['network']}, {case['precision']}, batch {case['batch']}"
                print(f"{about}: {label(row)}: {told(row)}", flush=True)
            assert len(found) > count  # A process that ends gives a reason.
        return found

    def row(self, *case: Any, **more: Any) -> Row:
        """Runs a row in a process of its own."""
        head = self.asked_for(*case, **more)
        return next(iter(self.rows_of([head])), head | {"failed": "it was not run"})

    def environment(self, head: Row) -> dict[str, str]:
        environment = dict(EXPANDABLE) if head["expandable"] else {}
        if self.options.lock:
            environment["REPRISE_BENCH_LOCK"] = os.path.abspath(self.options.lock)
        return environment

    def seconds_left(self, rows: int) -> float:
        """Returns how long a process may take for so many rows."""
        seconds = float(rows * self.options.timeout)
        if self.options.minutes is None:
            return seconds
        return min(seconds, max(1.0, 60 * self.options.minutes - (time.monotonic() - self.begin)))

    def write(self) -> None:
        text = json.dumps({"machine": self.about, "rows": self.rows}, indent=1)
        self.file.write_text(text + "\n", encoding="utf-8")

    def batches(self, network: str, precision: str) -> dict[str, int]:
        """Returns the batches by size, from what eager training needs at two small ones."""
        given = self.options.batches.get(network)
        if given is not None:
            return {GIVEN: given}
        if not self.gpu:
            return {"comfortable": QUICK_BATCH}
        small = GPU_NETWORKS[network][1]
        peaks = []
        for batch in (small, 2 * small):
            found = self.row("probe", network, precision, batch, "eager", asked="")
            if "peak" not in found:
                return {}
            peaks.append(found["peak"])
        each = max(1, (peaks[1] - peaks[0]) / small)
        fixed = peaks[0] - small * each
        assert self.total is not None
        found = {
            size: max(1, int((share * self.total - fixed) / each)) for size, share in SIZES.items()
        }
        return found | {SMALL: small}

    def compare(self, size: str, network: str, precision: str, batch: int) -> None:
        """Runs all ways at one batch."""

        def asked_for(way: str, **more: Any) -> Row:
            return self.asked_for(size, network, precision, batch, way, **more)

        plain = {
            row["case"]["way"]: row.get("peak")
            for row in self.rows_of([asked_for("eager"), asked_for("checkpoint per stage")])
        }
        budgets = self.budgets(plain.get("eager"), plain.get("checkpoint per stage"))
        captured = [way for way in WAYS if way in CAPTURING - WITH_OPTIMIZER]
        self.rows_of(self.planned(asked_for, captured, budgets))
        for head in self.planned(asked_for, ["torch.compile, Reprise"], budgets):
            self.rows_of([head])
        self.rows_of([asked_for("torch.compile")])
        for share in self.options.shares:
            name = f"activation_memory_budget {share}"
            self.rows_of([asked_for("torch.compile", share=share, asked=name)])
        if self.gpu:
            self.rows_of([asked_for("torch.compile, reduce-overhead")])
        others = ["Reprise, chain", "Reprise, chain, host memory", "Reprise, online"]
        for head in self.planned(asked_for, others, budgets):
            self.rows_of([head])
        self.with_optimizer(asked_for)
        if self.gpu and not self.options.no_expandable:
            for way in ("eager", "checkpoint per stage"):
                self.rows_of([asked_for(way, expandable=True)])
            for way in ("Reprise, chain", "Reprise, graph"):
                for head in self.planned(asked_for, [way], budgets, expandable=True):
                    self.rows_of([head])

    def with_optimizer(self, asked_for: Callable[..., Row]) -> None:
        """Runs the ways that have the optimizer inside the step. Their peaks hold its state."""
        peaks = [row.get("peak") for row in self.rows_of([asked_for("eager, AdamW")])]
        ways = [way for way in WAYS if way in CAPTURING & WITH_OPTIMIZER]
        self.rows_of(self.planned(asked_for, ways, self.budgets(peaks[0] if peaks else None, None)))

    def budgets(self, peak: int | None, checkpointed: int | None) -> dict[str, int]:
        """Returns the budgets that were asked for, by name, in bytes."""
        found: dict[str, int] = {}
        if peak is not None:
            found = {name: int(share * peak) for name, share in PEAK_SHARES.items()}
        elif self.total is not None:
            found = {f"{BUDGET_SHARE:.0%} of the device": int(BUDGET_SHARE * self.total)}
        if checkpointed is not None:
            found["checkpoint's peak"] = checkpointed
        wanted = self.options.budgets
        return {name: n for name, n in found.items() if name in wanted or name not in BUDGETS}

    def planned(
        self,
        asked_for: Callable[..., Row],
        ways: list[str],
        budgets: dict[str, int],
        **more: Any,
    ) -> list[Row]:
        """Returns the rows of Reprise's ways at their budgets."""
        return [
            asked_for(way, budget=budget, asked=asked, **more)
            for way in ways
            for asked, budget in budgets.items()
            if (way not in BELOW_PEAK or asked != "eager's peak") and self.possible(way)
        ]

    def possible(self, way: str) -> bool:
        """Returns whether a way is for this device."""
        cpu = self.options.device == "cpu"
        if way == "Reprise, device graph":
            return self.gpu
        return not (cpu and "host memory" in way)

    def largest(self, network: str, precision: str, limit: int | None, name: str) -> None:
        """Searches the largest batch of each way within a limit."""
        ways: list[tuple[str, float | None]] = [("eager", None), ("checkpoint per stage", None)]
        ways += [("torch.compile", None), ("torch.compile", KEPT_SHARES[-1])]
        ways += [("Reprise, chain", None), ("Reprise, graph", None)]
        if self.gpu:
            ways.append(("Reprise, graph, host memory", None))
        for way, share in ways:
            self.row(
                f"largest batch in {name}",
                network,
                precision,
                self.first_batch(network),
                way,
                share=share,
                asked="" if share is None else f"activation_memory_budget {share}",
                limit=limit,
                search=True,
                seconds=0.8 * self.options.timeout,
                budget_share=BUDGET_SHARE,
            )

    def first_batch(self, network: str) -> int:
        """Returns the batch at which a search begins."""
        given: int | None = self.options.batches.get(network)
        if given is not None:
            return given
        return QUICK_BATCH if self.options.quick else GPU_NETWORKS[network][1]

    def run(self) -> None:
        pairs = [(n, p) for n in self.options.networks for p in self.options.precisions]
        batches = {pair: self.batches(*pair) for pair in pairs}
        for size in (*SIZES, SMALL, GIVEN):
            if size not in self.options.sizes:
                continue
            here = [pair for pair in pairs if size in batches[pair]]
            for pair in here:
                if not self.options.only_search:
                    self.compare(size, *pair, batches[pair][size])
            for pair in here:
                if not self.options.no_search:
                    self.search(size, *pair)

    def search(self, size: str, network: str, precision: str) -> None:
        if self.gpu:
            if size in ("tight", GIVEN):
                self.largest(network, precision, SIMULATED, "8 GB")
            elif size == "beyond":
                self.largest(network, precision, None, "all of the device")
        elif size == "comfortable" and (network, precision) == self.first_pair():
            peaks = [r["peak"] for r in self.rows if r["case"]["way"] == "eager" and "peak" in r]
            if peaks:
                limit = 2 * max(peaks)
                self.largest(network, precision, limit, f"{limit / 1e6:.1f} MB")

    def first_pair(self) -> tuple[str, str]:
        return self.options.networks[0], self.options.precisions[0]


def run(arguments: list[str], environment: dict[str, str], seconds: float) -> Iterator[Row]:
    """Runs gpu_case.py, and yields its rows. The last one says why a process ended early.

    This process leaves the device alone, so that rows have all of it.
    """
    script = Path(__file__).resolve().parent / "gpu_case.py"
    command = [sys.executable, "-B", str(script), *arguments]
    wanted = len(json.loads(arguments[0])) if arguments[0] != "--about" else 1
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=os.environ | environment,
        )
        clock = threading.Timer(seconds, process.kill)
        clock.start()
        stopped = time.monotonic() + seconds
        assert process.stdout is not None
        failed = False
        try:
            for line in process.stdout:
                with contextlib.suppress(ValueError):
                    row: Row = json.loads(line)
                    wanted, failed = wanted - 1, "failed" in row
                    yield row
            code = process.wait()
        finally:
            clock.cancel()
        if wanted == 0 or (failed and code == 0):  # After some failures the process ends.
            return
        if time.monotonic() >= stopped:
            yield {"failed": f"it took more than {seconds:.0f} s and was stopped"}
            return
        errors.seek(0)
        last = errors.read().strip().splitlines()[-1:] or ["it printed nothing"]
        ended = f"signal {-code}" if code < 0 else f"code {code}"
        yield {"failed": f"the process ended with {ended}: {last[0][:140]}"}


def written(bench: Bench) -> str:
    """Returns the results as Markdown."""
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    return page(bench.rows, bench.about, command, bench.left_out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, cpu (default: cuda)")
    parser.add_argument("-o", "--output", default=".", help="the folder of gpu.json and gpu.md")
    names = list(GPU_NETWORKS)
    parser.add_argument("--networks", nargs="+", default=names, choices=names, metavar="NAME")
    parser.add_argument(
        "--precisions", nargs="+", default=PRECISIONS, choices=PRECISIONS, metavar="NAME"
    )
    names = list(WAYS)
    parser.add_argument("--ways", nargs="+", default=names, choices=names, metavar="NAME")
    parser.add_argument(
        "--batches", nargs="+", default=[], metavar="NAME=N", help="batches, such as gpt=24"
    )
    names = [*SIZES, SMALL, GIVEN]
    parser.add_argument("--sizes", nargs="+", default=names, choices=names, metavar="NAME")
    parser.add_argument("--budgets", nargs="+", default=BUDGETS, choices=BUDGETS, metavar="NAME")
    parser.add_argument(
        "--shares", nargs="*", type=float, metavar="SHARE", help="activation_memory_budget"
    )
    parser.add_argument("--no-expandable", action="store_true", help="without expandable segments")
    parser.add_argument("--plan-seconds", type=float, default=10.0, help="time limit of a search")
    parser.add_argument("--quick", action="store_true", help="small networks, to see that it works")
    parser.add_argument("--no-search", action="store_true", help="search no largest batches")
    parser.add_argument("--only-search", action="store_true", help="search largest batches only")
    parser.add_argument("--repeats", type=int, default=5, help="measured steps of a row")
    parser.add_argument("--deterministic", action="store_true", help="deterministic algorithms")
    parser.add_argument("--minutes", type=float, help="stop after so many minutes")
    parser.add_argument("--lock", default="", help="a file, for runs that share the device")
    parser.add_argument("--timeout", type=int, default=300, help="seconds for one row")
    parser.add_argument("--resume", action="store_true", help="keep the rows that are in gpu.json")
    parser.add_argument("--sim-library", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.quick = options.quick or not options.device.startswith("cuda")
    if options.shares is None:
        options.shares = KEPT_SHARES if options.device.startswith("cuda") else KEPT_SHARES[:1]
    options.batches = {name: int(n) for name, n in (one.split("=") for one in options.batches)}
    Path(options.output).mkdir(parents=True, exist_ok=True)
    (about,) = run(["--about", options.device, options.sim_library], {}, options.timeout)
    if "failed" in about:
        raise SystemExit(f"gpu.py: {about['failed']}")
    total = about.pop("total")
    bench = Bench(options, about, total)
    bench.run()
    bench.write()
    (Path(options.output) / "gpu.md").write_text(written(bench), encoding="utf-8")
    failed = sum("failed" in row for row in bench.rows)
    print(f"{len(bench.rows)} rows, {failed} of them failed and say why; {bench.left_out} left out")


if __name__ == "__main__":
    main()
