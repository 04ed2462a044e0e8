from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from resilient_launch.cli.main import app
from resilient_launch.config.issues import ConfigErrors
from resilient_launch.core.errors import UsageError
from resilient_launch.core.events import KINDS, read_events
from resilient_launch.core.units import DAY_S
from resilient_launch.lab.cluster_sim import strategies
from resilient_launch.lab.cluster_sim.engine import WARM_UP_S, simulate
from resilient_launch.lab.cluster_sim.read import read_workload
from resilient_launch.lab.cluster_sim.strategies import ALL, ORDERED, ROUGH, STAGGERED, Strategy
from resilient_launch.lab.cluster_sim.sweep import Case, mean_of, sweep
from resilient_launch.lab.cluster_sim.trace import STEP_S, Trace
from resilient_launch.lab.cluster_sim.workload import JobClass, Workload, cielo

ALONE = Workload(
    name="alone",
    nodes=100,
    system_mtbf_s=50_000.0,
    classes=(JobClass(name="job", count=1, nodes=100, write_s=300.0),),
)


def waste(workload: Workload, strategy: Strategy, *, days: float = 120, num_seeds: int = 3) -> float:
    return fmean(simulate(workload, strategy, seed=seed, days=days).waste for seed in range(num_seeds))


@pytest.mark.parametrize("strategy", [ORDERED, replace(STAGGERED, early=False)])
def test_a_job_alone_wastes_what_the_exact_formula_says(strategy: Strategy) -> None:
    """E[wall] of a period, failures striking in writes and reads too: M·e^(R/M)·(e^((T+C)/M) - 1)."""
    cost_s, mtbf_s = 300.0, 50_000.0
    work_s = math.sqrt(2 * cost_s * mtbf_s) - cost_s * strategy.period_includes_write
    exact = 1 - work_s / (mtbf_s * math.exp(cost_s / mtbf_s) * (math.exp((work_s + cost_s) / mtbf_s) - 1))
    assert waste(ALONE, strategy, days=3000, num_seeds=4) == pytest.approx(exact, rel=0.02)


@pytest.mark.parametrize("row", [(40, 1), (40, 8)])
def test_the_usual_rows_come_out_as_published(row: tuple[int, int]) -> None:
    published = {
        (40, 1): {"oblivious": 0.744, "ordered": 0.741, "ordered-nonblocking": 0.444, "staggered": 0.386},
        (40, 8): {"oblivious": 0.172, "ordered": 0.137, "ordered-nonblocking": 0.106, "staggered": 0.106},
    }[row]
    found = {strategy.name: waste(cielo(*row), strategy) for strategy in ALL}
    for name, value in published.items():
        assert found[name] == pytest.approx(value, rel=0.05), name


@pytest.mark.parametrize("strategy", ALL, ids=lambda strategy: strategy.name)
def test_shares_add_up_and_are_reproducible(strategy: Strategy) -> None:
    once = simulate(cielo(80, 1), strategy, seed=5, days=10, imperfections=ROUGH)
    assert once.useful + once.rework + once.wait + once.write + once.read == pytest.approx(1, abs=1e-9)
    assert simulate(cielo(80, 1), strategy, seed=5, days=10, imperfections=ROUGH) == once
    assert simulate(cielo(80, 1), strategy, seed=6, days=10, imperfections=ROUGH) != once


def test_luck_is_taken_out_and_the_mean_stays() -> None:
    drawn = [simulate(cielo(40, 24), STAGGERED, seed=seed, days=30) for seed in range(12)]
    smooth = [shares.without_luck() for shares in drawn]
    differences = [one.waste - other.waste for one, other in zip(drawn, smooth, strict=True)]
    assert abs(fmean(differences)) < 3 * stdev(differences) / math.sqrt(len(differences))
    assert stdev(shares.waste for shares in smooth) < 0.5 * stdev(shares.waste for shares in drawn)
    for one in smooth:
        assert one.useful + one.rework + one.wait + one.write + one.read == pytest.approx(1, abs=1e-9)


def test_failures_are_the_same_for_every_strategy() -> None:
    counts = {simulate(cielo(40, 1), strategy, seed=1, days=10).num_failures for strategy in ALL}
    assert len(counts) == 1


def test_more_writers_share_the_bandwidth() -> None:
    workload = replace(cielo(40, 8), writers=22)
    assert waste(workload, strategies.ORDERED, num_seeds=1) == waste(workload, strategies.OBLIVIOUS, num_seeds=1)


job_classes = st.builds(
    JobClass,
    name=st.sampled_from(["a", "b"]),
    count=st.integers(1, 4),
    nodes=st.integers(1, 50),
    write_s=st.floats(1, 5000),
)


@settings(max_examples=25)
@given(
    st.lists(job_classes, min_size=1, max_size=3),
    st.floats(100, 1e6),
    st.integers(1, 3),
    st.sampled_from(ALL),
    st.sampled_from([strategies.PERFECT, ROUGH]),
)
def test_any_workload_ends_with_shares_between_0_and_1(
    classes: list[JobClass], mtbf_s: float, writers: int, strategy: Strategy, rough: strategies.Imperfections
) -> None:
    workload = Workload(name="x", nodes=600, system_mtbf_s=mtbf_s, classes=tuple(classes), writers=writers)
    shares = simulate(workload, strategy, seed=1, days=2, imperfections=rough)
    for value in (shares.wait, shares.write, shares.read, shares.rework):
        assert -1e-9 <= value <= 1 + 1e-9
    assert shares.useful <= 1 + 1e-9


