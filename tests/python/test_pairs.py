"""Every two capabilities together: bits and bytes, or a refusal. docs/combinations.md says which.

REPRISE_WRITE_DOCS=1 writes the page anew.
"""

from __future__ import annotations

import dataclasses
import datetime
import gc
import json
import os
import pathlib
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
sim = pytest.importorskip("sim", reason="the simulated accelerator is not on the path")
if not torch.distributed.is_available():
    pytest.skip("PyTorch was built without torch.distributed", allow_module_level=True)
import pipelines  # noqa: E402
import reprise  # noqa: E402
import test_fsdp  # noqa: E402
import torch.distributed as dist  # noqa: E402
from capabilities import (  # noqa: E402
    ALL,
    BY_HAND,
    CLIPS,
    GROUP,
    INSIDE,
    PAIRS,
    VALUES,
    fast,
    ranks_of,
    rows_of,
)
from combinations import Case, outcome  # noqa: E402
from combined_modes import Chain, Online  # noqa: E402
from conftest import SOURCE  # noqa: E402
from two_ranks import run_ranks  # noqa: E402

PAGE = SOURCE / "docs" / "combinations.md"
TIMEOUT = 20.0  # of the groups, in seconds
MODES: dict[str, type[Case]] = {"graph": Case, "chain": Chain, "online": Online}
SINGLE = [(row.name,) for row in ALL]
NO_OPTION = "got an unexpected keyword argument"
THREE = [(GROUP, VALUES, INSIDE), (CLIPS, INSIDE, BY_HAND)]
Question = tuple[str, tuple[str, ...]]  # a mode and capabilities
Answers = dict[Question, str]


# Why a refusal is one. Each message has a row, and the row says whether it could be otherwise.
REASONS = {
    "with shard_optimizer each rank has the state": (
        "Not built. What lies in another memory is the same on all ranks, and shards are not."
    ),
    "with shard_optimizer the averages are not gradients": (
        "Not built. Each rank updates its shard from the averages in the bucket, and these are not "
        "clipped."
    ),
    "cannot have a process group that averages": (
        "Not built for two groups. Within one group nothing is left to average: its ranks compute "
        "the same gradients from the same inputs."
    ),
    "moves values between them alone": (
        "Not built. A plan knows the devices as its memories, and none behind them."
    ),
    "cannot have an optimizer inside": (
        "Not built. Updates are not tried on the other devices at the capture, as operations are."
    ),
    "cannot have other_devices": (
        "Not built. A plan is made for one machine: for the devices, or for the ranks."
    ),
    "has no place behind the": (
        "Not built. Accumulation can be written in the captured function, see the third table."
    ),
}


def on_devices(names: tuple[str, ...]) -> bool:
    return any(row.device != "cpu" for row in rows_of(names))


def questions(ranks: int, devices: bool) -> list[Question]:
    everything = [("graph", names) for names in [*SINGLE, *PAIRS, *THREE]]
    # Online mode evicts memory of the CPU's allocator, and simulated devices put theirs before it.
    others = [(mode, names) for mode in ("chain", "online") for names in SINGLE]
    return [
        (mode, names)
        for mode, names in everything + others
        if ranks_of(names) == ranks and (on_devices(names) and mode == "graph") == devices
    ]


def answer(question: Question, folder: pathlib.Path, rank: int = 0, group: Any = None) -> str:
    mode, names = question
    where = folder / "+".join([mode, *names]).replace(" ", "-")
    where.mkdir(exist_ok=True)
    gc.collect()
    try:
        return outcome(MODES[mode](names, where, rank, group))
    except Exception as error:
        return f"wrong: {error!r}"


def sharded_stages_that_move(rank: int, folder: pathlib.Path) -> None:
    net = test_fsdp.sharded()
    expected = test_fsdp.train(net, net, rank)
    net = test_fsdp.sharded()
    options = {"offload": f"disk:{folder}", "machine": fast("disk"), "planner": "save_on_cpu"}
    model = test_fsdp.planned(rank, net, **options)

    def check() -> None:
        report: Any = model.report()
        assert report.predicted_peak_bytes == report.measured_peak_bytes
        assert report.moved_out_bytes > 0

    test_fsdp.assert_equal(test_fsdp.train(net, model, rank, check), expected)


