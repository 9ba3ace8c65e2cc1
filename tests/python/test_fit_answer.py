"""fit(): the laws of an answer, its pages, and the arguments."""

from __future__ import annotations

import html.parser
import json
import pathlib
from typing import Any

import pytest
import reprise
from conftest import SOURCE

torch = pytest.importorskip("torch")
from fit_models import (  # noqa: E402
    Llama,
    perceptron,
    step_of,
)
from reprise._fit.roofline import Machine, bytes_moved, operations, time_ns  # noqa: E402
from torch import nn  # noqa: E402


@pytest.fixture(scope="module")
def answer() -> Any:
    torch.manual_seed(0)
    with reprise.fake_tensors():
        model = Llama(width=256, layers=6, heads=4, hidden=512, words=1000)
        tokens = torch.randint(0, 1000, (2, 128))
        optimizer = torch.optim.AdamW(model.parameters())

        def step(tokens: Any) -> Any:
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            loss.backward()
            return loss.item()

    return reprise.fit(
        step,
        tokens,
        memory=["400 MB", "90 MB", "60 MB", "1 MB"],
        optimizer=optimizer,
        operations="10T",
        bandwidth="1TB",
        link="10GB",
        time_limit=0.3,
        name="a <small> model",
    )


def test_laws_of_an_answer(answer: Any) -> None:
    assert [one.batch for one in answer.batches] == [2, 4, 8, 16]
    assert answer.best("1 MB") is None
    plain = {one.batch: one for one in answer.batches}
    for row in answer.rows:
        smallest = min(way.smallest_budget_bytes for way in row.ways)
        assert row.best is None or smallest <= row.memory_bytes, row
        assert row.smallest_budget_bytes == smallest <= plain[row.batch].peak_bytes
        for way in row.ways:
            if way.time_ns is not None:
                assert way.peak_bytes <= row.memory_bytes
                assert way.lower_bound_ns <= way.time_ns
                assert row.best is not None and row.best.time_ns <= way.time_ns
        if plain[row.batch].peak_bytes <= row.memory_bytes:
            assert row.best is not None and not row.best.switch_on
        elif row.best is not None:
            assert row.best.switch_on
            assert row.best.time_ns >= plain[row.batch].time_ns
    for batch in plain:
        times = [r.best.time_ns for r in answer.rows if r.batch == batch and r.best is not None]
        assert times == sorted(times)  # The memories descend.
    fastest = answer.best("90 MB")
    assert fastest.rows_per_second == max(
        row.rows_per_second for row in answer.rows if row.memory_bytes == 90_000_000
    )


def test_more_rows_take_more_bytes_and_time(answer: Any) -> None:
    peaks = [one.peak_bytes for one in answer.batches]
    times = [one.time_ns for one in answer.batches]
    assert peaks == sorted(peaks) and times == sorted(times)
    assert all(
        one.held["parameters"] == answer.batches[0].held["parameters"] for one in answer.batches
    )


def test_text_page_and_json(answer: Any, tmp_path: pathlib.Path) -> None:
    text = str(answer)
    assert "does not fit" in text and "estimated from 10 Tflop/s and 1 TB/s" in text
    assert "from fake tensors, without workspaces" in text
    page = answer.html()
    assert "a &lt;small&gt; model" in page and "<small> model" not in page
    assert "http" not in page and "src=" not in page
    assert balanced(page) == []
    answer.save(tmp_path / "fit.html")
    assert (tmp_path / "fit.html").read_text() == page
    answer.save(tmp_path / "fit.json")
    read = json.loads((tmp_path / "fit.json").read_text())
    assert read == json.loads(json.dumps(answer.to_dict()))
    assert [row["memory_bytes"] for row in read["rows"]] == [
        row.memory_bytes for row in answer.rows
    ]
    assert "<table>" in answer._repr_html_()


def balanced(page: str) -> list[str]:
    """Returns the elements of a page that are not closed, or not in their order."""
    open_: list[str] = []
    wrong: list[str] = []

    class Reader(html.parser.HTMLParser):
        def handle_starttag(self, tag: str, attrs: Any) -> None:
            if tag != "meta":
                open_.append(tag)

        def handle_startendtag(self, tag: str, attrs: Any) -> None:
            pass

        def handle_endtag(self, tag: str) -> None:
            if not open_ or open_.pop() != tag:
                wrong.append(tag)

    Reader().feed(page)
    return wrong + open_


def test_a_model_of_billions_of_parameters_takes_no_memory() -> None:
    with reprise.fake_tensors():
        model = Llama(width=4096, layers=2, heads=32, hidden=11008, words=32000)
        tokens = torch.randint(0, 32000, (1, 4096))
    found = reprise.fit(step_of(model), tokens, memory="80GB", batches=[1], time_limit=0.5)
    assert found.parameters == sum(p.numel() for p in model.parameters()) > 600e6
    assert found.batches[0].peak_bytes > 8e9
    best = found.best("80GB")
    assert best is not None and best.best is not None


