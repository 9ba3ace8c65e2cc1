"""Planning and checking on JSON texts (C++). A problem or plan is a pair: text, name in
messages."""

from collections.abc import Callable, Sequence
from typing import Any

__version__: str

def normalize(format: str, text: str, name: str) -> str: ...
def read_file(path: str) -> str: ...
def write_file(path: str, content: str) -> None: ...
def lower(text: str, name: str) -> str: ...
def plan(
    text: str,
    name: str,
    budget: int | str | None,
    *,
    planner: str,
    schedule_class: str,
    time_limit_ns: int,
    threads: int,
    allow: str,
    observer: Callable[[str, float, str], None] | None,
) -> dict[str, Any]: ...
def frontier(
    text: str,
    name: str,
    *,
    planner: str,
    schedule_class: str,
    time_limit_ns: int,
    threads: int,
    allow: str,
    observer: Callable[[str, float, str], None] | None,
) -> tuple[str, tuple[int, int]]: ...
def frontier_svg(
    curve: str, plain_peak: int, plain_time: int, marks: Sequence[int], title: str
) -> str: ...
def verify(
    problem: str, problem_name: str, plan: str, plan_name: str, budget: int | str | None
) -> str: ...
def simulate(
    problem: str, problem_name: str, plan: str, plan_name: str
) -> tuple[list[tuple[int, int, int, int]], int, int, int, int]: ...
def explain(problem: str, problem_name: str, plan: str, plan_name: str) -> tuple[str, str]: ...
def report_html(
    problem: str,
    problem_name: str,
    plan: str,
    plan_name: str,
    run_log: str | None,
    run_log_name: str,
    time_limit_ns: int,
) -> str: ...
def planners() -> str: ...
def parse_bytes(text: str) -> int: ...
def parse_duration(text: str) -> int: ...
def format_bytes(bytes: int) -> str: ...
def format_duration(ns: int) -> str: ...
def resolve_budget(budget: int | str | None, baseline_peak: int | None) -> int: ...
