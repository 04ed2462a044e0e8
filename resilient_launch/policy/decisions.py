"""The decision table: what happened, why the run's agents think so, and what they do about it.

Every row is an example that the rules themselves answer, so the text in DECISIONS.md cannot say anything else than the
code does. Write it anew with ``python -c "from resilient_launch.policy.decisions import write; write()"``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from resilient_launch.core.causes import Cause
from resilient_launch.policy import backoff, cause, notice
from resilient_launch.policy.cause import RankFailure
from resilient_launch.policy.requeue import AttemptEnd, Decision, Life, Limits, decide, passed_over

DOCUMENT = Path(__file__).with_name("DECISIONS.md")
LIMITS = Limits()
NOW = 1_000_000.0


@dataclass(frozen=True, kw_only=True)
class Row:
    """One case: what can be observed, in words, and the values that the rules are asked with."""

    case: str
    observed: str
    cause: Cause
    decision: Decision
    note: str = ""


def rows() -> list[Row]:
    """Every case, answered by the rules."""
    return [*_notices(), *_silences(), *_ends()]


def _notice_cause(
    signal: str = "SIGTERM",
    *,
    state: str = "RUNNING",
    preempt_time: float | None = None,
    end_in_s: float | None = 36000.0,
    maintenance_in_s: float | None = None,
) -> Cause:
    return notice.classify(
        signal,
        now=NOW,
        job_state=state,
        preempt_time=preempt_time,
        end_time=None if end_in_s is None else NOW + end_in_s,
        kill_wait_s=30.0,
        signal_lead_s=120.0,
        maintenance_starts=() if maintenance_in_s is None else (NOW + maintenance_in_s,),
    ).cause


def _notices() -> list[Row]:
    cases: Sequence[tuple[str, str, Cause, bool]] = (
        ("preemption", "TERM, or the user's signal; PreemptTime is set", _notice_cause(preempt_time=NOW), False),
        ("end of a preemption's grace", "TERM; state PREEMPTED", _notice_cause(state="PREEMPTED", end_in_s=-1), False),
        ("time limit comes near", "USR2; EndTime within the lead", _notice_cause("SIGUSR2", end_in_s=110), False),
        (
            "time limit",
            "TERM; state TIMEOUT, or EndTime has passed",
            _notice_cause(state="TIMEOUT", end_in_s=-1),
            False,
        ),
        (
            "limit in front of a maintenance",
            "USR2; a MAINT reservation of the nodes starts at EndTime",
            _notice_cause("SIGUSR2", end_in_s=110, maintenance_in_s=150),
            False,
        ),
        ("a person or a site's script", "USR1, USR2 or TERM with nothing behind it", _notice_cause("SIGUSR1"), False),
        ("rlaunch yield", "request file", Cause.YIELDED, False),
        ("rlaunch drain", "request file", Cause.MAINTENANCE, False),
        ("rlaunch stop", "request file", Cause.CANCELLED, True),
        ("scancel", "TERM; state CANCELLED", _notice_cause(state="CANCELLED"), False),
    )
    return [
        Row(
            case=case,
            observed=observed,
            cause=found,
            decision=decide(_end(found), [], limits=LIMITS, stop_requested=is_stop),
            note="saves first, as far as the deadline allows",
        )
        for case, observed, found, is_stop in cases
    ]


def _silences() -> list[Row]:
    cases: Sequence[tuple[str, str, str | None, Cause | None]] = (
        ("killed after a notice", "no report; a notice is in the events", None, Cause.PREEMPTED),
        ("first node lost, or power cut", "no report; the job came back by itself", None, None),
        ("first node lost", "no report; accounting says NODE_FAIL", "NODE_FAIL", None),
        ("killed without a word at the limit", "no report; accounting says TIMEOUT", "TIMEOUT", None),
        ("killed without a word by a preemption", "no report; accounting says PREEMPTED", "PREEMPTED", None),
        ("memory ran out on the batch host", "no report; accounting says OUT_OF_MEMORY", "OUT_OF_MEMORY", None),
        ("batch script ended by itself", "no report; accounting says FAILED", "FAILED", None),
    )
    return [
        Row(
            case=case,
            observed=observed,
            cause=(found := cause.of_silence(state=state, notice=heard)),
            decision=decide(_end(found), [], limits=LIMITS),
            note="told by the next attempt",
        )
        for case, observed, state, heard in cases
    ]


def _ends() -> list[Row]:
    crash, lost = cause.of_reports(finished=[False], num_missing=0, notice=None), Cause.NODE_FAILURE
    wait_s = [
        round(backoff.delay_s(number, base_s=10, cap_s=600, jitter=1)) for number in range(1, LIMITS.max_failures + 1)
    ]
    waits = f"after {', '.join(map(str, wait_s))} s at most"
    wrong = cause.user_error([RankFailure(rank=0, exit_code=1, error="ImportError: no module")], num_ranks=8)
    usage = cause.user_error([RankFailure(rank=0, exit_code=2)], num_ranks=8)
    alike = cause.user_error(
        [RankFailure(rank=rank, exit_code=1, error="ValueError: lr") for rank in (0, 1)], num_ranks=2
    )
    stuck = [_life(None), _life("c40"), _life("c40")]
    bad = [_life("c40")] * LIMITS.same_step
    failures = [_end(crash)] * LIMITS.max_failures
    return [
        Row(
            case="last step done",
            observed="every rank left well",
            cause=cause.of_reports(finished=[True, True], num_missing=0, notice=None),
            decision=decide(_end(Cause.FINISHED), [], limits=LIMITS),
        ),
        Row(
            case="last step done after a notice",
            observed="every rank left well",
            cause=cause.of_reports(finished=[True, True], num_missing=0, notice=Cause.PREEMPTED),
            decision=decide(_end(Cause.FINISHED), [], limits=LIMITS),
        ),
        _failure("worker died", "a rank ended by itself; restarts inside the job are used up", crash, waits),
        _failure(
            "node lost",
            "a node's agent did not report",
            cause.of_reports(finished=[False], num_missing=1, notice=None),
            f"{waits}; without that node",
        ),
        _failure("ranks stood still", "no sign of life within the phase's timeout", Cause.HANG, waits),
        _failure("memory ran out", "the cgroup's counters", Cause.OUT_OF_MEMORY, waits),
        Row(
            case="the same failure without progress",
            observed=f"more than {LIMITS.max_failures} times in a row",
            cause=crash,
            decision=decide(_end(crash), failures, limits=LIMITS),
        ),
        Row(
            case="the same failure, after progress",
            observed="100 new steps, or a new checkpoint",
            cause=crash,
            decision=decide(AttemptEnd(cause=crash, end_step=500), failures, limits=LIMITS),
        ),
        Row(
            case="another failure",
            observed="its own budget",
            cause=lost,
            decision=decide(_end(lost), failures, limits=LIMITS),
        ),
        Row(
            case="same step again and again",
            observed=f"reached {LIMITS.same_step} times in a row, not passed",
            cause=crash,
            decision=decide(_end(crash), [], limits=LIMITS, lives=stuck, checkpoints=["c40", "c30"]),
        ),
        Row(
            case="a checkpoint leads nowhere",
            observed=f"{LIMITS.same_step} restarts from it in a row failed",
            cause=crash,
            decision=decide(_end(crash), [], limits=LIMITS, lives=bad, checkpoints=["c40", "c30"]),
            note=f"passed over: {', '.join(passed_over(bad, ['c40', 'c30'], limits=LIMITS))}",
        ),
        Row(
            case="import or syntax error",
            observed="one rank, before the run's first step",
            cause=crash,
            decision=decide(_end(crash, None), [], limits=LIMITS, user_error=wrong),
        ),
        Row(
            case="wrong usage, or no such command",
            observed="exit code 2, 126 or 127 before the run's first step",
            cause=crash,
            decision=decide(_end(crash, None), [], limits=LIMITS, user_error=usage),
        ),
        Row(
            case="exception on every rank",
            observed="before the run's first step, and none that a machine can cause",
            cause=crash,
            decision=decide(_end(crash, None), [], limits=LIMITS, user_error=alike),
        ),
    ]


def _failure(case: str, observed: str, found: Cause, note: str) -> Row:
    return Row(case=case, observed=observed, cause=found, decision=decide(_end(found), [], limits=LIMITS), note=note)


def _end(found: Cause, step: int | None = 50) -> AttemptEnd:
    return AttemptEnd(cause=found, end_step=step)


def _life(checkpoint: str | None) -> Life:
    return Life(
        attempt=0,
        restart=0,
        checkpoint=checkpoint,
        resume_step=40 if checkpoint else 0,
        end_step=50,
        has_saved=False,
        has_failed=True,
    )


def render() -> str:
    """DECISIONS.md."""
    lines = [
        "# What follows the end of an attempt",
        "",
        "Made from the rules by `resilient_launch/policy/decisions.py`; a test compares the two.",
        "",
        "| case | observed | cause | then | why | note |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.case} | {row.observed} | {row.cause} | {row.decision.action} | {row.decision.why} | {row.note} |"
        for row in rows()
    ]
    return "\n".join(lines) + "\n"


def write() -> None:
    """Put the table where the documentation has it."""
    DOCUMENT.write_text(render(), encoding="utf-8")
