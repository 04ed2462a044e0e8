from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from resilient_launch.core.probe import LockKind, MountReport
from resilient_launch.policy.stagger import Want, WriteSample
from resilient_launch.stagger.group import EXPIRY_S, LITTER_AGE_S, PATIENCE_S, SILENT_S, Group
from resilient_launch.stagger.ticket import OwnTicket, TurnLostError
from resilient_launch.stagger.tickets import Member
from resilient_launch.stagger.turn import Turn, TurnState


@pytest.fixture
def group(tmp_path: Path) -> Group:
    found = Group(tmp_path / "group", writers=1, lock=LockKind.FLOCK)
    found.prepare()
    return found


def want(**fields: Any) -> Want:
    known = {"weight": 1.0, "write_s": 10.0, "mtbf_s": 1e4, "age_s": 100.0, "period_s": 60.0}
    return Want(id="", kind=fields.pop("kind", "save"), arrived=0.0, **{**known, **fields})


def age(ticket: OwnTicket, seconds: float) -> None:
    """Make the ticket look as if its owner had not been heard of for so long."""
    then = time.time() - seconds
    os.utime(ticket.path, (then, then))


def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def test_the_directory_is_group_writable_and_sticky(group: Group) -> None:
    assert group.directory.stat().st_mode & 0o7777 == 0o3770
    group.prepare()


def test_one_slot_is_given_once(group: Group) -> None:
    first, second = OwnTicket(group, "a", want()), OwnTicket(group, "b", want(age_s=50.0))
    assert not second.try_take()[0]
    assert first.try_take()[0]
    assert not second.try_take()[0]
    first.release()
    assert second.try_take()[0]
    second.release()
    assert not [path for path in group.directory.iterdir() if path.suffix == ".json"]


def test_the_most_urgent_is_first_whoever_came_first(group: Group) -> None:
    light, heavy = OwnTicket(group, "a", want()), OwnTicket(group, "b", want(weight=4.0))
    taken, view = light.try_take()
    assert not taken
    assert [entry.ticket.run for entry in view.waiters] == ["b", "a"]
    assert heavy.try_take()[0]


def test_with_two_slots_the_second_in_order_need_not_wait_for_the_first(tmp_path: Path) -> None:
    group = Group(tmp_path, writers=2, lock=LockKind.FLOCK)
    OwnTicket(group, "ahead", want(weight=9.0))
    OwnTicket(group, "third", want(weight=0.1))
    assert OwnTicket(group, "second", want()).try_take()[0]


def test_a_restore_is_a_holder_at_once(group: Group) -> None:
    OwnTicket(group, "a", want(kind="restore"), place="hold")
    assert not OwnTicket(group, "b", want()).try_take()[0]


def test_an_expired_holder_is_passed_over_and_learns_of_it(group: Group) -> None:
    frozen, waiter = OwnTicket(group, "a", want()), OwnTicket(group, "b", want(age_s=1.0))
    assert frozen.try_take()[0]
    age(frozen, EXPIRY_S - 5)
    assert not waiter.try_take()[0]
    age(frozen, EXPIRY_S + 5)
    assert waiter.try_take()[0]
    # What its owner remembers of the last sign of life is as old.
    frozen._heard -= EXPIRY_S + 5
    with pytest.raises(TurnLostError):
        frozen.touch()
    assert len(group.look(time.time()).holders) == 1


def test_a_silent_waiter_is_passed_over_until_it_is_heard_of(group: Group) -> None:
    silent, other = OwnTicket(group, "a", want(weight=9.0)), OwnTicket(group, "b", want())
    age(silent, PATIENCE_S + 1)
    assert [entry.ticket.run for entry in group.look(time.time()).waiters] == ["b"]
    silent.touch()
    assert not other.try_take()[0]
    assert silent.try_take()[0]


def test_a_waiter_knows_when_the_silent_ones_in_its_way_stop_to_count(group: Group) -> None:
    holder = OwnTicket(group, "a", want(), place="hold")
    first, second = OwnTicket(group, "b", want(weight=9.0)), OwnTicket(group, "c", want())
    age(holder, SILENT_S - 2)
    assert group.look(time.time()).lapse_s(second.id) == math.inf
    age(holder, EXPIRY_S - 4)
    assert group.look(time.time()).lapse_s(second.id) == pytest.approx(4, abs=1)
    age(first, PATIENCE_S - 2)
    view = group.look(time.time())
    assert view.lapse_s(second.id) == pytest.approx(2, abs=1)
    # Nobody is in one's own way.
    assert view.lapse_s(first.id) == pytest.approx(4, abs=1)


