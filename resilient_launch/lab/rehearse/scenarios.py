"""The scenarios of a rehearsal: what each does to the run, and what must then be seen beside an equal end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from resilient_launch.core.errors import UsageError
from resilient_launch.job.rehearsal import Mishap

LEAST_STEPS, MOST_STEPS, DEFAULT_STEPS = 16, 60, 40
_SAVES = 8


@dataclass(frozen=True, kw_only=True)
class Moments:
    """Steps of interest in a rehearsal of ``steps`` steps that saves every ``every`` ones: none is both."""

    steps: int
    every: int

    @classmethod
    def of(cls, steps: int) -> Moments:
        """Raises UsageError outside of what a rehearsal is for."""
        if not LEAST_STEPS <= steps <= MOST_STEPS:
            raise UsageError(f"{steps} steps", why=f"a rehearsal takes {LEAST_STEPS} to {MOST_STEPS}")
        return cls(steps=steps, every=steps // _SAVES)

    def save(self, number: int) -> int:
        """The step of a save, counted from 1."""
        return number * self.every

    def between(self, number: int) -> int:
        """A step after save ``number`` and before the next."""
        return number * self.every + max(self.every // 2, 1)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a scenario's own conditions look at.

    ``resume_steps`` are where its lives began, ``restores`` is whether the script goes through run.restore, ``saves``
    are (status, reason, step) of every checkpoint event.
    """

    moments: Moments
    causes: Sequence[str | None]
    resume_steps: Sequence[int]
    restores: bool
    quarantined: Sequence[str]
    saves: Sequence[tuple[str, str, int]]
    marks: Mapping[str, Mapping[str, object]]

    @property
    def num_lives(self) -> int:
        return len(self.resume_steps)


Action = Literal["none", "preempt", "time-limit", "fail-node", "cut-node", "kills", "damage", "change-world"]
Condition = Callable[[Seen], list[str]]


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One way to interrupt a run. ``mishaps`` happen inside the workers, ``action`` is done to them from outside.

    ``is_exact``: the end must be the reference's, bit for bit. ``drops``: every piece of the state is left out once.
    """

    letter: str
    name: str
    fault: str
    mishaps: Callable[[Moments], tuple[Mishap, ...]] = lambda _: ()
    action: Action = "none"
    condition: Condition = lambda _: []
    is_exact: bool = True
    drops: bool = False
    pace_s: float = 0.0
    short_grace: bool = False
    needs_ranks: int = 1


def _resumed_at(steps: Callable[[Moments], Sequence[int]]) -> Condition:
    def condition(seen: Seen) -> list[str]:
        wanted = list(steps(seen.moments))
        found = list(seen.resume_steps[1:])
        # A script with checkpoints of its own has its own steps for them.
        if found == wanted or not seen.restores:
            return []
        return [f"resumed from {found}, not {wanted}: does run.restore load what run.steps saves?"]

    return condition


def _saved_on_notice(cause: str) -> Condition:
    def condition(seen: Seen) -> list[str]:
        problems = _ended_for(cause)(seen)
        if not any(status == "durable" and reason == "notice" for status, reason, _ in seen.saves):
            problems.append(
                "the job ignores notices: it was told that its end was near and saved nothing; call run.boundary, or "
                "go through run.steps, once a step, and ask run.stop_requested() in long phases"
            )
        return problems

    return condition


def _ended_for(cause: str) -> Condition:
    def condition(seen: Seen) -> list[str]:
        return (
            []
            if cause in seen.causes
            else [f"no attempt ended for {cause}, but for {', '.join(map(str, seen.causes))}"]
        )

    return condition


def _all(*conditions: Condition) -> Condition:
    return lambda seen: [problem for condition in conditions for problem in condition(seen)]


def _quarantined_three(seen: Seen) -> list[str]:
    steps = sorted(int(name.split("-")[1].split(".")[0]) for name in seen.quarantined)
    wanted = [seen.moments.save(number) for number in (2, 3, 4)]
    return [] if steps == wanted else [f"checkpoints of steps {steps} were set aside, not {wanted}"]


def _refused_once(seen: Seen) -> list[str]:
    failed = [step for status, _, step in seen.saves if status == "failed"]
    return [] if failed == [seen.moments.save(2)] else [f"saves of steps {failed} failed, not that of the full disk"]


def _started_again(seen: Seen) -> list[str]:
    starts = [name for name in seen.marks if name.startswith("pid.") and name.endswith(".00000")]
    return [] if len(starts) > 1 else ["nothing was killed: the run was over too soon"]


def _has_two_attempts(seen: Seen) -> list[str]:
    return [] if len(seen.causes) > 1 else ["no newer attempt took over"]


def _zombie_shut_out(seen: Seen) -> list[str]:
    """The save that it woke up in must not appear; what it saves after that is not of the new attempt's lineage."""
    interrupted = seen.moments.save(4)
    is_late = ("late", "", interrupted) in seen.saves
    return [f"the old attempt still published step {interrupted}, in which it was interrupted"] if is_late else []


