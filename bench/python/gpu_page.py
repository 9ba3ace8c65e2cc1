"""The page of the GPU benchmark's results, as Markdown.

    python gpu_page.py first/gpu.json second/gpu.json > gpu.md

prints one page of the rows of several runs on one machine.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu_ways import WITH_OPTIMIZER

Row = dict[str, Any]

BUDGET_SHARE = 0.9  # of the memory, for Reprise where eager training has no peak to compare with


def label(row: Row) -> str:
    asked = f", {row['asked']}" if row["asked"] else ""
    return f"{row['case']['way']}{asked}{', expandable segments' if row['expandable'] else ''}"


def told(row: Row) -> str:
    if "failed" in row:
        return str(row["failed"])
    if "largest" in row:
        return f"largest batch {row['largest']} ({row['tries']} tries)"
    prepared = f", prepared in {row['prepare_s']:.1f} s" if row["prepare_s"] > 0.1 else ""
    moved = f", {row['moved_out'] / 1e6:,.1f} MB moved" if row.get("moved_out") else ""
    return f"peak {row['peak'] / 1e6:,.1f} MB, {1e3 * row['seconds']:.1f} ms{moved}{prepared}"


def comparison(rows: list[Row]) -> Iterator[str]:
    """Yields the table of one network, precision and batch."""
    by_way = {(r["case"]["way"], r["asked"], r["expandable"]): r for r in rows}
    names = ["way", "budget", "peak", "reserved", "in pieces", "time", "to eager", "predicted"]
    yield f"| {' | '.join([*names, 'moved', 'bits'])} |"
    yield "|---|---|--:|--:|--:|--:|--:|--:|--:|---|"
    for row in rows:
        with_optimizer = row["case"]["way"] in WITH_OPTIMIZER
        plain = by_way.get(("eager, AdamW" if with_optimizer else "eager", "", False), {})
        way = row["case"]["way"] + (", expandable segments" if row["expandable"] else "")
        head = f"| {way} | {row['asked']} |"
        if "failed" in row:
            yield f"{head}{7 * ' - |'} {row['failed'].replace('|', '/')} |"
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
        cells.append(f"{row['moved_out'] / 1e6:,.1f}" if row.get("moved_out") else "")
        if "digests" not in plain:
            bits = ""
        elif row is plain:
            bits = "repeats its own" if row["repeats"] else "does not repeat its own"
        else:
            bits = "equal" if row["digests"] == plain["digests"] else "differ"
        over = row.get("budget") and row["peak"] > row["budget"]
        cells.append(bits + (", **over the budget**" if over else ""))
        yield f"{head} {' | '.join(cells)} |"


def page(rows: list[Row], about: dict[str, Any], command: str, left_out: int) -> str:
    """Returns the results as Markdown.

    Args:
        about: What the page says of the machine.
        command: The command that has measured the rows.
        left_out: The number of rows for which there was no time.
    """
    lines = [
        "# GPU benchmark",
        "",
        "A program writes this file, so do not edit it. This command does:",
    ]
    lines += ["", f"    python {command}", ""]
    if not about["device"].startswith("cuda"):
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
    lines += [
        "*Predicted* is how far the prediction is from the peak, and *moved* says how many MB"
    ]
    lines += ["a step moves to the host's memory. With AdamW the step has the update in it."]
    lines += ["Unless a title says so, algorithms need not be deterministic here, so that bits can"]
    lines += ["differ where eager does not repeat its own.", ""]
    if left_out:
        lines += [f"**{left_out} rows were left out, because the time was over.**", ""]
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        case = row["case"]
        if not case["search"] and row["size"] != "probe":
            key = (case["network"], case["precision"], case["batch"], case["deterministic"])
            groups.setdefault((*key, row["size"]), []).append(row)
    for (network, precision, batch, fixed, size), group in groups.items():
        about_bits = ", deterministic algorithms" if fixed else ""
        title = f"## {network}, {precision}, batch {batch} ({size}){about_bits}"
        lines += [title, "", *comparison(group), ""]
    searches = [row for row in rows if row["case"]["search"]]
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
    runs = [json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[1:]]
    if not runs or any(one["machine"] != runs[0]["machine"] for one in runs):
        raise SystemExit("gpu_page.py: name files gpu.json of one machine")
    rows = [row for one in runs for row in one["rows"]]
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    print(page(rows, runs[0]["machine"], command, 0), end="")


if __name__ == "__main__":
    main()
