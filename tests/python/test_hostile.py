"""Hostile programs: each is right over 20 calls, or refused with a reason if it is not followed."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("torch", reason="the runtime needs PyTorch")
pytest.importorskip("numpy", reason="some programs use NumPy")
from hostile import PROGRAMS, Program, has_an_effect, judge
from hostile_programs import KINDS

every_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)


def test_there_are_sixty_programs_of_all_kinds() -> None:
    assert len(PROGRAMS) >= 60
    assert len({program.name for program in PROGRAMS}) == len(PROGRAMS)
    assert all(re.search(program.names, "") is None for program in PROGRAMS)
    assert {program.kind for program in PROGRAMS} == set(KINDS)


@every_program
def test_the_change_has_an_effect_unless_the_program_is_harmless(program: Program) -> None:
    assert has_an_effect(program) != program.harmless


@every_program
def test_plain_training_in_place_of_a_captured_step_is_right(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The oracle itself is tested here: both copies of a program do the same.
    monkeypatch.setattr("reprise.capture", lambda step, *_sample, **_options: step)
    assert judge(program, "refuse").verdict == "right"


@every_program
@pytest.mark.parametrize("on_miss", ["refuse", "recapture"])
def test_a_captured_step_is_right_or_refused(program: Program, on_miss: str) -> None:
    outcome = judge(program, on_miss)
    assert outcome.verdict in ("right", "refused"), outcome.detail


@every_program
def test_a_followed_step_is_right(program: Program) -> None:
    outcome = judge(program, "refuse", follow=True)
    assert outcome.verdict == "right", outcome.detail
