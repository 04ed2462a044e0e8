from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from resilient_launch.core.probe import LockKind, MountReport, probe


def test_a_local_disk_does_everything(tmp_path: Path) -> None:
    found = probe(tmp_path)
    assert found.flock_excludes is True
    assert found.flock_excludes_nodes is None
    assert found.rename_is_atomic is True
    assert found.exclusive_create_is_honest is True
    assert found.listing_delay_s is not None and found.listing_delay_s < 1
    assert found.clock_offset_s is not None and abs(found.clock_offset_s) < 5
    assert found.lock is LockKind.FLOCK
    assert found.as_json()["lock"] == "flock"
    assert list(tmp_path.iterdir()) == []


def test_another_node_is_asked_through_a_command(tmp_path: Path) -> None:
    # env runs what it is given, as srun would elsewhere.
    found = probe(tmp_path, nodes={"n1": ("env",), "n2": ("env",)})
    assert found.flock_excludes_nodes is True
    assert found.listing_delay_s is not None
    assert (found.nodes, found.silent_nodes) == (("n1", "n2"), ())


@pytest.mark.parametrize("remote", [("false",), ("/nowhere/srun",)])
def test_a_node_that_does_not_answer_leaves_a_question_open(tmp_path: Path, remote: tuple[str, ...]) -> None:
    found = probe(tmp_path, nodes={"n1": remote})
    assert found.flock_excludes_nodes is None
    assert found.silent_nodes == ("n1",)
    assert found.listing_delay_s is None
    assert found.lock is LockKind.FLOCK


def test_a_node_that_gets_the_lock_too_rules_flock_out(tmp_path: Path) -> None:
    # A node whose flock is its own: the peer looks at another file of the same name.
    script = "import os, sys; *a, last = sys.argv[1:]; open(last + '2', 'w'); os.execv(a[0], [*a, last + '2'])"
    found = probe(tmp_path, nodes={"n1": (sys.executable, "-c", script), "n2": ("env",), "n3": ("false",)})
    assert found.flock_excludes_nodes is False
    assert found.silent_nodes == ("n3",)
    assert found.lock is LockKind.SOFT


def test_what_was_found_decides_the_lock() -> None:
    good = MountReport(
        directory="",
        flock_excludes=True,
        flock_excludes_nodes=None,
        rename_is_atomic=True,
        renames_directories=True,
        exclusive_create_is_honest=True,
        listing_delay_s=0.0,
        clock_offset_s=0.0,
    )
    assert good.lock is LockKind.FLOCK
    assert replace(good, flock_excludes_nodes=False).lock is LockKind.SOFT
    assert replace(good, flock_excludes=None).lock is LockKind.SOFT
    assert replace(good, flock_excludes=False, exclusive_create_is_honest=False).lock is LockKind.NONE


def test_a_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        probe(tmp_path / "none")