def test_the_trace_tells_the_same_story_as_the_shares(tmp_path: Path) -> None:
    trace = Trace(ALONE)
    shares = simulate(ALONE, ORDERED, seed=3, days=60, tracer=trace)
    trace.write(tmp_path)
    events = list(read_events(tmp_path / "job-0" / "events"))
    assert all(KINDS[event["kind"]] <= event.keys() for event in events)
    whole = WARM_UP_S + 60 * DAY_S
    late = [event for event in events if event["t"] >= WARM_UP_S]
    num_failures = sum(event["kind"] == "attempt" for event in late)
    assert num_failures == pytest.approx(shares.num_failures * 60 / 75, rel=0.35)
    steps, spent_s = 0, 0.0
    for event in events:
        if event["kind"] == "window":
            steps = max(steps, event["first"] + len(event["end_s"]))
    for begin, end in pairwise(events):
        if begin["kind"] == "checkpoint" and begin["status"] == "begin" and end["kind"] == "checkpoint":
            assert end["status"] == "durable" and end["step"] == begin["step"]
            spent_s += end["t"] - begin["t"]
    assert steps * STEP_S / whole == pytest.approx(shares.useful, abs=0.03)
    assert spent_s / whole == pytest.approx(shares.write, abs=0.02)
    resumes = [event for event in events if event["kind"] == "resume"]
    assert all(event["rework_steps"] >= 0 for event in resumes)
    assert any(event["rework_steps"] > 0 for event in resumes)


def test_processes_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # A test run has threads: none of its processes may be a copy of it.
    monkeypatch.delattr(os, "fork")
    cases = [Case(workload=ALONE, strategy=strategy) for strategy in (ORDERED, STAGGERED)]
    seen: list[tuple[int, int]] = []
    alone = sweep(cases, num_seeds=2, days=5, num_processes=1, on_progress=lambda *at: seen.append(at))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert sweep(cases, num_seeds=2, days=5, num_processes=2) == alone


def test_confidence_interval_of_a_mean() -> None:
    found = mean_of([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found.value == 3.0
    assert found.half_width == pytest.approx(2.776 * math.sqrt(2.5 / 5), rel=0.01)
    assert math.isnan(mean_of([1.0]).half_width)


def test_the_workload_file_that_ships_is_the_usual_one() -> None:
    root = Path(__file__).resolve().parents[3]
    found = read_workload(root / "configs" / "workloads" / "cielo.yaml")
    for mine, usual in zip(found.sharers, cielo(40, 1).sharers, strict=True):
        assert mine.weight == usual.weight
        assert mine.write_s == pytest.approx(usual.write_s, rel=1e-6)
        assert mine.mtbf_s == usual.mtbf_s


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no jobs"),
        ("jobs: [{nodes: 1, write: 1m}]\n", "no nodes"),
        ("nodes: 10\nsystem_mtbf: 1h\n", "no jobs"),
        ("nodes: 10\nsystem_mtbf: 1h\njobs: []\n", "no jobs"),
        ("nodes: 10\nsystem_mtbf: -1h\njobs: [{nodes: 1, write: 1m}]\n", "system_mtbf"),
        ("nodes: 10\nsystem_mtbf: 60\njobs: [{nodes: 1, write: 1m}]\n", "no unit"),
        ("nodes: 10\nsystem_mtbf: 1h\njobs: [{nodes: 11, write: 1m}]\n", "the jobs use 11"),
        ("nodes: 10\nsystem_mtbf: 1h\njobs: [{nodes: 1}]\n", "no checkpoint"),
        ("nodes: 10\nsystem_mtbf: 1h\njobs: [{nodes: 1, checkpoint: 1T}]\n", "needs the storage's speed"),
        ("nodes: 10\nsystem_mtbf: 1h\nbandwidth: 0G\njobs: [{nodes: 1, checkpoint: 1T}]\n", "size 0"),
        ("nodes: 10\nsystem_mtbf: 1h\njobs: [{nodes: 1, write: 1m, checkpoint: 1T}]\n", "follows from the other"),
        ("nodes: 10\nsystem_mtbf: 1h\njobs: [{nodes: 1, wirte: 1m}]\n", "did you mean write"),
        ("nodes: .nan\nsystem_mtbf: 1h\njobs: [{nodes: 1, write: 1m}]\n", "whole number"),
    ],
)
def test_bad_workloads_are_refused_with_a_place(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "workload.yaml"
    path.write_text(text)
    with pytest.raises(ConfigErrors) as caught:
        read_workload(path)
    assert complaint in str(caught.value)
    assert f"{path}:" in str(caught.value)


def test_a_missing_workload_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        read_workload(tmp_path / "none.yaml")


def test_the_command_prints_a_table_json_and_a_page(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text("nodes: 64\nsystem_mtbf: 6h\njobs: [{name: x, count: 3, nodes: 16, write: 5m}]\n")
    usual = ["simulate", "cluster", str(path), "--seeds", "2", "--days", "3", "--processes", "1"]
    page, events = tmp_path / "page.html", tmp_path / "events"
    done = CliRunner().invoke(app, [*usual, "--json", "--estimated", "--html", str(page), "--events", str(events)])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["schema"] == 1
    assert [row["strategy"] for row in found["strategies"]] == [
        *(strategy.name for strategy in ALL),
        "staggered, estimated",
    ]
    assert "<table>" in page.read_text()
    assert sorted(each.name for each in events.iterdir()) == ["x-0", "x-1", "x-2"]
    text = CliRunner().invoke(app, usual)
    assert "least-waste" in text.stdout