def test_a_batch_that_the_step_does_not_take_is_a_note() -> None:
    linear = nn.Linear(8, 8)

    def step(x: Any) -> Any:
        loss = linear(x).view(4, 8).sum()
        loss.backward()
        return loss.detach()

    found = reprise.fit(step, torch.randn(4, 8), memory="1GB", time_limit=0.1)
    assert [one.batch for one in found.batches] == [4]
    assert any("does not take a batch of 8" in note for note in found.notes)


def test_a_problem_that_was_measured(tmp_path: pathlib.Path) -> None:
    path = SOURCE / "data" / "instances" / "chains" / "resnet18_like.json"
    plain = reprise.plan(path).baseline
    found = reprise.fit(path, memory=[plain.peak_bytes, plain.peak_bytes * 6 // 10, 1])
    fits, tight, none = found.rows
    assert fits.best is not None and fits.best.switch_on == ()
    assert tight.best is not None
    result = reprise.plan(path, budget=plain.peak_bytes * 6 // 10)
    assert result.plan is not None and tight.best.time_ns == result.plan.time_ns
    assert none.best is None
    more = reprise.fit(path, memory=plain.peak_bytes, fixed_bytes=1)
    assert more.rows[0].best is not None and more.rows[0].best.switch_on == ("a plan",)
    assert "plain peak" in str(found) and "rows/s" not in str(found)


@pytest.mark.usefixtures("runtime")
def test_a_step_that_is_measured_here() -> None:
    torch.manual_seed(0)
    model, inputs = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = step_of(model)
    captured = reprise.capture(step, *inputs, optimizer=optimizer)
    plain = captured.plan().baseline
    memory = plain.peak_bytes * 7 // 10
    found = reprise.fit(
        step, *inputs, memory=memory, optimizer=optimizer, times="measured", time_limit=0.5
    )
    assert "measured on cpu" in found.times
    best = found.rows[0].best
    assert best is not None and best.peak_bytes is not None
    assert best.peak_bytes <= memory < found.batches[0].peak_bytes
    step_again = reprise.fit(
        step, *inputs, memory=memory, times="measured", fixed_bytes=memory, time_limit=0.5
    )
    assert step_again.rows[0].best is None


def test_the_roofline() -> None:
    machine = Machine(operations_per_second=1e9, bytes_per_second=1e6, overhead_ns=10)
    a, b = torch.empty(30, 20), torch.empty(20, 10)
    c = torch.empty(30, 10)
    call = torch.ops.aten.mm.default
    assert operations(call, (a, b), {}, c) == 2 * 30 * 20 * 10
    assert bytes_moved(call, ((a, b), {}), c) == 4 * (600 + 200 + 300)
    assert time_ns(machine, call, (a, b), {}, c) == 10 + 4 * 1100 * 1000
    fast = Machine(operations_per_second=1e6, bytes_per_second=1e12)
    assert time_ns(fast, call, (a, b), {}, c) == 12_000_000
    table = torch.empty(1000, 8)
    rows = torch.empty(5, 8)
    index = torch.zeros(5, dtype=torch.int64)
    looked_up = bytes_moved(torch.ops.aten.embedding.default, ((table, index), {}), rows)
    assert looked_up == 2 * 160
    assert bytes_moved(torch.ops.aten.empty.memory_format, (([8],), {}), rows) == 0
    expanded = torch.empty(8).expand(1000, 8)
    assert bytes_moved(torch.ops.aten.neg.default, ((expanded,), {}), table) == 32 + 32000


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"memory": "80 apples"}, "apples"),
        ({"memory": []}, "it is empty"),
        ({"memory": 0}, "at least one byte"),
        ({"memory": [True]}, "not True"),
        ({"memory": 1.5}, "1.5"),
        ({"times": "guessed"}, '"estimated" or "measured"'),
        ({"operations": "fast"}, "operations is a number a second"),
        ({"bandwidth": -1}, "bandwidth is a number a second"),
        ({"batches": [0]}, "whole numbers from 1 on"),
        ({"overhead": "5 apples"}, "apples"),
        ({"fixed_bytes": "some"}, "some"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(reprise.InputError) as refused:
        reprise.fit(print, torch.zeros(1), **({"memory": "1GB"} | options))
    assert text in str(refused.value)


def test_a_sample_is_needed() -> None:
    with pytest.raises(reprise.InputError, match=r"fit\(step, \*sample"):
        reprise.fit(print, memory="1GB")
    with pytest.raises(reprise.InputError, match="takes no sample"):
        reprise.fit({"format": "reprise.graph"}, torch.zeros(1), memory="1GB")
