"""fit_ranks(): steps on more devices than there are, against sums by hand."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
import reprise
from reprise.__main__ import main


def chain(stages: int = 4) -> dict[str, Any]:
    """Equal stages: 1 ms forward and 2 ms backward, 10 bytes saved, 1,000 bytes of gradients."""
    one = {
        "output_bytes": 0,
        "weight_gradient_bytes": 1000,
        "forward": {"ns": 1_000_000, "workspace_bytes": 0},
        "options": [
            {
                "name": "keep",
                "saved_bytes": 10,
                "reads_input": False,
                "reads_output": False,
                "forward": {"ns": 1_000_000, "workspace_bytes": 0},
                "backward": {"ns": 2_000_000, "workspace_bytes": 0},
            }
        ],
    }
    return {
        "format": "reprise.chain",
        "version": 1,
        "name": "equal",
        "fixed_bytes": 400,
        "input": {"bytes": 0, "gradient_bytes": 0},
        "stages": [one | {"name": f"s{k}"} for k in range(stages)],
        "loss": {"ns": 0, "workspace_bytes": 0},
    }


def look(**options: Any) -> reprise.RanksFit:
    wanted: dict[str, Any] = {"ranks": [4], "memory": "1MB", "micro_batches": 8}
    return reprise.fit_ranks(chain(), **(wanted | {"latency": 0.0} | options))


def test_times_are_those_of_closed_forms() -> None:
    """A pipeline of p equal parts takes (m + p - 1) (F + B). A ring of d takes 2 (d - 1) / d."""
    found = look(ranks=[1, 2, 4], link="1GB", network="1MB")
    assert found.alone_ns == 8 * 4 * 3_000_000
    rows = {(row.replicas, row.depth): row for row in found.rows}
    assert set(rows) == {(1, 1), (1, 2), (2, 1), (1, 4), (2, 2), (4, 1)}
    for (replicas, depth), row in rows.items():
        each = 8 // replicas
        assert row.micro_batches == each
        assert row.pipeline_ns == (each + depth - 1) * 3_000_000 * 4 // depth
        bytes = 1000 * 4 // depth
        assert row.gradient_bytes == bytes
        assert row.ring_ns == round(2 * (replicas - 1) / replicas * bytes * 1000)
        assert row.time_ns == row.pipeline_ns + row.ring_ns
        assert row.efficiency == pytest.approx(found.alone_ns / row.ranks / row.time_ns)
    assert found.best(1) == rows[1, 1]


@pytest.mark.parametrize("network", ["1MB", "4MB"])
def test_sums_run_beside_the_backward(network: str) -> None:
    """Each stage is a bucket, and its backward takes 2 ms. Device 0 is done last."""
    rate = 1e6 if network == "1MB" else 4e6
    for row in look(ranks=[4], link="1GB", network=network, bucket=1).rows:
        ring = round(2 * (row.replicas - 1) / row.replicas * 1000 * 1e9 / rate)
        stages = 4 // row.depth
        assert row.ring_busy_ns == stages * ring
        if row.replicas > 1:
            late = [ring * (j + 1) - 2_000_000 * j for j in range(stages)]
            assert row.ring_ns == max(late)
            assert stages == 1 or row.ring_ns < row.ring_busy_ns
        assert row.time_ns is not None and row.pipeline_ns is not None
        assert row.time_ns == row.pipeline_ns + row.ring_ns


def test_latency_counts_for_each_step_of_the_ring() -> None:
    row = look(depths=[1], latency="10us", network="1TB").rows[0]
    assert row.ring_ns == 6 * (1 + 10_000)


def test_memory_is_that_of_a_device() -> None:
    """Each stage has 100 fixed bytes, a gradient of 1,000, and one more while it is added."""
    found = look(memory=3000, depths=[1, 2, 4])
    assert [(row.depth, row.time_ns is None) for row in found.rows] == [
        (1, True),
        (2, True),
        (4, False),
    ]
    closest = found.rows[0]
    assert closest.needed_bytes is not None and closest.needed_bytes > 3000 and closest.why
    assert found.best(4) == found.rows[2]
    assert found.rows[2].peak_bytes is not None and found.rows[2].peak_bytes <= 3000
    assert "does not fit" in str(found) and "4 x 1" in str(found)


def test_numbers_that_do_not_divide_are_left_out() -> None:
    found = look(ranks=[3, 4, 16], micro_batches=4)
    assert {(row.ranks, row.depth) for row in found.rows} == {(4, 1), (4, 2), (4, 4), (16, 4)}
    with pytest.raises(reprise.InputError, match="can be divided into pipelines of at most 4"):
        look(ranks=[3], micro_batches=4)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"ranks": []}, "ranks is empty"),
        ({"ranks": [0]}, "ranks takes whole numbers"),
        ({"micro_batches": 0}, "micro_batches takes whole numbers"),
        ({"link": "fast"}, "link is a number a second"),
        ({"bucket": 0}, "a bucket has at least a byte"),
        ({"planner": "none"}, "none"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(reprise.InputError, match=text):
        look(**options)


def test_a_graph_is_refused() -> None:
    with pytest.raises(reprise.InputError, match=r"chain of stages, and this is a reprise\.graph"):
        reprise.fit_ranks({"format": "reprise.graph"}, ranks=[2], memory=1, micro_batches=2)


def test_the_command(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, page, numbers = tmp_path / "chain.json", tmp_path / "a.html", tmp_path / "a.json"
    file.write_text(json.dumps(chain(8)))
    words = ["fit", str(file), "--memory", "1MB", "--ranks", "8,64,4096", "--quiet"]
    words += ["--micro-batches", "4096", "--html", str(page), "--json", str(numbers)]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "512 x 8" in out and "4096*" in out
    assert json.loads(numbers.read_text())["micro_batches"] == 4096
    assert "<svg" in page.read_text() and "http" not in page.read_text().replace("w3.org", "")
    assert main(["fit", str(file), "--memory", "1MB", "--ranks", "8"]) == 2
    assert "--micro-batches" in capsys.readouterr().err