def _kill(*steps: int) -> tuple[Mishap, ...]:
    return tuple(Mishap(kind="kill", step=step) for step in steps)


def _gate(step: int) -> tuple[Mishap, ...]:
    return (Mishap(kind="gate", step=step, rank=None),)


SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        letter="B",
        name="crash",
        fault="crashes between two saves, twice",
        mishaps=lambda at: _kill(at.between(2), at.between(6)),
        condition=_resumed_at(lambda at: [at.save(2), at.save(6)]),
    ),
    Scenario(
        letter="C",
        name="kill",
        fault="SIGKILL at random moments",
        action="kills",
        pace_s=0.05,
        condition=_started_again,
    ),
    Scenario(
        letter="D",
        name="drop",
        fault="one piece of the state left out at a time",
        mishaps=lambda at: _kill(at.between(4)),
        drops=True,
    ),
    Scenario(
        letter="E",
        name="torn-save",
        fault="SIGKILL in the middle of a save",
        mishaps=lambda at: (
            Mishap(kind="kill-in-save", step=at.save(3)),
            Mishap(kind="kill-in-own", step=at.between(4)),
        ),
    ),
    Scenario(
        letter="F",
        name="damage",
        fault="finished checkpoints damaged: a bit flipped, a file cut, a file gone",
        mishaps=lambda at: (*_gate(at.between(4)), *_kill(at.between(4))),
        action="damage",
        condition=_all(_quarantined_three, _resumed_at(lambda at: [at.save(1)])),
    ),
    Scenario(
        letter="G",
        name="preempt",
        fault="preempted, with grace",
        mishaps=lambda at: _gate(at.between(3)),
        action="preempt",
        condition=_saved_on_notice("preempted"),
    ),
    Scenario(
        letter="H",
        name="short-grace",
        fault="preempted, with less grace than a save takes",
        mishaps=lambda at: (*_gate(at.between(3)), Mishap(kind="slow-save", step=0, rank=None)),
        action="preempt",
        short_grace=True,
        condition=_all(_ended_for("preempted"), _resumed_at(lambda at: [at.save(3)])),
    ),
    Scenario(
        letter="I",
        name="time-limit",
        fault="the time limit comes",
        mishaps=lambda at: _gate(at.between(4)),
        action="time-limit",
        condition=_saved_on_notice("time_limit"),
    ),
    Scenario(
        letter="J",
        name="node",
        fault="a node fails",
        mishaps=lambda at: _gate(at.between(4)),
        action="fail-node",
        condition=_all(_ended_for("node_failure"), _resumed_at(lambda at: [at.save(4)])),
    ),
    Scenario(
        letter="K",
        name="hang",
        fault="a worker freezes",
        mishaps=lambda at: (Mishap(kind="freeze", step=at.between(5)),),
        condition=_resumed_at(lambda at: [at.save(5)]),
    ),
    Scenario(
        letter="L",
        name="full-disk",
        fault="no space left for a save, then a crash",
        mishaps=lambda at: (Mishap(kind="refuse-save", step=at.save(2)), *_kill(at.between(2))),
        condition=_all(_refused_once, _resumed_at(lambda at: [at.save(1)])),
    ),
    Scenario(
        letter="M",
        name="world-size",
        fault="goes on with another number of ranks",
        mishaps=lambda at: _gate(at.between(3)),
        action="change-world",
        is_exact=False,
        needs_ranks=2,
    ),
    Scenario(
        letter="N",
        name="same-epoch",
        fault="two interruptions before the next save, in one epoch",
        mishaps=lambda at: _kill(at.save(5) + 1, at.between(5)),
        condition=_resumed_at(lambda at: [at.save(5), at.save(5)]),
    ),
    Scenario(
        letter="O",
        name="zombie",
        fault="a worker of the old attempt wakes up inside its save; then the new attempt crashes",
        mishaps=lambda at: (
            Mishap(kind="stop-in-save", step=at.save(4)),
            Mishap(kind="kill", step=at.between(6), attempt=1),
        ),
        action="cut-node",
        condition=_all(_has_two_attempts, _zombie_shut_out, _resumed_at(lambda at: [at.save(3), at.save(6)])),
    ),
)


def choose(names: Sequence[str]) -> tuple[Scenario, ...]:
    """Scenarios by letter or name, in their own order; none named means all. Raises UsageError for an unknown one."""
    known = {key: each for each in SCENARIOS for key in (each.letter.lower(), each.name)}
    if unknown := [name for name in names if name.lower() not in known]:
        raise UsageError(f"scenario {unknown[0]!r}", why="is not one", hint=", ".join(each.name for each in SCENARIOS))
    chosen = {known[name.lower()].name for name in names}
    return tuple(each for each in SCENARIOS if not names or each.name in chosen)
