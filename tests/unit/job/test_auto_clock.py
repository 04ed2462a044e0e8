"""The clock that solves its own interval, on real pages and real run directories."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from resilient_launch.config import loads
from resilient_launch.config.schema import Every, LaunchConfig
from resilient_launch.core.causes import Cause
from resilient_launch.core.events import EventWriter, read_events
from resilient_launch.core.paths import RunPaths
from resilient_launch.job.attempt import Attempt, AttemptRecord, claim, record_end
from resilient_launch.job.auto_interval import AutoClock, FixedClock, SaveClock, save_clock
from resilient_launch.job.context import Allocation
from resilient_launch.job.interval_history import read_history, read_samples
from resilient_launch.job.page import Page
from resilient_launch.lab.simulate.fit import fit_run
from resilient_launch.policy.auto_interval import FALLBACK_S
from resilient_launch.policy.failure_rate import mtbf_of_nodes_s

HOUR = 3600.0


class Desk:
    """A run directory, and the clock of whichever attempt is claimed last."""

    def __init__(self, directory: Path) -> None:
        self.paths = RunPaths(directory / "demo")
        for each in self.paths.all():
            each.mkdir(parents=True, exist_ok=True)
        text = "name: demo\ncluster: fake\nmodule: train\nnodes: 2\ntime: 2h\nsignal_lead: 60s\n"
        self.config: LaunchConfig = loads(text, base=directory)

    def claim(self, *, age_s: float = 0.0) -> Attempt:
        number = len(list(self.paths.attempts.glob("[0-9][0-9][0-9][0-9].json")))
        attempt = claim(
            self.paths,
            job_id="7",
            slurm_restart_count=number,
            nodes=["a", "b"],
            addresses=["a"],
            port=1,
            code_version="",
        )
        if age_s:
            attempt = replace(attempt, claimed_at=time.time() - age_s)
            path = self.paths.attempt(number)
            path.write_text(json.dumps({**json.loads(path.read_bytes()), "claimed_at": attempt.claimed_at}))
        return attempt

    def end(self, attempt: Attempt, cause: Cause, *, after_s: float, step: int | None = 10) -> None:
        record = AttemptRecord(
            number=attempt.number,
            cause=cause,
            end_step=step,
            ended_at=attempt.claimed_at + after_s,
            action="requeue",
            why="",
        )
        record_end(self.paths, record)

    def clock(self, attempt: Attempt, *, node: int = 0, end_s: float | None = None, **checkpoint: Any) -> SaveClock:
        config = replace(self.config, checkpoint=replace(self.config.checkpoint, **checkpoint))
        self.writer = EventWriter(
            self.paths.events / f"a{attempt.number:04d}.n{node:04d}.jsonl", attempt=attempt.number, restart=0, node=node
        )
        allocation = Allocation(
            job_id="7",
            slurm_restart_count=attempt.slurm_restart_count,
            node_index=node,
            node="a",
            nodes=("a", "b"),
            end_time=end_s,
        )

        def emit(kind: str, **fields: Any) -> None:
            self.writer.emit(kind, flush=True, **fields)

        return save_clock(config, self.paths, attempt, allocation, emit)

    def auto(self, attempt: Attempt, **more: Any) -> AutoClock:
        clock = self.clock(attempt, **more)
        assert isinstance(clock, AutoClock)
        return clock

    def decisions(self) -> list[dict[str, Any]]:
        return [event for event in read_events(self.paths.events) if event["kind"] == "decision"]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def saved(pages: Sequence[Page], *, blocked_s: float) -> float:
    """Let every page tell of a save that is durable now; returns when."""
    now = time.monotonic()
    for page in pages:
        page.blocked_s = blocked_s
        page.saved_mono = now
    return now


def test_ten_minutes_until_something_is_measured(desk: Desk) -> None:
    clock = desk.auto(desk.claim())
    clock.group_started()
    pages = [Page.private()]
    now = time.monotonic()
    assert not clock.is_due(now + FALLBACK_S - 1, now, pages)
    assert clock.is_due(now + FALLBACK_S + 1, now, pages)
    (decision,) = desk.decisions()
    assert decision["what"] == "checkpoint interval"
    assert decision["why"].startswith("a new attempt: no checkpoint has been measured yet")
    assert decision["inputs"]["prior_mtbf_s"] == pytest.approx(mtbf_of_nodes_s(2))


def test_the_belief_begins_with_what_other_runs_saw(desk: Desk, tmp_path: Path) -> None:
    line = {"v": 1, "run": "another", "attempt": 0, "nodes": 1000, "seconds": 86400.0, "cause": "preempted"}
    file = tmp_path / "history"
    file.write_text(json.dumps({**line, "at": time.time()}) + "\n")
    desk.auto(desk.claim(), failure_history=file).group_started()
    (decision,) = desk.decisions()
    # A thousand node-days without a node's failure.
    assert decision["inputs"]["prior_mtbf_s"] > 5 * mtbf_of_nodes_s(2)


def test_a_drain_is_measured_and_handed_on_to_the_next_attempt(desk: Desk) -> None:
    first = desk.claim()
    clock = desk.auto(first)
    clock.group_started()
    page = Page.private()
    began, page.step = time.monotonic(), 0
    for tick in range(400):
        # Ten looks a second: save from the 10th second to the 30th, five seconds of them blocking.
        page.writing = int(100 <= tick < 300)
        page.step += 0 if 100 <= tick < 150 else 1
        page.blocked_s = 5.0
        clock.is_due(began + tick / 10, began, [page])
    page.saved_mono = began + 1.0
    clock.is_due(began + 40.0, began, [page])
    assert desk.decisions()[-1]["inputs"]["drains_s"] == pytest.approx([15.0], abs=0.2)
    assert clock.choice is not None and clock.choice.drain_s == pytest.approx(15.0, abs=0.2)
    desk.end(first, Cause.PREEMPTED, after_s=HOUR)
    assert read_history(desk.paths, before=1).drains_s == pytest.approx((15.0,), abs=0.2)


def test_every_checkpoint_is_a_decision_that_moves_at_most_a_quarter(desk: Desk) -> None:
    clock = desk.auto(desk.claim(), failures_per_1000_node_days=100_000.0)
    clock.group_started()
    pages = [Page.private(), Page.private()]
    for _ in range(12):
        now = saved(pages, blocked_s=0.5)
        pages[1].blocked_s = 2.0
        clock.is_due(now, now, pages)
        clock.is_due(now, now, pages)
    decisions = desk.decisions()
    assert len(decisions) == 13, "one for the attempt, one for each checkpoint"
    intervals = [decision["interval_s"] for decision in decisions]
    for before, after in pairwise(intervals):
        assert 0.75 * before - 1e-6 <= after <= 1.25 * before + 1e-6
    last = decisions[-1]
    assert last["inputs"]["costs_s"] == [2.0] * 9, "the slowest rank of each of the newest checkpoints"
    assert last["interval_s"] == last["target_s"] == clock.interval_s
    assert last["why"].startswith("a checkpoint was made: a checkpoint blocks for 2s, 0 interruptions in ")


def test_a_failed_worker_group_is_an_interruption(desk: Desk) -> None:
    clock = desk.auto(desk.claim(age_s=HOUR))
    clock.group_started()
    clock.group_started()
    first, second = desk.decisions()
    assert (first["inputs"]["num_interruptions"], second["inputs"]["num_interruptions"]) == (0, 1)
    assert second["inputs"]["exposure_s"] == pytest.approx(HOUR, abs=5)
    assert second["why"].startswith("a worker group failed")


def test_the_next_attempt_goes_on_from_the_last_decision(desk: Desk) -> None:
    attempt = desk.claim(age_s=HOUR)
    clock = desk.auto(attempt)
    clock.group_started()
    pages = [Page.private()]
    now = saved(pages, blocked_s=3.0)
    clock.is_due(now, now, pages)
    desk.end(attempt, Cause.NODE_FAILURE, after_s=HOUR)
    later = desk.auto(desk.claim())
    assert later.interval_s == clock.interval_s
    later.group_started()
    inputs = desk.decisions()[-1]["inputs"]
    assert (inputs["num_interruptions"], inputs["costs_s"]) == (1, [3.0])
    assert inputs["restart_s"] == pytest.approx(HOUR, abs=5), "claim to first step"


def test_history_tells_what_a_notice_achieved_and_which_ends_are_no_failures(desk: Desk) -> None:
    causes = (Cause.PREEMPTED, Cause.PREEMPTED, Cause.TIME_LIMIT, Cause.CRASH)
    for number, cause in enumerate(causes):
        attempt = desk.claim()
        if number == 0:
            (desk.paths.checkpoints / "step-00000010.a0000.r0").mkdir()
            (desk.paths.checkpoints / "step-00000010.a0000.r0/MANIFEST.json").touch()
        desk.end(attempt, cause, after_s=100.0 * (number + 1))
    desk.claim()
    stretches = read_history(desk.paths, before=4).stretches
    assert [stretch.cause for stretch in stretches] == list(causes)
    assert [stretch.was_saved for stretch in stretches] == [True, False, False, False]
    assert [stretch.is_interrupted for stretch in stretches] == [True, True, False, True]
    assert [stretch.length_s for stretch in stretches] == pytest.approx([100, 200, 300, 400])
    assert len(read_history(desk.paths, before=2).stretches) == 2


def test_time_in_the_queue_after_a_silent_end_is_no_running_time(desk: Desk) -> None:
    attempt = desk.claim(age_s=10 * HOUR)
    desk.clock(attempt)
    desk.writer.emit("notice", flush=True, cause="preempted", deadline=None, source="test")
    desk.end(attempt, Cause.NODE_FAILURE, after_s=15 * HOUR)
    (stretch,) = read_history(desk.paths, before=1).stretches
    assert stretch.length_s == pytest.approx(10 * HOUR, abs=5)


def test_group_restarts_of_earlier_attempts_are_crashes(desk: Desk) -> None:
    attempt = desk.claim()
    desk.clock(attempt)
    for restart in range(3):
        desk.writer.emit("group_end", flush=True, exits={"0": 1}, restart=restart)
    desk.end(attempt, Cause.TIME_LIMIT, after_s=0.0)
    stretches = read_history(desk.paths, before=1).stretches
    assert [stretch.cause for stretch in stretches] == [Cause.CRASH, Cause.CRASH, Cause.TIME_LIMIT]


def test_a_save_lands_before_preemption_becomes_possible(desk: Desk) -> None:
    exempt_s = 400.0
    # One preemption has been seen, so the end of the window is a risk.
    desk.end(desk.claim(age_s=2000.0), Cause.PREEMPTED, after_s=1400.0)
    attempt = desk.claim()
    clock = desk.auto(attempt, preempt_exempt_s=exempt_s)
    clock.group_started()
    pages = [Page.private()]
    saved_at = saved(pages, blocked_s=10.0)
    landing = saved_at - (time.time() - attempt.claimed_at) + exempt_s - 10.0
    assert not clock.is_due(saved_at, saved_at, pages)
    assert clock.interval_s > exempt_s
    assert not clock.is_due(landing - 2, saved_at, pages)
    assert clock.is_due(landing + 2, saved_at, pages)


def test_a_save_that_the_signal_lead_is_too_short_for_lands_before_the_time_limit(desk: Desk) -> None:
    attempt = desk.claim()
    end_s = attempt.claimed_at + 500
    pages = [Page.private()]
    for blocked_s, lands in ((90.0, True), (1.0, False)):
        clock = desk.auto(attempt, end_s=end_s)
        clock.group_started()
        now = saved(pages, blocked_s=blocked_s)
        clock.is_due(now, now, pages)
        assert clock.interval_s > 410
        assert clock.is_due(now + 499.3, now, pages) is lands


def test_a_fixed_interval_and_steps_make_no_decisions(desk: Desk) -> None:
    attempt = desk.claim()
    fixed = desk.clock(attempt, every=Every(seconds=5.0))
    fixed.group_started()
    assert (fixed.is_due(10.0, 6.0, []), fixed.is_due(11.0, 6.0, [])) == (False, True)
    by_steps = desk.clock(attempt, every=Every(steps=3))
    assert not by_steps.is_due(1e9, 0.0, [])
    assert isinstance(desk.clock(attempt, node=1), FixedClock), "only the first node asks"
    assert desk.decisions() == []


@pytest.mark.parametrize("damage", ["{", '{"kind":"decision","what":"checkpoint interval","why":"","t":1,"mono":1}\n'])
def test_damaged_history_never_stops_training(desk: Desk, damage: str) -> None:
    attempt = desk.claim()
    desk.end(attempt, Cause.CRASH, after_s=10.0)
    (desk.paths.events / "a0000.n0000.jsonl").write_text(damage)
    clock = desk.auto(desk.claim())
    clock.group_started()
    assert clock.interval_s == FALLBACK_S


def test_an_interval_that_cannot_be_solved_stands(desk: Desk) -> None:
    clock = desk.auto(desk.claim())
    pages = [Page.private()]
    now = saved(pages, blocked_s=float("nan"))
    assert not clock.is_due(now, now, pages)
    assert clock.is_due(now + FALLBACK_S + 1, now, pages)


def test_a_run_is_fitted_from_what_its_ranks_saw(desk: Desk) -> None:
    from resilient_launch.config import dump

    desk.paths.config.write_text(dump(desk.config))
    for number in range(2):
        attempt = desk.claim(age_s=HOUR * (2 - number))
        rank = EventWriter(
            desk.paths.events / f"a{number:04d}.r0.w00000.jsonl", attempt=number, restart=0, node=0, rank=0
        )
        rank.emit("phase", phase="first_step")
        for blocking_s in (1.0, 2.0, 3.0):
            rank.emit("checkpoint", step=1, status="durable", reason="time", blocking_s=blocking_s)
        rank.emit("checkpoint", step=1, status="durable", reason="notice", blocking_s=0.5)
        rank.close()
        desk.end(attempt, Cause.PREEMPTED, after_s=0.5 * HOUR)
    samples = read_samples(desk.paths)
    assert samples.costs_s == (1.0, 2.0, 3.0) * 2
    fit = fit_run(desk.paths)
    assert fit.cost is not None and (fit.cost.count, fit.cost.middle) == (6, 2.0)
    assert fit.emergency is not None and fit.emergency.middle == 0.5
    assert fit.restart is not None and fit.restart.middle == pytest.approx(1.5 * HOUR, abs=5)
    assert (fit.num_interruptions, fit.exposure_s) == (2, pytest.approx(HOUR))
    low_s, high_s = fit.rate.mtbf_range_s()
    assert low_s < fit.rate.mtbf_s < high_s
