"""The programs whose Python has to run at every call, and the comparison that judges them."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("torch", reason="the programs need PyTorch")
pytest.importorskip("numpy", reason="some programs use NumPy")
import numpy as np
import torch
from follow_harness import THEMES, Entry, Step, bits, difference, first_change, same, train
from follow_programs import PROGRAMS
from hostile import CALLS

every_program = pytest.mark.parametrize("entry", PROGRAMS, ids=lambda entry: entry.name)


def runs_twice_at_first(step: Step, sample: tuple[Any, ...]) -> Step:
    """Runs a step once more than the program says."""
    step(*sample)
    return step


def leaves_out_a_call(step: Step, _sample: tuple[Any, ...]) -> Step:
    """Returns the result of call 9 at call 10, too."""
    results: list[Any] = []

    def run(*inputs: Any) -> Any:
        results.append(results[-1] if len(results) == CALLS // 2 else step(*inputs))
        return results[-1]

    return run


def test_there_are_sixty_programs_of_all_themes() -> None:
    assert len(PROGRAMS) >= 60
    assert len({entry.name for entry in PROGRAMS}) == len(PROGRAMS)
    assert {entry.theme for entry in PROGRAMS} == set(THEMES)


@every_program
def test_plain_training_repeats_itself(entry: Entry) -> None:
    assert difference(train(entry), train(entry)) == ""


@every_program
def test_a_program_changes_at_the_call_that_it_names(entry: Entry) -> None:
    assert first_change(entry) == entry.changes
    if entry.changes is None:
        made = dict(train(entry))
        assert made["what is kept behind call 5"] != made["what is kept behind call 15"]


@every_program
@pytest.mark.parametrize("wrong", [runs_twice_at_first, leaves_out_a_call])
def test_a_run_too_many_or_too_few_is_noticed(entry: Entry, wrong: Any) -> None:
    assert not same(train(entry), train(entry, wrong))


def test_values_are_compared_by_kind_and_bits() -> None:
    nan = float("nan")
    assert bits([nan, {"a": torch.tensor(nan)}]) == bits([-nan, {"a": torch.tensor(nan)}])
    for a, b in [
        (0.0, -0.0),
        (1, 1.0),
        (1, True),
        ([1], (1,)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (torch.zeros(2), -torch.zeros(2)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (torch.zeros(2), torch.zeros(2, 1)),
        (np.zeros(200), np.eye(200)[0]),
        (1.0, np.float64(1.0)),
        ([torch.zeros(2000)], [torch.arange(2000) // 1999.0]),
    ]:
        assert bits(a) == bits(a)
        assert bits(a) != bits(b)


def test_a_difference_has_a_name() -> None:
    made = train(PROGRAMS[0])
    assert [name for name, _ in made if re.match("the result of call", name)][-1].endswith("19")
    place = [name for name, _ in made].index("what is kept behind call 3")
    changed = [*made[:place], (made[place][0], None), *made[place + 1 :]]
    assert difference(made, changed) == "what is kept behind call 3"
