"""The events of a simulated run, accounted for by the same code as a real one's, against the simulator's truth."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest

from resilient_launch.core.events import KINDS
from resilient_launch.lab.simulate.gaps import Exponential, Trace
from resilient_launch.lab.simulate.job import JobModel, simulate_once
from resilient_launch.lab.simulate.plans import HazardAware, Plan, Spaced
from resilient_launch.lab.simulate.story import tell
from resilient_launch.policy.goodput import Label, account
from resilient_launch.policy.hazard import Hazard

HOUR = 3600.0
KNOWN = Hazard(base_rate=1 / (24 * HOUR), late_rate=1 / HOUR, exempt_s=2 * HOUR)
MODELS: dict[str, tuple[Plan, dict[str, Any]]] = {
    "plain": (Spaced(1800.0), {"gaps": Exponential(3.1 * HOUR)}),
    "notice": (Spaced(1500.0), {"gaps": Exponential(3.1 * HOUR), "notice": 0.5, "emergency_s": 90.0}),
    "window": (
        HazardAware(KNOWN, 120.0),
        {"gaps": Exponential(24 * HOUR), "preempt_mtbf_s": HOUR, "exempt_s": 2 * HOUR, "notice": 0.3},
    ),
    "trace and limit": (Spaced(1000.0), {"gaps": Trace((3 * HOUR, 100.0, 7 * HOUR)), "limit_s": 5 * HOUR}),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("damage", ["none", "duplicates", "skew"])
def test_the_partition_is_the_simulators_own(name: str, damage: str) -> None:
    plan, changes = MODELS[name]
    model = JobModel(work_s=100 * HOUR, cost_s=120.0, restart_s=600.0, startup_s=600.0, plan=plan, **changes)
    outcome, spans = simulate_once(model, seed=7)
    events, allocations = tell(model, spans, step_s=10.0, num_gpus=8, start_s=1.7e9)
    assert all(KINDS[event["kind"]] <= event.keys() for event in events)
    rng = random.Random(1)
    if damage == "duplicates":
        events += rng.sample(events, len(events) // 3)
        rng.shuffle(events)
    elif damage == "skew":
        skews = {allocation.attempt: rng.uniform(-2, 2) for allocation in allocations}
        events = [{**event, "t": event["t"] + skews[event["attempt"]]} for event in events]
    found = account(events, allocations)
    truth = {name: 8 * float(values[0]) for name, values in outcome.seconds.items()}
    assert found.allocated_gpu_s == pytest.approx(sum(truth.values()), rel=1e-9)
    spent = found.gpu_s
    told = {
        "useful": spent[Label.USEFUL],
        "lost": spent[Label.REWORK],
        "checkpoint": spent[Label.CHECKPOINT],
        "emergency": spent[Label.EMERGENCY],
        "restart": spent[Label.START_UP] + spent[Label.RESTART],
    }
    for component, seconds in truth.items():
        # A killed rank takes up to two steps with it that it had not written down.
        slack = 8 * 20.0 * len(spans) if component == "lost" else 8 * 2.0 * len(spans)
        assert told[component] == pytest.approx(seconds, rel=0.01, abs=slack), component


def test_a_run_that_is_told_has_its_steps_in_order() -> None:
    model = JobModel(
        work_s=10 * HOUR, cost_s=60.0, restart_s=60.0, gaps=Exponential(2 * HOUR), plan=Spaced(900.0), notice=0.5
    )
    _, spans = simulate_once(model, seed=2)
    events, allocations = tell(model, spans, step_s=7.0)
    assert [allocation.attempt for allocation in allocations] == list(range(len(spans)))
    windows = [event for event in events if event["kind"] == "window"]
    assert max(window["first"] + len(window["end_s"]) for window in windows) == -(-36000 // 7)
    for attempt in range(len(spans)):
        mine = [window for window in windows if window["attempt"] == attempt]
        ends = [end for window in mine for end in window["end_s"]]
        assert ends == sorted(ends)
        for before, after in pairwise(mine):
            assert after["first"] == before["first"] + len(before["end_s"])
    saved = {event["step"] for event in events if event["kind"] == "checkpoint" and event["status"] == "durable"}
    assert all(event["resume_step"] in saved | {0} for event in events if event["kind"] == "resume")
    (end,) = [event for event in events if event["kind"] == "end" and event["cause"] == "finished"]
    assert end["step"] == -(-36000 // 7)
