"""Draws the time of a step over the budget: recomputing alone, moving alone, and both.

Each chain is planned at a row of budgets, on machines with one memory more. A channel of 1x carries
all that is saved, and all outputs, in the time of all forwards; it has this bandwidth in each
direction, and a latency of 10 us. Every plan is verified. Nothing runs: the times are those of the
problem files.

    PYTHONPATH=build/release/python bench/python/moving_curves.py -o docs/images/moving.svg
"""

from __future__ import annotations

import argparse
import pathlib
from dataclasses import dataclass, field
from typing import Any

import reprise

CHAINS = ("period4_50", "cnn_100")
CHANNELS = (0.25, 0.5, 1.0, 2.0)
BUDGETS = (15, 20, 25, 30, 35, 40, 45, 50, 60, 70, 80, 90, 100)  # % of plain training's peak
WAYS = {"recomputing alone": "", "moving alone": "offload_only", "both": "levels"}
COLOURS = {"recomputing alone": "#2f9479", "moving alone": "#8a6d1a", "both": "#1f5fa8"}
DASHES = {"recomputing alone": "7 4", "moving alone": "2 4", "both": "none"}
WIDTH, HEIGHT, LEFT, TOP, MOST = 230, 190, 62, 74, 70  # of a panel, in pixels; MOST in %


@dataclass
class Panel:
    """The curves of one chain and one channel: the extra time in % by budget, None for no plan."""

    chain: str
    channel: float
    curves: dict[str, list[float | None]] = field(default_factory=dict)


def machine(chain: Any, channel: float) -> dict[str, Any]:
    """Returns the machine whose channel has this multiple of the bandwidth 1x."""
    carried = sum(s.output_bytes + s.options[0].saved_bytes for s in chain.stages)
    time = sum(stage.forward.ns for stage in chain.stages)
    speed = {"bytes_per_second": round(channel * carried / time * 1e9), "latency_ns": 10_000}
    return {
        "format": "reprise.machine",
        "version": 1,
        "memories": [{"name": "device"}, {"name": "host"}],
        "channels": [
            {"from": "device", "to": "host"} | speed,
            {"from": "host", "to": "device"} | speed,
        ],
    }


def extra_time(chain: Any, budget: int, memories: dict[str, Any] | None, **options: Any) -> Any:
    """Returns by how many percent the fastest plan is slower than plain training, or None."""
    result = reprise.plan(chain, budget=f"{budget}%", machine=memories, threads=1, **options)
    if result.plan is None:
        return None
    assert reprise.verify(chain, result.plan, machine=memories) == []
    return 100 * (result.plan.time_ns / result.baseline.time_ns - 1)


def panels(names: list[str], time_limit: float) -> list[Panel]:
    folder = pathlib.Path(__file__).parents[2] / "data/instances/levels"
    all_panels = []
    for name in names:
        chain = reprise.load(folder / f"{name}.json")
        alone = [extra_time(chain, b, None, time_limit=time_limit) for b in BUDGETS]
        for channel in CHANNELS:
            panel = Panel(name, channel, {"recomputing alone": alone})
            for way, planner in list(WAYS.items())[1:]:
                options = {"planner": planner, "time_limit": time_limit}
                panel.curves[way] = [
                    extra_time(chain, budget, machine(chain, channel), **options)
                    for budget in BUDGETS
                ]
            all_panels.append(panel)
            print(table(panel), flush=True)
    return all_panels


def table(panel: Panel) -> str:
    def cell(value: float | None) -> str:
        return "no plan" if value is None else f"{value:.1f}"

    budgets = " | ".join(f"{budget} %" for budget in BUDGETS)
    lines = [f"| `{panel.chain}`, {panel.channel:g}x | {budgets} |"]
    lines.append("|---|" + "--:|" * len(BUDGETS))
    for way, values in panel.curves.items():
        lines.append(f"| {way} | " + " | ".join(cell(value) for value in values) + " |")
    return "\n".join(lines) + "\n"


def x_of(budget: float) -> float:
    return WIDTH * budget / 100


def y_of(percent: float) -> float:
    return HEIGHT * (1 - percent / MOST)


def path_of(values: list[float | None]) -> str:
    """Returns a step curve. What lies above the panel is left out."""
    path, above = "", False
    for budget, value in zip(BUDGETS, values, strict=True):
        if value is None or value > MOST:
            above = above or value is not None
            continue
        x, y = x_of(budget), y_of(max(0.0, value))
        start = f"M{x:.1f} 0V{y:.1f}" if above else f"M{x:.1f} {y:.1f}"
        path += f"H{x:.1f}V{y:.1f}" if path else start
    return path + f"H{WIDTH}" if path else ""


def picture(all_panels: list[Panel]) -> str:
    columns = len(CHANNELS)
    rows = (len(all_panels) + columns - 1) // columns
    width, height = LEFT + columns * (WIDTH + 34), TOP + rows * (HEIGHT + 66)
    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" font-family="system-ui, sans-serif" font-size="12">',
        "<title>Extra time of a step over the budget, with channels of several speeds</title>",
        "<style>text{fill:#2b2b2b}.grid{stroke:#d9d9d4}.axis{stroke:#2b2b2b;fill:none}"
        "path{fill:none}</style>",
        f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="6" fill="#fbfbf8" '
        'stroke="#d9d9d4"/>',
    ]
    x = LEFT
    for way in ("both", "recomputing alone", "moving alone"):
        line = f'stroke="{COLOURS[way]}" stroke-width="2" stroke-dasharray="{DASHES[way]}"'
        svg.append(f'<path d="M{x} 24h24" {line}/><text x="{x + 32}" y="28">{way}</text>')
        x += 60 + 7 * len(way)
    svg.append(f'<text x="{LEFT}" y="50">extra time of a step, in %, over the budget</text>')
    for k, panel in enumerate(all_panels):
        left, top = LEFT + (k % columns) * (WIDTH + 34), TOP + (k // columns) * (HEIGHT + 66)
        svg.append(f'<g transform="translate({left} {top})">')
        svg.append(f'<text y="-6" font-weight="600">{panel.chain}, {panel.channel:g}x</text>')
        for percent in range(0, MOST + 1, 10):
            svg.append(f'<path d="M0 {y_of(percent):.1f}h{WIDTH}" class="grid"/>')
            if k % columns == 0 and percent % 20 == 0:
                y = y_of(percent) + 4
                svg.append(f'<text x="-8" y="{y:.1f}" text-anchor="end">{percent} %</text>')
        for budget in range(0, 101, 20):
            svg.append(
                f'<text x="{x_of(budget):.1f}" y="{HEIGHT + 17}" text-anchor="middle">'
                f"{budget} %</text>"
            )
        svg.append(f'<path d="M0 0V{HEIGHT}H{WIDTH}" class="axis"/>')
        for way, values in panel.curves.items():
            svg.append(
                f'<path d="{path_of(values)}" stroke="{COLOURS[way]}" stroke-width="2" '
                f'stroke-dasharray="{DASHES[way]}"/>'
            )
        svg.append("</g>")
    return "\n".join([*svg, "</svg>"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--chains", nargs="+", default=list(CHAINS), help="of data/instances/levels"
    )
    parser.add_argument("--time-limit", type=float, default=2.0, help="seconds for a plan")
    parser.add_argument("-o", "--output", type=pathlib.Path, help="the picture (SVG)")
    arguments = parser.parse_args()
    svg = picture(panels(arguments.chains, arguments.time_limit))
    if arguments.output is not None:
        arguments.output.write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
