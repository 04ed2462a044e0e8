"""The page: whole, self-contained, and free of anybody's markup but its own."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from trace_maker import Plan, make

from resilient_launch.policy.partition import Label
from resilient_launch.report.accounts import RunFacts, RunReport, run_report
from resilient_launch.report.charts import ticks
from resilient_launch.report.html import page

VOID = {"meta"}


class Outline(HTMLParser):
    """Checks that every tag is closed, and remembers what was there."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def report(tmp_path: Path, metric: str = "loss") -> RunReport:
    made = make(
        [Plan(num_steps=500, ends="crash"), Plan(num_steps=300, ends="hang"), Plan(num_steps=9, ends="finished")]
    )
    line = {
        "v": 1,
        "kind": "metric",
        "t": 1_700_000_400.0,
        "mono": 1e9,
        "attempt": 0,
        "restart": 0,
        "rank": 0,
        "node": 1,
    }
    for step in range(300):
        record = {**line, "step": step, "values": {metric: 1.0 / (step + 1)}}
        made.lines["a0000.r0.w00000.jsonl"].append(json.dumps(record).encode() + b"\n")
    facts = RunFacts(paths=made.write(tmp_path), created_at=None, rows={"7": made.rows}, is_live=False, now=0.0)
    return run_report(facts, in_full=True)


def test_the_page_is_whole_and_needs_no_network(tmp_path: Path) -> None:
    text = page([report(tmp_path)])
    outline = Outline(text)
    names = dict(outline.attributes)
    assert not {"src", "href", "action"} & names.keys()
    assert "://" not in text
    assert "prefers-color-scheme:dark" in text and "@media print" in text
    headings = "".join(outline.text)
    for heading in ("Where the time went", "Attempts by time", "Notes", "loss", "Step time by rank", "Checkpoints"):
        assert heading in headings
    assert all(f"c-{label.value}{{" in text for label in Label)
    # One row of the timeline for each attempt, one chart each of loss, step times and checkpoints.
    assert outline.tags.count("svg") == 3 + 3


def test_interval_decisions_are_drawn_as_they_held(tmp_path: Path) -> None:
    found = report(tmp_path)
    solved = [
        {
            "t": 1e9 + at_s,
            "what": "checkpoint interval",
            "why": f"why {at_s}",
            "interval_s": stands_s,
            "target_s": 1200.0,
        }
        for at_s, stands_s in ((0.0, 600.0), (3600.0, 750.0), (10_800.0, 900.0))
    ]
    other = {"t": 1e9, "what": "requeue", "why": "because"}
    text = page([replace(found, decisions=[other, *solved])])
    assert "Checkpoint interval, minutes" in text and "hours</text>" in text
    assert Outline(text).tags.count("svg") == 3 + 4
    (points,) = re.findall(r'<polyline class="line l0" points="([^"]*)"><title>the one that stands', text)
    heights = [point.split(",")[1] for point in points.split()]
    # Three values, each held until the next, and the last one as a point.
    assert len(heights) == 5 and heights[0] == heights[1] != heights[2] == heights[3] != heights[4]
    assert "<title>why 3600.0</title>" in text
    assert "Checkpoint interval" not in page([replace(found, decisions=[other, solved[0]])])


def test_what_users_wrote_is_text(tmp_path: Path) -> None:
    text = page([report(tmp_path, metric="<script>alert(1)</script>loss")])
    assert "<script>alert" not in text
    assert Outline(text).tags.count("script") == 1


def test_many_runs_make_one_page(tmp_path: Path) -> None:
    found = report(tmp_path)
    assert Outline(page([found, found])).tags.count("article") == 2


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (3.0, 3.0), (-5.0, 1e9), (0.0, 1e-9), (float("nan"), 1.0)])
def test_ticks_are_round_and_few(low: float, high: float) -> None:
    found = ticks(low, high, 5)
    assert 1 <= len(found) <= 11
    assert all(low <= tick <= high for tick in found) or len(found) == 1
