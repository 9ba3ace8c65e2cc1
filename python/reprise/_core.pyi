"""Planning and checking on JSON texts, in C++.

A problem or a plan is given as two texts: its JSON form, and its name in messages. Times are in
nanoseconds, and sizes are in bytes. All functions raise InputError for input that is wrong.
"""

from collections.abc import Callable, Sequence
from typing import Any

__version__: str

def normalize(format: str, text: str, name: str) -> str:
    """Checks a document and returns its JSON form with all defaults filled in."""

def read_file(path: str) -> str:
    """Returns the text of a file."""

def write_file(path: str, content: str) -> None:
    """Writes a file as a whole, or leaves it as it is."""

def lower(text: str, name: str) -> str:
    """Returns the graph of a chain."""

def plan(
    text: str,
    name: str,
    *,
    budget: int | str | None,
    planner: str,
    schedule_class: str,
    time_limit_ns: int,
    slots: int,
    threads: int,
    allow: str,
    machine: str | None,
    observer: Callable[[str, float, str], None] | None,
) -> dict[str, Any]:
    """Returns the keyword arguments of PlanResult. The plan is a JSON text or None."""

def plan_pipeline(
    text: str,
    name: str,
    *,
    budget: int | str | None,
    planner: str,
    cuts: Sequence[int],
    parts_per_device: int,
    time_limit_ns: int,
) -> tuple[str, str, int]:
    """Returns the plan of a pipeline as JSON.

    Without a plan it is empty; then there are the reason and the bytes that were needed.
    """

def verify_pipeline(problem: str, plan: str) -> str:
    """Returns what is wrong with a plan of a pipeline, one violation a line."""

def simulate_pipeline(problem: str, plan: str) -> tuple[int, list[int]]:
    """Returns the time of a plan of a pipeline in nanoseconds, and the peak of each device."""

def simulate_replicas(
    problem: str,
    plan: str,
    *,
    count: int,
    bytes_per_second: int,
    latency_ns: int,
    bucket_bytes: int,
) -> tuple[int, int]:
    """Returns the time of a step of several replicas, and the longest time of a device's rings."""

def frontier(
    text: str,
    name: str,
    *,
    budget: int | str | None = None,
    planner: str,
    schedule_class: str,
    time_limit_ns: int,
    slots: int = 0,
    threads: int,
    allow: str,
    machine: str | None,
    observer: Callable[[str, float, str], None] | None,
) -> tuple[str, tuple[int, int]]:
    """Returns the frontier, and the peak and the time of plain training."""

def frontier_svg(
    curve: str,
    plain_peak: int,
    plain_time: int,
    marks: Sequence[int],
    title: str,
    compared: Sequence[tuple[str, str]],
) -> str:
    """Returns the picture of a frontier as SVG.

    Marks are budgets in bytes. Frontiers to compare with have a name and a JSON form.
    """

def verify(
    problem: str,
    problem_name: str,
    plan: str,
    plan_name: str,
    budget: int | str | None,
    machine: str | None,
) -> str:
    """Returns the violations as a JSON object with the key "violations"."""

def simulate(
    problem: str, problem_name: str, plan: str, plan_name: str, machine: str | None
) -> tuple[list[tuple[int, int, int, int]], int, int, int, int]:
    """Returns the fields of Timeline in their order. Each step has the fields of TimelineStep."""

def explain(
    problem: str, problem_name: str, plan: str, plan_name: str, machine: str | None
) -> tuple[str, str]:
    """Returns the explanation as JSON, and the table for people."""

def report_html(
    problem: str,
    problem_name: str,
    plan: str,
    plan_name: str,
    run_log: str | None,
    run_log_name: str,
    machine: str | None,
    notes: list[tuple[str, str, list[tuple[str, str]]]],
    time_limit_ns: int,
) -> str:
    """Returns the page of a plan as HTML."""

def planners() -> str:
    """Returns the list of planners as JSON."""

def parse_offload(text: str) -> str:
    """Returns the machine that a text such as "host=12GB/s" stands for."""

def parse_bytes(text: str) -> int:
    """Returns the bytes that a text such as "8 GiB" stands for.

    Units are B, KB, MB, GB and TB, which are powers of 1000, and KiB, MiB, GiB and TiB, which are
    powers of 1024. A text without a unit is a number of bytes. A fraction of a byte is cut off.

    Raises:
        InputError: The text is no number of bytes.

    Examples:
        >>> reprise.parse_bytes("1.5 KiB")
        1536
    """

def parse_duration(text: str) -> int:
    """Returns the nanoseconds that a text such as "10s" stands for."""

def format_bytes(bytes: int) -> str:
    """Returns a number of bytes as a text for people, in binary units.

    Examples:
        >>> reprise.format_bytes(734003200)
        '700.0 MiB'
    """

def format_duration(ns: int) -> str:
    """Returns a number of nanoseconds as a text for people.

    Examples:
        >>> reprise.format_duration(1500000000)
        '1.50 s'
    """

def resolve_budget(budget: int | str | None, baseline_peak: int | None) -> int:
    """Returns a budget in bytes. A share needs the peak of plain training."""
