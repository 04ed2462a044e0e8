"""Packed events tell what they told before, to everybody who reads them."""

from __future__ import annotations

import json
import os
import random
import time
from dataclasses import replace
from pathlib import Path

import pytest
from trace_maker import Made, Plan, damage, make

from resilient_launch.core.events import GZIP, EventWriter, pack_events, read_events
from resilient_launch.core.paths import RunPaths
from resilient_launch.report.accounts import RunFacts, run_report
from resilient_launch.report.packing import pack_run
from resilient_launch.report.tail import EventTail


@pytest.fixture
def made() -> Made:
    made = make([Plan(num_steps=700, ends="crash"), Plan(num_steps=300, ends="hang"), Plan(num_steps=90, ends="crash")])
    damage(made, random.Random(1), torn=True, repeated=True, foreign=True, shuffled=False)
    return made


def settle(paths: RunPaths) -> None:
    for file in paths.events.iterdir():
        os.utime(file, (time.time() - 5000, time.time() - 5000))


def test_no_figure_changes_and_the_newest_attempt_is_left_alone(made: Made, tmp_path: Path) -> None:
    paths = made.write(tmp_path)
    facts = RunFacts(paths=paths, created_at=None, rows={"7": made.rows}, is_live=False, now=0.0)
    before, events = run_report(facts, in_full=True), list(read_events(paths.events))
    assert pack_run(paths).num_files == 0, "files so young may still be written to"
    settle(paths)
    sizes = {file.name: file.stat().st_size for file in paths.events.iterdir()}
    packed = pack_run(paths)
    assert packed.num_files == 12 and not packed.errors
    after = {file.name: file.stat().st_size for file in paths.events.iterdir()}
    assert sum(sizes.values()) - sum(after.values()) == packed.num_bytes
    assert {name for name in sizes if after[name] != sizes[name]} == {name for name in sizes if name < "a0002"}
    assert sum(after[name] for name in sizes if name < "a0002") < sum(sizes[n] for n in sizes if n < "a0002") / 2
    assert list(read_events(paths.events)) == events
    found = run_report(facts, in_full=True)
    assert replace(found, curves=()) == replace(before, curves=())
    assert pack_run(paths).num_files == 0, "what is packed stays as it is"
    paths.verdict.write_text(json.dumps({"state": "failed"}))
    assert pack_run(paths).num_files == 6


def test_whoever_follows_goes_on_where_he_was(tmp_path: Path) -> None:
    path = tmp_path / "a0000.r0.w00000.jsonl"
    writer = EventWriter(path)
    for number in range(50):
        writer.emit("decision", flush=True, what=f"w{number}", why="")
    tail = EventTail(tmp_path)
    assert len(list(tail.new())) == 50
    writer.emit("decision", flush=True, what="last", why="")
    writer.close()
    assert pack_events(path) > 0 and path.read_bytes().startswith(GZIP)
    assert [each["what"] for each in tail.new()] == ["last"]
    assert list(tail.new()) == []
    assert len(list(EventTail(tmp_path).new())) == 51


def test_a_packed_file_that_is_cut_short_tells_what_is_left(tmp_path: Path) -> None:
    path = tmp_path / "a0000.r0.w00000.jsonl"
    random_words = random.Random(0)
    path.write_text(
        "".join(
            json.dumps({"kind": "metric", "step": 1, "values": {"x": random_words.random()}}) + "\n"
            for _ in range(20_000)
        )
    )
    pack_events(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert 5_000 < len(list(read_events(tmp_path))) < 15_000
