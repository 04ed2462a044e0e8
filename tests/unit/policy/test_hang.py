import math

import pytest

from resilient_launch.policy.hang import (
    Limits,
    RankView,
    blame,
    collective_settings,
    is_hung,
    seconds_to_proof,
    timeout_s,
)

LIMITS = Limits(floor_s=10.0, ceiling_s=600.0)


def view(rank: int, **changes: object) -> RankView:
    """A rank that stands in its step for longer than it may, unless told otherwise."""
    values = {"phase": "step", "step": 7, "idle_s": 11.0, "timeout_s": 10.0, "state": "S"}
    return RankView(rank=rank, node=f"n{rank}", **{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("phase", "gap_s", "num_gaps", "expected_s"),
    [
        ("step", 0.05, 3, 10.0),  # the floor
        ("step", 4.0, 3, 20.0),  # five times the largest gap
        ("step", 200.0, 3, 600.0),  # the ceiling
        ("step", 0.05, 2, 600.0),  # too few steps to say anything of the next
        ("step", 0.0, 9, 600.0),
        ("init", 0.0, 0, 600.0),  # generous until it was seen
        ("save", 0.0, 0, 600.0),
        ("init", 3.0, 0, 15.0),
        ("save", 3.0, 0, 15.0),
        ("leave", 1.0, 9, math.inf),  # the script's own affair
    ],
)
def test_timeout(phase: str, gap_s: float, num_gaps: int, expected_s: float) -> None:
    assert timeout_s(phase, largest_gap_s=gap_s, num_gaps=num_gaps, limits=LIMITS) == expected_s


@pytest.mark.parametrize(
    ("others", "hung"),
    [
        ([], True),
        ([view(1)], True),
        ([view(1, idle_s=0.1)], False),  # it has just come to this step, perhaps from evaluating alone
        ([view(1, timeout_s=300.0)], True),  # it came with the other one, and is patient since it once had to wait
        ([view(1, idle_s=0.1, step=8)], True),  # a rank that steps on is nobody to wait for
        ([view(1, idle_s=0.1, phase="leave", timeout_s=math.inf)], True),  # nor one that has left
        ([view(1, idle_s=0.1, phase="eval")], False),  # the first rank alone evaluates, the others wait for it
        ([view(1, idle_s=0.1, phase="save", step=8)], True),  # it saves the step that the other one never finished
        ([view(1, phase="eval")], True),  # its own time is over, too
        ([view(1, idle_s=0.1, phase="eval", state="T")], True),  # a stopped rank will not come back from it
        ([view(1, idle_s=0.1, phase="eval", state="")], True),  # nor will one that is gone
        ([view(1, idle_s=0.1, phase="init", step=-1, attached=False)], False),  # still importing
    ],
)
def test_a_rank_that_stands_still_hangs_unless_it_waits_for_one_that_is_busy(
    others: list[RankView], hung: bool
) -> None:
    assert is_hung([view(0), *others]) is hung


@pytest.mark.parametrize(
    "alone",
    [
        view(0, idle_s=9.9),
        view(0, state=""),  # a process that is gone crashed
        view(0, phase="init", attached=False),  # scripts need not join the run
        view(0, phase="init", attached=False, state="t"),  # a tracer's, anywhere in its imports
    ],
)
def test_no_hang(alone: RankView) -> None:
    assert not is_hung([alone])


def test_a_process_that_was_stopped_after_its_last_step_hangs() -> None:
    limit_s = timeout_s("leave", largest_gap_s=1.0, num_gaps=9, limits=LIMITS, is_stopped=True)
    assert limit_s == LIMITS.ceiling_s
    stopped = view(0, phase="leave", state="T", idle_s=limit_s + 1, timeout_s=limit_s)
    assert is_hung([stopped]) and blame([stopped]).rank == 0
    assert seconds_to_proof([stopped]) == 0.0


def test_a_process_that_was_stopped_before_it_joined_hangs() -> None:
    assert is_hung([view(0, phase="init", step=-1, attached=False, state="T")])
    assert not is_hung([view(0, phase="init", step=-1, attached=False, state="T", idle_s=9.9)])


def test_a_stopped_process_hangs_though_another_rank_is_busy() -> None:
    assert is_hung([view(0, state="T"), view(1, phase="save", idle_s=0.1)])


@pytest.mark.parametrize(
    ("views", "wait_s"),
    [
        ([view(0)], 9.0),  # twice 10 s, of which 11 have passed
        ([view(0, idle_s=20.5)], 0.0),
        ([view(0), view(1, idle_s=15.0)], 5.0),
        ([view(0), view(1, state="T", idle_s=1.0)], 0.0),  # nothing to wait for
        ([view(0), view(1, state="", idle_s=99.0)], 9.0),
        ([view(0), view(1, idle_s=9.0, timeout_s=1.0, attached=False)], 9.0),
    ],
)
def test_a_gang_without_a_stopped_process_gets_its_time_twice(views: list[RankView], wait_s: float) -> None:
    assert seconds_to_proof(views) == wait_s


COLLECTIVE = "/lib/torch/autograd/graph.py:9 _engine_run_backward"


@pytest.mark.parametrize(
    ("views", "rank", "words"),
    [
        ([view(0), view(1, state="T", step=8), view(2, step=5)], 1, "stopped"),
        ([view(0), view(1), view(2, step=6)], 2, "step 6, others are at step 7"),
        ([view(0, phase="save"), view(1)], 0, "in phase save"),
        ([view(0, location=COLLECTIVE), view(1, location="train.py:3 load")], 1, "train.py:3 load"),
        ([view(0, location="a:1 f"), view(1, location="b:2 g"), view(2, location="a:1 f")], 1, "b:2 g"),
        ([view(0), view(1, state="D")], 1, "state D"),
        ([view(0, location=COLLECTIVE), view(1, location=COLLECTIVE)], None, "alike"),
        ([view(0, phase="leave", step=9), view(1), view(2)], None, "alike"),
        ([view(0, state="")], None, "no rank is left"),
    ],
)
def test_blame(views: list[RankView], rank: int | None, words: str) -> None:
    found = blame(views)
    assert (found.rank, found.node) == (rank, None if rank is None else f"n{rank}")
    assert words in found.why


def test_the_users_own_settings_stay_under_old_and_new_names() -> None:
    def added(**env: str) -> dict[str, str]:
        return collective_settings(env, ceiling_s=600.5, trace_prefix="/t/", pipe_prefix="/p/")

    assert added()["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"] == "661"
    assert added()["TORCH_FR_BUFFER_SIZE"] == added()["TORCH_NCCL_TRACE_BUFFER_SIZE"]
    assert added().keys() - added(TORCH_NCCL_DESYNC_DEBUG="0").keys() == {"TORCH_NCCL_DESYNC_DEBUG"}
    for name in ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE"):
        kept = added(**{name: "0"})
        assert not {"TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE"} & kept.keys()