def pipeline_that_moves(rank: int, folder: pathlib.Path) -> None:
    stages = pipelines.network()
    expected = pipelines.accumulate(stages, rank, 2, 1)
    options = {"offload": f"disk:{folder}", "machine": fast("disk")}
    step = pipelines.train(rank, stages, expected, 1, 2, **options)
    assert step.report().moved_out_bytes > 0


# Functions that run a combination of two ranks, and the names of its parts.
WHOLE: dict[Callable[[int, pathlib.Path], None], Question] = {
    sharded_stages_that_move: ("chain", ("stages of FSDP2", VALUES)),
    pipeline_that_moves: ("pipeline", ("pipeline", VALUES)),
}


def refusal(function: Callable[[int, pathlib.Path], None], rank: int, folder: pathlib.Path) -> str:
    try:
        function(rank, folder)
    except (reprise.InputError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    except Exception as error:
        return f"wrong: {error!r}"
    return ""


def work(rank: int, root: str, devices: bool) -> None:
    """Answers what takes two ranks, and a part of what takes one. Writes it into a file."""
    warnings.simplefilter("ignore", RuntimeWarning)
    reprise.install_cpu_allocator()
    folder = pathlib.Path(root)
    if devices:
        sim.load(os.environ["SIM_LIBRARY"])
    answers: Answers = {}
    for question in questions(2, devices):
        group = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=TIMEOUT))
        answers[question] = answer(question, folder, rank, group)
    if not devices:
        for function, question in WHOLE.items():
            answers[question] = refusal(function, rank, folder)
        alone = [dist.new_group([r]) for r in range(2)][rank]
        own = folder / f"rank{rank}"
        own.mkdir()
        for question in questions(1, devices)[rank::2]:  # Each rank takes every second one.
            answers[question] = answer(question, own, group=alone)
    path = folder / f"answers-{devices}-{rank}.json"
    path.write_text(json.dumps([[*question, text] for question, text in answers.items()]))


def all_answers(folder: pathlib.Path) -> Answers:
    answers: Answers = {}
    for devices in (False, True):
        run_ranks(work, str(folder), devices, seconds=500, timeout=TIMEOUT)
        for rank in range(2):
            for mode, names, text in json.loads(
                (folder / f"answers-{devices}-{rank}.json").read_text()
            ):
                before = answers.get((mode, tuple(names)), "")
                answers[mode, tuple(names)] = worse(before, text)
    sim.load(os.environ["SIM_LIBRARY"])
    reprise.install_cpu_allocator()
    for question in questions(1, True):
        answers[question] = answer(question, folder)
        if reports := sim.take_reports():
            answers[question] = f"wrong: {reports}"
    return {question: cleaned(text) for question, text in answers.items()}


def worse(one: str, other: str) -> str:
    """Returns the answer of the rank that says more: a fault, or a reason of its own."""
    if one.startswith("wrong") and other.startswith("wrong"):
        return f"{one}; {other}"
    return max(one, other, key=lambda text: (text.startswith("wrong"), "Peer" not in text, text))


def cleaned(text: str) -> str:
    """Returns a text without what differs from run to run, and from change to change."""
    return re.sub(r" at \S+\.py:\d+", "", text)


def reason(text: str) -> str:
    found = [why for pattern, why in REASONS.items() if re.search(pattern, text)]
    assert len(found) == 1, f"{len(found)} of REASONS say why: {text}"
    return found[0]


