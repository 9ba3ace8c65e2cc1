"""Compares ways to train large networks on a GPU: memory, fragmentation, time, largest batch.

Each row is a process of its own (gpu_case.py), so that a row that runs out of memory or crashes
says why and ends nothing else. Per network and precision, at batches from comfortable to
impossible: eager PyTorch, torch.utils.checkpoint per stage, torch.compile with and without
activation_memory_budget, Reprise in chain, graph and online mode with the peaks of eager and of
checkpoint as budgets, and with half of eager's. Then the largest batch that trains in 8 GB and in
all of the device.

    python gpu.py --device cuda -o results [--networks gpt] [--precisions bfloat16] [--minutes 8]

gpu.json is written anew after every row, gpu.md at the end. With --resume, rows of an earlier run
on this machine are kept. On the CPU, peaks are those of Reprise's allocator, and the page says that
the figures of a GPU are missing.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpu_case import WAYS, Case
from gpu_networks import GPU_NETWORKS, QUICK_BATCH

PRECISIONS = ("float32", "bfloat16")
# The batches are those for which eager training would need these shares of the device's memory.
SIZES = {"tight": 0.8, "beyond": 1.5, "comfortable": 0.25, "far beyond": 3.0}
SMALL = "small"  # so few samples that starting the kernels takes most of the time
BUDGETS = ("eager's peak", "half of it", "checkpoint's peak")
KEPT_SHARES = (0.5, 0.2)  # of the activations, for torch.compile
BUDGET_SHARE = 0.9  # of the memory, for Reprise where eager training has no peak to compare with
SIMULATED = 8_000_000_000  # bytes
EXPANDABLE = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
NOT_THERE = (
    "Values that move to the host, and online mode on a device, are not measured, because Reprise",
    "does not have them yet.",
)

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

    def row(
        self, size: str, network: str, precision: str, batch: int, way: str, **more: Any
    ) -> Row:
        """Runs a row, or takes it from an earlier run."""
        if way not in self.options.ways:
            return {"failed": "not asked for"}
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
            **more,
        )
        head = {"size": size, "expandable": expandable, "asked": asked, "case": asdict(case)}
        for stored in self.before:
            if all(stored[key] == value for key, value in head.items()):
                self.rows.append(stored)
                return stored
        if self.out_of_time():
            self.left_out += 1
            return head | {"failed": "left out: no time left"}
        begin = time.monotonic()
        environment = EXPANDABLE if expandable else {}
        result = head | run([json.dumps(asdict(case))], environment, self.options.timeout)
        result["wall_s"] = round(time.monotonic() - begin, 1)
        self.rows.append(result)
        self.write()
        print(f"{network}, {precision}, batch {batch}: {label(result)}: {told(result)}", flush=True)
        return result

    def write(self) -> None:
        text = json.dumps({"machine": self.about, "rows": self.rows}, indent=1)
        self.file.write_text(text + "\n", encoding="utf-8")

    def batches(self, network: str, precision: str) -> dict[str, int]:
        """Returns the batches by size, from what eager training needs at two small ones."""
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

        def row(way: str, **more: Any) -> Row:
            return self.row(size, network, precision, batch, way, **more)

        plain = row("eager")
        again = row("checkpoint per stage")
        row("torch.compile")
        for share in KEPT_SHARES if self.gpu else KEPT_SHARES[:1]:
            row("torch.compile", share=share, asked=f"activation_memory_budget {share}")
        budgets: dict[str, int] = {}
        if "peak" in plain:
            budgets = {"eager's peak": plain["peak"], "half of it": plain["peak"] // 2}
        elif self.total is not None:
            budgets = {f"{BUDGET_SHARE:.0%} of the device": int(BUDGET_SHARE * self.total)}
        if "peak" in again:
            budgets["checkpoint's peak"] = again["peak"]
        wanted = self.options.budgets
        budgets = {name: n for name, n in budgets.items() if name in wanted or name not in BUDGETS}
        for asked, budget in budgets.items():
            for mode in ("chain", "graph", "device graph", "online"):
                if (mode == "device graph") <= self.gpu and (mode == "online") <= (not self.gpu):
                    row(f"Reprise, {mode}", budget=budget, asked=asked)
        if self.gpu and not self.options.no_expandable:
            row("eager", expandable=True)
            row("checkpoint per stage", expandable=True)
            for asked, budget in budgets.items():
                for mode in ("chain", "graph"):
                    row(f"Reprise, {mode}", budget=budget, asked=asked, expandable=True)

    def largest(self, network: str, precision: str, limit: int | None, name: str) -> None:
        """Searches the largest batch of each way within a limit."""
        ways: list[tuple[str, float | None]] = [("eager", None), ("checkpoint per stage", None)]
        ways += [("torch.compile", None), ("torch.compile", KEPT_SHARES[-1])]
        ways += [("Reprise, chain", None), ("Reprise, graph", None)]
        for way, share in ways:
            self.row(
                f"largest batch in {name}",
                network,
                precision,
                QUICK_BATCH if self.options.quick else GPU_NETWORKS[network][1],
                way,
                share=share,
                asked="" if share is None else f"activation_memory_budget {share}",
                limit=limit,
                search=True,
                seconds=0.8 * self.options.timeout,
                budget_share=BUDGET_SHARE,
            )

    def run(self) -> None:
        pairs = [(n, p) for n in self.options.networks for p in self.options.precisions]
        batches = {pair: self.batches(*pair) for pair in pairs}
        for number, size in enumerate((*SIZES, SMALL) if self.gpu else ("comfortable",)):
            if size not in self.options.sizes:
                continue
            for pair in pairs:
                if size in batches[pair]:
                    self.compare(size, *pair, batches[pair][size])
            if number < 2 and not self.options.no_search:
                for pair in pairs if self.gpu else pairs[:1]:
                    self.search(number, *pair)

    def search(self, number: int, network: str, precision: str) -> None:
        if self.gpu:
            limit, name = ((SIMULATED, "8 GB"), (None, "all of the device"))[number]
            self.largest(network, precision, limit, name)
        elif number == 0:
            peaks = [r["peak"] for r in self.rows if r["case"]["way"] == "eager" and "peak" in r]
            if peaks:
                limit = 2 * max(peaks)
                self.largest(network, precision, limit, f"{limit / 1e6:.1f} MB")


def run(arguments: list[str], environment: dict[str, str], timeout: int) -> Row:
    """Runs gpu_case.py. This process leaves the device alone, so that rows have all of it."""
    script = Path(__file__).resolve().parent / "gpu_case.py"
    command = [sys.executable, "-B", str(script), *arguments]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout,
            env=os.environ | environment,
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"it took more than {timeout} s and was stopped"}
    try:
        found: Row = json.loads(done.stdout.splitlines()[-1])
        return found
    except (IndexError, ValueError):
        last = done.stderr.strip().splitlines()[-1:] or ["it printed nothing"]
        ended = f"signal {-done.returncode}" if done.returncode < 0 else f"code {done.returncode}"
        return {"failed": f"the process ended with {ended}: {last[0][:140]}"}


def label(row: Row) -> str:
    asked = f", {row['asked']}" if row["asked"] else ""
    return f"{row['case']['way']}{asked}{', expandable segments' if row['expandable'] else ''}"


def told(row: Row) -> str:
    if "failed" in row:
        return str(row["failed"])
    if "largest" in row:
        return f"largest batch {row['largest']} ({row['tries']} tries)"
    prepared = f", prepared in {row['prepare_s']:.1f} s" if row["prepare_s"] > 0.1 else ""
    return f"peak {row['peak'] / 1e6:,.1f} MB, {1e3 * row['seconds']:.1f} ms{prepared}"


def digests_of(row: Row) -> set[tuple[int, ...]]:
    return {tuple(one) for one in row.get("digests", [])}


def comparison(rows: list[Row]) -> Iterator[str]:
    """Yields the table of one network, precision and batch."""
    by_way = {(r["case"]["way"], r["asked"], r["expandable"]): r for r in rows}
    plain = by_way.get(("eager", "", False), {})
    digests = digests_of(plain)
    repeats = len(digests) == 1
    yield "| way | budget | peak | reserved | in pieces | time | to eager | predicted | bits |"
    yield "|---|---|--:|--:|--:|--:|--:|--:|---|"
    for row in rows:
        way = row["case"]["way"] + (", expandable segments" if row["expandable"] else "")
        head = f"| {way} | {row['asked']} |"
        if "failed" in row:
            yield f"{head} - | - | - | - | - | - | {row['failed'].replace('|', '/')} |"
            continue
        cells = [f"{row['peak'] / 1e6:,.1f}"]
        if row["reserved"]:
            pieces = 100 * (1 - row["peak"] / row["reserved"])
            cells += [f"{row['reserved'] / 1e6:,.1f}", f"{pieces:.1f} %"]
        else:
            cells += ["", ""]
        cells.append(f"{1e3 * row['seconds']:.1f}")
        ratio = row["seconds"] / plain["seconds"] if "seconds" in plain else None
        cells.append("" if ratio is None else f"{ratio:.2f}")
        off = row.get("predicted")
        cells.append("" if off is None else f"{100 * (off / row['peak'] - 1):+.2f} %")
        if not digests:
            bits = ""
        elif row is plain:
            bits = "repeats its own" if repeats else "does not repeat its own"
        else:
            bits = "equal" if digests_of(row) == digests else "differ"
        over = row.get("budget") and row["peak"] > row["budget"]
        cells.append(bits + (", **over the budget**" if over else ""))
        yield f"{head} {' | '.join(cells)} |"


def page(bench: Bench) -> str:
    """Returns the results as Markdown."""
    about = bench.about
    lines = [
        "# GPU benchmark",
        "",
        "A program writes this file, so do not edit it. This command does:",
    ]
    lines += ["", f"    python {shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])}", ""]
    if not bench.gpu:
        lines += [
            "**This is a run without a GPU. Figures of a GPU are missing.** It shows that the"
        ]
        lines += ["benchmark works. Peaks are those of the allocator that counts, which keeps no"]
        lines += ["freed memory, and sizes are small.", ""]
    lines += [f"- {name}: {value}" for name, value in about.items()]
    lines += [
        "",
        "Peaks are in MB and times in ms, the median of some steps: forward, loss, backward.",
    ]
    lines += [
        "Peak and reserved are those of the device's allocator in steps after the first ones."
    ]
    lines += ["*In pieces* is the share of the reserved memory that the peak leaves unused."]
    lines += ["*Predicted* is how far the prediction is from the peak. Algorithms need not be"]
    lines += [
        "deterministic here, so that bits can differ where eager does not repeat its own; the"
    ]
    lines += ["device suite compares bits with deterministic ones.", "", *NOT_THERE, ""]
    if bench.left_out:
        lines += [f"**{bench.left_out} rows were left out, because the time was over.**", ""]
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in bench.rows:
        case = row["case"]
        if not case["search"] and row["size"] != "probe":
            key = (case["network"], case["precision"], case["batch"], row["size"])
            groups.setdefault(key, []).append(row)
    for (network, precision, batch, size), rows in groups.items():
        lines += [f"## {network}, {precision}, batch {batch} ({size})", "", *comparison(rows), ""]
    searches = [row for row in bench.rows if row["case"]["search"]]
    if searches:
        lines += ["## Largest batch that trains", ""]
        lines += [f"Reprise plans for {BUDGET_SHARE:.0%} of the limit, because the allocator needs"]
        lines += ["room for pieces. A batch was tried with two steps; the next larger one that was"]
        lines += ["tried failed for the reason in the last column.", ""]
        lines += ["| limit | network | precision | way | batch | next | why it failed |"]
        lines += ["|---|---|---|---|--:|--:|---|"]
    for row in searches:
        case = row["case"]
        limit = row["size"].removeprefix("largest batch in ")
        cells = [limit, case["network"], case["precision"], label(row)]
        failed = row.get("failed")
        cells += ["-", "-", failed] if failed else [row["largest"], row["smallest_failed"] or ""]
        if not failed:
            cells.append(row["reason"] or "the time of the search was over")
        lines.append(f"| {' | '.join(str(cell).replace('|', '/') for cell in cells)} |")
    return "\n".join(lines).rstrip() + "\n"


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
    names = [*SIZES, SMALL]
    parser.add_argument("--sizes", nargs="+", default=names, choices=names, metavar="NAME")
    parser.add_argument("--budgets", nargs="+", default=BUDGETS, choices=BUDGETS, metavar="NAME")
    parser.add_argument("--no-expandable", action="store_true", help="without expandable segments")
    parser.add_argument("--plan-seconds", type=float, default=10.0, help="time limit of a search")
    parser.add_argument("--quick", action="store_true", help="small networks, to see that it works")
    parser.add_argument("--no-search", action="store_true", help="search no largest batches")
    parser.add_argument("--repeats", type=int, default=5, help="measured steps of a row")
    parser.add_argument("--minutes", type=float, help="begin no row after so many minutes")
    parser.add_argument("--timeout", type=int, default=300, help="seconds for one row")
    parser.add_argument("--resume", action="store_true", help="keep the rows that are in gpu.json")
    parser.add_argument("--sim-library", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.quick = options.quick or not options.device.startswith("cuda")
    Path(options.output).mkdir(parents=True, exist_ok=True)
    about = run(["--about", options.device, options.sim_library], {}, options.timeout)
    if "failed" in about:
        raise SystemExit(f"gpu.py: {about['failed']}")
    total = about.pop("total")
    bench = Bench(options, about, total)
    bench.run()
    bench.write()
    (Path(options.output) / "gpu.md").write_text(page(bench), encoding="utf-8")
    failed = sum("failed" in row for row in bench.rows)
    print(f"{len(bench.rows)} rows, {failed} of them failed and say why; {bench.left_out} left out")


if __name__ == "__main__":
    main()