def test_a_ticket_that_was_removed_is_lost(group: Group) -> None:
    ticket = OwnTicket(group, "a", want())
    ticket.release()
    with pytest.raises(TurnLostError):
        ticket.touch()
    with pytest.raises(TurnLostError):
        ticket.try_take()
    ticket.release()


def test_a_dead_process_is_passed_over_at_once(group: Group) -> None:
    code = (
        "import sys, pathlib; from resilient_launch.stagger.group import Group;"
        "from resilient_launch.stagger.ticket import OwnTicket; from resilient_launch.policy.stagger import Want;"
        "t = OwnTicket(Group(pathlib.Path(sys.argv[1]), writers=1), 'dead', Want(id='', kind='save', weight=9.0,"
        "write_s=1.0, mtbf_s=1.0, age_s=1.0, period_s=1.0, arrived=0.0)); print(t.try_take()[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(group.directory)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "True"
    assert len(list(group.directory.glob("hold-*.json"))) == 1
    assert OwnTicket(group, "b", want()).try_take()[0]


def test_a_run_that_is_started_again_has_given_back_what_it_held(group: Group) -> None:
    code = (
        "import sys, pathlib; from resilient_launch.stagger.group import Group;"
        "from resilient_launch.stagger.ticket import OwnTicket; from resilient_launch.policy.stagger import Want;"
        "t = OwnTicket(Group(pathlib.Path(sys.argv[1]), writers=1), 'a', Want(id='', kind='save', weight=9.0,"
        "write_s=1.0, mtbf_s=1.0, age_s=1.0, period_s=1.0, arrived=0.0)); print(t.try_take()[0], flush=True);"
        "sys.stdin.read()"
    )
    older = subprocess.Popen(
        [sys.executable, "-c", code, str(group.directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert older.stdout is not None and older.stdout.readline().strip() == "True"
        other = OwnTicket(group, "b", want())
        assert not other.try_take()[0]
        newer = OwnTicket(group, "a", want(age_s=1.0))
        assert [entry.ticket.run for entry in group.look(time.time()).holders] == []
        assert other.try_take()[0] and not newer.try_take()[0]
    finally:
        older.communicate()


def test_without_a_mutex_a_taker_steps_back_from_a_crowd(tmp_path: Path) -> None:
    group = Group(tmp_path, writers=1, lock=LockKind.NONE)
    ticket = OwnTicket(group, "a", want())
    # Somebody who saw nobody, as with an old listing.
    other = OwnTicket(group, "b", want(), place="hold")
    ticket._move("hold")
    ticket._step_back_if_crowded()
    assert ticket.place == "wait"
    other.release()
    assert ticket.try_take()[0]


def test_a_mutex_that_nobody_gives_back_is_done_without(group: Group) -> None:
    holder = Group(group.directory, writers=1, lock=LockKind.FLOCK)
    ticket = OwnTicket(group, "a", want())
    with holder.mutex() as held:
        assert held
        attempts = 1
        while not ticket.try_take()[0]:
            attempts += 1
            assert attempts < 10
    assert attempts > 1


def test_a_mutex_that_is_a_link_is_done_without(group: Group, tmp_path: Path) -> None:
    victim = tmp_path / "precious"
    victim.write_text("data")
    (group.directory / ".mutex").symlink_to(victim)
    ticket = OwnTicket(group, "a", want())
    until(lambda: ticket.try_take()[0])
    assert victim.read_text() == "data"


def test_junk_is_ignored_and_left_alone(group: Group, tmp_path: Path) -> None:
    outside = tmp_path / "outside.json"
    outside.write_text("{}")
    junk = [
        group.directory / "hold-9-0123456789abcdef.json",
        group.directory / "hold-zzz.json",
        group.directory / "notes.txt",
        group.directory / "member-0123456789abcdef.json",
    ]
    for path in junk[:3]:
        path.write_text('{"v": 1, "run": "../../etc"}')
    junk[3].symlink_to(outside)
    (group.directory / "hold-8-fedcba9876543210.json").mkdir()
    assert OwnTicket(group, "a", want()).try_take()[0]
    assert all(path.is_symlink() or path.exists() for path in junk)
    assert outside.read_text() == "{}"


def test_litter_goes_after_a_while(group: Group) -> None:
    old = OwnTicket(group, "a", want())
    age(old, LITTER_AGE_S + 1)
    temporary = group.directory / ".new-0123456789abcdef"
    temporary.touch()
    os.utime(temporary, (1.0, 1.0))
    group.look(time.time())
    assert not temporary.exists()
    with pytest.raises(TurnLostError):
        old.touch()


def test_number_of_writers_follows_what_members_measured(tmp_path: Path) -> None:
    group = Group(tmp_path)
    assert group.look(time.time()).writers == 1
    samples = tuple(WriteSample(num_writers=1, seconds=2.0, num_bytes=1e9) for _ in range(3))
    group.publish(Member(run="a", weight=1, write_s=2, mtbf_s=3, period_s=4, samples=samples))
    view = group.look(time.time())
    assert view.writers == 2
    assert view.hold_s == 2.0


def test_server_time_leaves_nothing_behind(group: Group) -> None:
    assert abs(group.server_time() - time.time()) < 60
    assert list(group.directory.iterdir()) == []


@pytest.fixture
def turns() -> Iterator[list[Turn]]:
    started: list[Turn] = []
    yield started
    for turn in started:
        turn.release()
        turn.join(10)
        assert not turn.is_alive()


def start(turns: list[Turn], directory: Path, run: str, **fields: Any) -> Turn:
    turn = Turn(Group(directory, writers=1), run, want(**fields))
    turns.append(turn)
    turn.start()
    return turn


def test_turns_come_one_after_the_other(tmp_path: Path, turns: list[Turn]) -> None:
    first = start(turns, tmp_path, "a")
    assert first.granted.wait(20)
    second = start(turns, tmp_path, "b")
    until(lambda: second.view is not None)
    assert not second.granted.is_set()
    member = Member(run="a", weight=1, write_s=2, mtbf_s=3, period_s=4)
    first.release(member)
    assert second.granted.wait(20)
    assert second.state is TurnState.GRANTED
    until(lambda: any(each.run == "a" for each in Group(tmp_path).look(time.time()).members))


def test_a_directory_that_vanishes_is_made_again(tmp_path: Path, turns: list[Turn]) -> None:
    directory = tmp_path / "group"
    holder = start(turns, directory, "a")
    assert holder.granted.wait(20)
    waiter = start(turns, directory, "b")
    until(lambda: waiter.view is not None)
    shutil.rmtree(directory)
    assert waiter.granted.wait(30)


def test_a_directory_that_cannot_be_made_is_reported_and_harms_nobody(tmp_path: Path, turns: list[Turn]) -> None:
    (tmp_path / "file").touch()
    turn = start(turns, tmp_path / "file" / "group", "a")
    until(lambda: bool(turn.problem))
    assert turn.state is TurnState.WAITING


def test_the_first_to_need_a_lock_probes_the_mount_for_everybody(tmp_path: Path) -> None:
    first = Group(tmp_path, writers=1)
    assert first.known_lock() is None
    assert OwnTicket(first, "a", want()).try_take()[0]
    assert Group(tmp_path).known_lock() is LockKind.FLOCK


@pytest.mark.parametrize("kind", list(LockKind))
def test_what_a_probe_found_decides_the_lock(tmp_path: Path, kind: LockKind) -> None:
    report = MountReport(
        directory="",
        flock_excludes=kind is LockKind.FLOCK,
        flock_excludes_nodes=None,
        rename_is_atomic=True,
        renames_directories=True,
        exclusive_create_is_honest=kind is not LockKind.NONE,
        listing_delay_s=0.0,
        clock_offset_s=0.0,
    )
    Group(tmp_path).note_mount(report)
    first, second = Group(tmp_path, writers=1), Group(tmp_path, writers=1)
    with first.mutex() as held, second.mutex() as also_held:
        assert (held, also_held) == (kind is not LockKind.NONE, False)
    ticket = OwnTicket(first, "a", want())
    assert ticket.try_take()[0]
    assert not OwnTicket(second, "b", want(age_s=1.0)).try_take()[0]


def test_a_forged_note_about_the_mount_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / ".mount.json").write_text('{"v": 1, "lock": "/etc/passwd"}')
    assert Group(tmp_path).known_lock() is None


def test_a_directory_that_is_full_is_reported_and_keeps_nothing_half_written(tmp_path: Path) -> None:
    code = (
        "import pathlib, resource, sys, time; from resilient_launch.stagger.group import Group;"
        "from resilient_launch.stagger.turn import Turn; from resilient_launch.policy.stagger import Want;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0));"
        "t = Turn(Group(pathlib.Path(sys.argv[1]), writers=1), 'a', Want(id='', kind='save', weight=9.0, write_s=1.0,"
        "mtbf_s=1.0, age_s=1.0, period_s=1.0, arrived=0.0)); t.start();"
        "[time.sleep(0.02) for _ in iter(lambda: bool(t.problem), True)];"
        "print(t.problem, t.state, sep=': '); t.release()"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "group")]
    # Room for no byte: what a full disk or a quota looks like from here.
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "File too large: waiting"
    assert list((tmp_path / "group").iterdir()) == []
