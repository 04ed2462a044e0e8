"""Accounts against runs whose truth is known: every label, whatever the files have suffered."""

from __future__ import annotations

import math
import random
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from trace_maker import Made, Plan, damage, make

from resilient_launch.policy.partition import ALLOCATED, Label
from resilient_launch.report.accounts import RunFacts, RunReport, run_report

EDGES = (Label.START_UP, Label.RESTART, Label.IDLE_TAIL)
"""Where an allocation's edges meet the nodes' clocks: no better known than these agree."""


def account(made: Made, root: Path, *, with_slurm: bool = True) -> RunReport:
    paths = made.write(root)
    rows = {"7": made.rows} if with_slurm else {}
    return run_report(RunFacts(paths=paths, created_at=None, rows=rows, is_live=False, now=0.0))


def check(
    report: RunReport, made: Made, *, skew_s: float = 0.0, lost_windows: bool = False, torn: bool = False
) -> None:
    units = report.attempts[0].units
    found = report.unit_seconds
    assert math.isclose(math.fsum(found[label] for label in ALLOCATED), made.allocated_s * units, rel_tol=1e-9)
    num_attempts = len(report.attempts)
    for label in ALLOCATED:
        truth = made.truth[label]
        slack_s = 0.05 + 0.01 * truth
        # Where a rank's last word is lost, that of one on another node, with another clock, has to do.
        if label in EDGES or (torn and label in (Label.RESTORE, Label.HANG)):
            slack_s += (1.0 + 2 * skew_s) * num_attempts
        if lost_windows and label in (Label.USEFUL, Label.REWORK, Label.STRAGGLER):
            # A killed rank takes the window that it had not written, damage the one that it had.
            slack_s += (1.0 + 2 * skew_s) * num_attempts
        assert abs(found[label] / units - truth) <= slack_s, (label, found[label] / units, truth)


STORY = [
    Plan(num_steps=700, ends="crash", straggler=0.2),
    Plan(num_steps=350, ends="preempted"),
    Plan(num_steps=420, ends="hang"),
    Plan(num_steps=600, ends="finished"),
]


def test_every_label_of_an_undamaged_run(tmp_path: Path) -> None:
    made = make(STORY)
    report = account(made, tmp_path)
    check(report, made, lost_windows=True)
    assert all(report.unit_seconds[label] > 0 for label in ALLOCATED if label is not Label.UNKNOWN)
    assert math.isclose(report.unit_seconds[Label.QUEUE_WAIT], made.queue_wait_s)
    assert report.num_interruptions == 3
    assert [each.cause for each in report.attempts] == ["crash", "preempted", "hang", "finished"]
    assert [each.rework_steps for each in report.attempts] == [0, 100, 0, 170]
    assert made.rework_steps == 270
    assert report.has_local_times
    assert report.checkpoints.num_durable == 11
    assert report.checkpoints.num_emergency == 1
    assert report.checkpoints.blocking_mean_s == pytest.approx(30.0)
    assert report.checkpoints.bandwidth == pytest.approx((4 << 30) / 30.0)


@pytest.mark.parametrize(
    ("plans", "seed", "shuffled"),
    [
        # A hang whose last window of long steps is lost.
        ([Plan(num_steps=64, ends="hang", hang_s=30.0, step_s=3.0, save_every=20, save_s=60.0)], 557, False),
        ([Plan(num_steps=2, ends="hang", hang_s=30.0, step_s=3.0)], 1663, False),
        # A crash of which no window is left.
        ([Plan(num_steps=5, ends="preempted"), Plan(num_steps=3, ends="crash", step_s=3.0)], 319, False),
        ([Plan(num_steps=2, ends="crash", step_s=3.0)], 458, True),
    ],
)
def test_steps_whose_records_are_lost_are_no_hang(plans: list[Plan], seed: int, shuffled: bool, tmp_path: Path) -> None:
    made = make(plans, seed)
    damage(made, random.Random(seed), torn=True, repeated=False, foreign=False, shuffled=shuffled)
    report = account(made, tmp_path)
    hung_s = report.unit_seconds[Label.HANG] / report.attempts[0].units
    assert hung_s == pytest.approx(made.truth[Label.HANG], abs=1.0)
    done_s = (report.unit_seconds[Label.USEFUL] + report.unit_seconds[Label.REWORK]) / report.attempts[0].units
    assert done_s == pytest.approx(made.truth[Label.USEFUL] + made.truth[Label.REWORK], abs=1.0)


attempts = st.builds(
    Plan,
    num_steps=st.integers(0, 900),
    ends=st.sampled_from(["crash", "preempted", "hang", "finished"]),
    start_s=st.floats(60, 600),
    restore_s=st.floats(1, 100),
    hang_s=st.floats(30, 900),
    idle_s=st.floats(2, 60),
    step_s=st.floats(0.05, 3.0),
    save_every=st.integers(20, 400),
    save_s=st.floats(0.5, 60),
    straggler=st.sampled_from([0.0, 0.0, 0.1, 0.5]),
)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@given(
    plans=st.lists(attempts, min_size=1, max_size=4),
    seed=st.integers(0, 2**32),
    skew_s=st.sampled_from([0.0, 2.0]),
    jump_s=st.sampled_from([0.0, -30.0, 3600.0]),
    torn=st.booleans(),
    repeated=st.booleans(),
    foreign=st.booleans(),
    shuffled=st.booleans(),
)
def test_labels_add_up_and_match_the_truth_under_damage(
    plans: list[Plan],
    seed: int,
    skew_s: float,
    jump_s: float,
    torn: bool,
    repeated: bool,
    foreign: bool,
    shuffled: bool,
) -> None:
    # Only the last attempt can finish a run.
    plans = [replace(each, ends="preempted") if each.ends == "finished" else each for each in plans[:-1]] + plans[-1:]
    made = make(plans, seed, max_skew_s=skew_s, clock_jump_s=jump_s)
    damage(made, random.Random(seed), torn=torn, repeated=repeated, foreign=foreign, shuffled=shuffled)
    with tempfile.TemporaryDirectory() as directory:
        report = account(made, Path(directory))
    longest_s = max(each.step_s for each in plans)
    check(report, made, skew_s=max(skew_s, longest_s), lost_windows=True, torn=torn)
    assert report.damage.num_damaged_lines == 0 or torn or foreign
    assert (report.damage.unknown_kinds["weather"] > 0) == foreign