class Tables:
    """The tables of the page, with numbers for the messages of refusals."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.numbers: dict[str, int] = {}

    def cell(self, question: Question) -> str:
        text = self.answers[question]
        if not text:
            return "yes"
        if text.startswith("by operation"):
            return "by op"
        if NO_OPTION in text:
            return "-"
        return f"no {self.numbers.setdefault(text, len(self.numbers) + 1)}"

    def pairs(self) -> str:
        names = [row.name for row in ALL]
        heads = [str(k + 1) for k in range(len(names))]
        lines = [f"| | {' | '.join(heads)} |", f"|---|{':-:|' * len(names)}"]
        for k, name in enumerate(names):
            cells = [self.cell(("graph", (other, name))) for other in names[:k]]
            cells.append(self.cell(("graph", (name,))))
            cells += [""] * (len(names) - len(cells))
            lines.append(f"| {k + 1} {name} | {' | '.join(cells)} |")
        return "\n".join(lines)

    def modes(self) -> str:
        lines = ["| | chain mode | online mode |", "|---|:-:|:-:|"]
        for row in ALL:
            cells = [self.cell((mode, (row.name,))) for mode in ("chain", "online")]
            lines.append(f"| {row.name} | {' | '.join(cells)} |")
        return "\n".join(lines)

    def three(self) -> str:
        lines = ["| mode | together | |", "|---|---|:-:|"]
        for mode, names in [*(("graph", names) for names in THREE), *WHOLE.values()]:
            lines.append(f"| {mode} | {', '.join(names)} | {self.cell((mode, names))} |")
        return "\n".join(lines)

    def refusals(self) -> str:
        lines = ["| no | what the message says | why |", "|--:|---|---|"]
        for text, number in self.numbers.items():
            message = text.partition(": ")[2].replace("|", "\\|")
            lines.append(f"| {number} | {message} | {reason(text)} |")
        return "\n".join(lines)

    def count(self) -> str:
        texts = [self.answers["graph", pair] for pair in PAIRS]
        by_operation = sum(text.startswith("by operation") for text in texts)
        works = texts.count("") + by_operation
        return (
            f"{works} of the {len(PAIRS)} pairs work; {by_operation} of these ask for a device "
            f"graph and run operation by operation.\n{len(PAIRS) - works} pairs are refused."
        )


def page(text: str, answers: Answers) -> str:
    """Returns the page with its tables made anew. They stand between marks with their names."""
    tables = Tables(answers)
    made = [(name, getattr(tables, name)()) for name in ("count", "pairs", "modes", "three")]
    for name, part in [*made, ("refusals", tables.refusals())]:
        begin, end = f"<!-- {name}: made by tests/python/test_pairs.py -->\n", "<!-- end -->"
        assert text.count(begin) == 1, f"{PAGE} has no mark of the table {name}"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}{part}\n{end}{rest.partition(end)[2]}"
    return text


@pytest.mark.usefixtures("runtime")
def test_the_page_says_what_works_together(tmp_path: pathlib.Path) -> None:
    answers = all_answers(tmp_path)
    wrong = [f"{question}: {text}" for question, text in answers.items() if "wrong" in text[:5]]
    assert not wrong, "\n".join(wrong)
    before = PAGE.read_text(encoding="utf-8")
    expected = page(before, answers)
    if os.environ.get("REPRISE_WRITE_DOCS"):
        PAGE.write_text(expected, encoding="utf-8")
        return
    assert before.splitlines() == expected.splitlines(), "REPRISE_WRITE_DOCS=1 writes it anew"


class OtherBits(Case):
    def plainly(self) -> list[Any]:
        found = super().plainly()
        return [found[0] + 1e-6, *found[1:]]


class OtherPeak(Case):
    def check_peak(self) -> None:
        self.step = _MoreMemory(self.step)
        super().check_peak()


class _MoreMemory:
    def __init__(self, step: Any) -> None:
        self._step = step

    def report(self) -> Any:
        found = self._step.report()
        return dataclasses.replace(found, measured_peak_bytes=found.measured_peak_bytes + 64)


class Idle(Case):
    def uses(self, name: str) -> bool:
        return False


# These run behind the test above, whose simulated devices have to be there before any backward.
@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize(
    ("kind", "words"), [(OtherBits, "other bits"), (OtherPeak, "budget"), (Idle, "used were only")]
)
def test_what_is_wrong_is_found(kind: type[Case], words: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(AssertionError, match=words):
        outcome(kind((CLIPS,), tmp_path))


def test_the_page_follows_the_answers() -> None:
    text = PAGE.read_text(encoding="utf-8")
    everything = [(mode, names) for mode in MODES for names in [*SINGLE, *PAIRS, *THREE]]
    answers = dict.fromkeys([*everything, *WHOLE.values()], "")
    works = page(text, answers)
    assert "| no 1 |" in text
    assert "| no 1 |" not in works
    answers["graph", PAIRS[0]] = "InputError: the step cannot have an optimizer inside: no"
    assert "| no 1 |" in page(text, answers)
    answers["graph", PAIRS[0]] = "InputError: nobody knows why"
    with pytest.raises(AssertionError, match="0 of REASONS"):
        page(text, answers)
