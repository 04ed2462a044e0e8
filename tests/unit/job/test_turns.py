from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from resilient_launch.config.schema import StaggerConfig
from resilient_launch.core.paths import RunPaths
from resilient_launch.job.page import Page, Phase
from resilient_launch.job.turns import BEGIN_TIMEOUT_S, HANG_S, NO_ANSWER_S, SharedTurns, Unshared
from resilient_launch.policy.stagger import Want
from resilient_launch.stagger.group import Group
from resilient_launch.stagger.ticket import OwnTicket
from resilient_launch.stagger.tickets import Member
from resilient_launch.stagger.turn import Turn

PERIOD_S = 600.0


class Bench:
    """One run's turns, its page, and the clock that its agent would read."""

    def __init__(self, tmp_path: Path, **fields: Any) -> None:
        self.group = Group(tmp_path / "group", writers=1)
        self.group.prepare()
        self.paths = RunPaths(tmp_path / fields.pop("run", "run"))
        self.paths.checkpoints.mkdir(parents=True)
        self.page = Page.private()
        self.page.step = self.page.resume_step = 0
        self.decisions: list[str] = []
        self.now = 1000.0
        stretches = fields.pop("stretches", False)
        config = StaggerConfig(**{"group": self.group.directory, "writers": 1, "max_wait_s": 120.0, **fields})
        self.turns = SharedTurns(
            config,
            self.paths,
            job_id="17",
            weight=2.0,
            mtbf_s=1e6,
            save_timeout_s=300.0,
            stretches=stretches,
            emit_decision=lambda what, why, **more: self.decisions.append(why),
        )

    def ask(
        self,
        age_s: float = PERIOD_S,
        is_due: bool | None = None,
        period_s: float = PERIOD_S,
        mtbf_s: float | None = None,
    ) -> bool:
        due = age_s >= period_s if is_due is None else is_due
        return self.turns.may_ask(
            self.now, is_due=due, age_s=age_s, period_s=period_s, pages=[self.page], mtbf_s=mtbf_s
        )

    def names(self, place: str) -> list[str]:
        return [path.name for path in self.group.directory.glob(f"{place}-*.json")]

    def hold(self) -> OwnTicket:
        want = Want(id="", kind="save", weight=1, write_s=1, mtbf_s=1e4, age_s=9, period_s=1, arrived=0)
        return OwnTicket(self.group, "another", want, place="hold")


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def build(**fields: Any) -> Bench:
        made.append(Bench(tmp_path, **fields))
        return made[-1]

    yield build
    for bench in made:
        bench.turns.close()


class HangingGroup(Group):
    """A mount whose server does not answer until the test says so."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.answers = threading.Event()

    def prepare(self) -> None:
        self.answers.wait(60)
        raise OSError("the server came back and has lost the directory")


def until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def test_without_a_group_what_is_due_is_asked_for() -> None:
    turns = Unshared()
    assert turns.may_ask(0.0, is_due=True, age_s=1.0, period_s=1.0, pages=[])
    assert not turns.may_ask(0.0, is_due=False, age_s=1.0, period_s=2.0, pages=[])


def test_nothing_happens_before_a_save_is_due(make: Callable[..., Bench]) -> None:
    bench = make()
    assert not bench.ask(100.0)
    assert not bench.ask(0.0, period_s=0.0)
    assert not bench.names("wait") and not bench.names("hold")


def test_a_due_save_is_asked_for_once_when_its_turn_has_come(make: Callable[..., Bench]) -> None:
    bench = make()
    assert not bench.ask()
    until(bench.ask)
    assert not bench.ask()
    assert bench.decisions[0].startswith("its turn came after")
    assert len(bench.names("hold")) == 1
    bench.page.phase = Phase.SAVE
    bench.now += 1
    assert not bench.ask()
    name = "step-00000007.a0000.r0"
    (bench.paths.checkpoints / name).mkdir()
    (bench.paths.checkpoints / name / "shard").write_bytes(b"x" * 1000)
    bench.page.saved_step, bench.page.saved_mono, bench.page.phase = 7, bench.now + 4, Phase.STEP
    bench.now += 5
    assert not bench.ask(0.0)
    until(lambda: not bench.names("hold") and bool(bench.group.look(time.time()).members))
    (member,) = bench.group.look(time.time()).members
    assert member.write_s == pytest.approx(4.0)
    assert [(each.num_writers, each.num_bytes) for each in member.samples] == [(1, 1000)]


def test_a_ticket_tells_how_often_the_job_was_seen_to_fail(make: Callable[..., Bench]) -> None:
    bench = make()
    other = bench.hold()
    assert not bench.ask(mtbf_s=5000.0)
    until(lambda: len(bench.names("wait")) == 1)
    (waiter,) = bench.group.look(time.time()).waiters
    assert waiter.ticket.want.mtbf_s == 5000.0
    other.release()


def test_while_another_writes_it_waits_and_then_saves_all_the_same(make: Callable[..., Bench]) -> None:
    bench = make()
    other = bench.hold()
    assert not bench.ask()
    until(lambda: len(bench.names("wait")) == 1)
    assert not bench.ask()
    bench.now += 119
    assert not bench.ask()
    bench.now += 2
    assert bench.ask()
    assert bench.decisions == ["no turn came within 120 s (others were ahead)"]
    other.release()


def test_a_directory_that_cannot_be_used_delays_a_save_by_a_minute(make: Callable[..., Bench], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    bench = make(group=tmp_path / "file" / "group")
    assert not bench.ask()
    turn = bench.turns._turn
    assert turn is not None
    until(lambda: bool(turn.problem))
    assert not bench.ask()
    bench.now += NO_ANSWER_S - 1
    assert not bench.ask()
    bench.now += 2
    assert bench.ask()
    assert bench.decisions == [f"without a turn at {tmp_path}/file/group: Not a directory"]


def test_a_directory_that_does_not_answer_delays_a_save_by_a_minute(make: Callable[..., Bench]) -> None:
    bench = make()
    assert not bench.ask()
    turn = bench.turns._turn
    assert turn is not None
    turn.release()
    group = HangingGroup(bench.group.directory)
    stuck = bench.turns._turn = Turn(
        group, "run", Want(id="", kind="save", weight=1, write_s=1, mtbf_s=1e4, age_s=9, period_s=1, arrived=0)
    )
    stuck.start()
    assert not bench.ask()
    bench.now += NO_ANSWER_S + 1
    assert bench.ask()
    assert bench.decisions == [f"without a turn at {bench.group.directory}: no answer"]
    group.answers.set()
    stuck.release()
    stuck.join(10)
    assert not stuck.is_alive()


def test_a_save_for_another_reason_gives_the_ticket_back(make: Callable[..., Bench]) -> None:
    bench = make()
    other = bench.hold()
    bench.ask()
    until(lambda: len(bench.names("wait")) == 1)
    bench.page.saved_mono = bench.now + 1
    bench.now += 2
    assert not bench.ask(1.0)
    until(lambda: not bench.names("wait"))
    other.release()


def granted(bench: Bench) -> None:
    bench.ask()
    until(bench.ask)


def test_a_save_that_fails_gives_the_turn_back(make: Callable[..., Bench]) -> None:
    bench = make()
    granted(bench)
    bench.page.phase = Phase.SAVE
    bench.ask(1.0)
    bench.page.phase = Phase.STEP
    bench.ask(1.0)
    until(lambda: not bench.names("hold"))


def test_a_save_that_never_begins_gives_the_turn_back(make: Callable[..., Bench]) -> None:
    bench = make()
    granted(bench)
    bench.now += BEGIN_TIMEOUT_S + 1
    bench.ask(1.0)
    until(lambda: not bench.names("hold"))


def test_a_save_that_hangs_gives_the_turn_back(make: Callable[..., Bench]) -> None:
    bench = make()
    granted(bench)
    bench.page.phase = Phase.SAVE
    bench.ask(1.0)
    bench.now += 299
    bench.ask(1.0)
    assert bench.names("hold")
    bench.now += 100
    bench.ask(1.0)
    until(lambda: not bench.names("hold"))


def test_a_restore_counts_as_a_turn_and_never_waits(make: Callable[..., Bench]) -> None:
    bench = make()
    other = bench.hold()
    bench.page.resume_step = -1
    bench.turns.group_started([bench.page])
    until(lambda: len(bench.names("hold")) == 2)
    bench.ask(1.0)
    assert len(bench.names("hold")) == 2
    bench.page.resume_step = 5
    bench.ask(1.0)
    until(lambda: len(bench.names("hold")) == 1)
    other.release()


def crowd(bench: Bench) -> None:
    """Others whose saves take all of the storage's time."""
    for number in range(40):
        bench.group.publish(Member(run=f"r{number}", weight=1.0, write_s=100.0, mtbf_s=2e4, period_s=2000.0))


def learn_of_the_group(bench: Bench) -> None:
    granted(bench)
    bench.page.saved_mono = bench.now + 1
    bench.now += 2
    bench.ask(0.0)


def test_early_saves_come_only_where_storage_is_in_demand(make: Callable[..., Bench]) -> None:
    bench = make()
    learn_of_the_group(bench)
    assert not bench.ask(0.9 * PERIOD_S)
    assert bench.turns._stage == "idle"
    crowd(bench)
    learn_of_the_group(bench)
    assert not bench.ask(0.79 * PERIOD_S)
    assert not bench.ask(0.9 * PERIOD_S)
    until(lambda: bench.ask(0.9 * PERIOD_S))


def test_only_an_interval_that_nobody_wrote_down_is_stretched(make: Callable[..., Bench]) -> None:
    written, solved = make(), make(stretches=True, run="other")
    crowd(written)
    learn_of_the_group(written)
    learn_of_the_group(solved)
    assert written.turns._stretched_s(PERIOD_S) == PERIOD_S
    assert solved.turns._stretched_s(PERIOD_S) > 1.5 * PERIOD_S
    # What a time limit makes due earlier is not held up.
    assert not solved.ask(PERIOD_S)
    assert not solved.names("wait")
    assert not solved.ask(0.5 * PERIOD_S, is_due=True)
    until(lambda: solved.ask(0.5 * PERIOD_S, is_due=True))


def test_a_directory_that_hangs_holds_up_one_thread_and_no_save(make: Callable[..., Bench]) -> None:
    bench = make()
    group = HangingGroup(bench.group.directory)
    want = Want(id="", kind="save", weight=1, write_s=1, mtbf_s=1e4, age_s=9, period_s=1, arrived=0)
    stuck = bench.turns._turn = Turn(group, "run", want)
    stuck.start()
    assert not bench.ask(1.0)
    stuck.release()
    bench.turns._released_at = bench.now
    assert not bench.ask()
    bench.now += HANG_S + 1
    assert bench.ask()
    assert bench.decisions == ["without a turn: the group's directory does not answer"]
    assert bench.turns._turn is stuck
    group.answers.set()
    stuck.join(10)
    assert not stuck.is_alive()
