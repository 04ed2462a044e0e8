"""Durable file I/O under kill -9 and under a race, with real processes."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from resilient_launch.core.durable import claim_file, fsync_dir, replace_file, sweep_temporaries, write_file

DEADLINE_S = 60


def start(code: str, *args: object) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    argv = [sys.executable, "-c", code, *(str(arg) for arg in args)]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.001)


def temporaries(directory: Path) -> list[Path]:
    return list(directory.glob(".tmp-*"))


def test_write_file_never_overwrites(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_file(path, b"old")
    with pytest.raises(FileExistsError):
        write_file(path, b"new")
    assert path.read_bytes() == b"old"


def test_replace_file_makes_and_replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for data in (b"", b"one", b"two" * 10**5):
        replace_file(path, data)
        assert path.read_bytes() == data
    assert list(tmp_path.iterdir()) == [path]


def test_modes(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        replace_file(tmp_path / "a", b"", mode=0o600)
        assert claim_file(tmp_path / "b", b"", mode=0o755)
    finally:
        os.umask(old)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in "ab"] == [0o600, 0o755]


def test_a_failed_replace_leaves_the_old_content_and_no_temporary(tmp_path: Path) -> None:
    taken = tmp_path / "directory"
    taken.mkdir()
    with pytest.raises(OSError):
        replace_file(taken, b"new")
    assert taken.is_dir() and not temporaries(tmp_path)


def test_claim_file_has_one_winner_and_keeps_its_content(tmp_path: Path) -> None:
    path = tmp_path / "claim"
    assert claim_file(path, b"first")
    assert not claim_file(path, b"second")
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


def test_fsync_dir_wants_a_directory(tmp_path: Path) -> None:
    fsync_dir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        fsync_dir(tmp_path / "file")


REPLACER = """
import sys
from pathlib import Path
from resilient_launch.core.durable import replace_file
path = Path(sys.argv[1])
for round in range(10**9):
    replace_file(path, (b"%09d\\n" % round) * 50_000)
"""


def whole_round(data: bytes) -> int:
    """The round that wrote ``data``, which must be complete and of one round."""
    first = data[:10]
    assert len(data) == 500_000 and data == first * 50_000
    return int(first)


def test_replace_file_is_whole_at_every_moment_of_a_writer_that_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "state"
    chance = random.Random(17)
    for _ in range(8):
        path.unlink(missing_ok=True)
        writer = start(REPLACER, path)
        try:
            wait_until(path.exists)
            target = whole_round(path.read_bytes()) + chance.randrange(1, 8)
            wait_until(lambda target=target: whole_round(path.read_bytes()) >= target)
        finally:
            writer.kill()
            writer.communicate()
        whole_round(path.read_bytes())
    # A killed writer may leave its temporary, which no reader looks at and which stops no later writer.
    replace_file(path, b"after")
    assert path.read_bytes() == b"after"


CLAIMER = """
import sys
from pathlib import Path
from resilient_launch.core.durable import claim_file
directory, me = Path(sys.argv[1]), sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[3])):
    if claim_file(directory / f"{number:04d}", me.encode() * 2000):
        print(number, flush=True)
"""


def race(directory: Path, num_claims: int, num_processes: int = 4) -> list[subprocess.Popen[bytes]]:
    """Start claimers and let them go at the same time."""
    claimers = [start(CLAIMER, directory, chr(ord("a") + index), num_claims) for index in range(num_processes)]
    for claimer in claimers:
        assert claimer.stdout is not None and claimer.stdout.readline() == b"ready\n"
    for claimer in claimers:
        assert claimer.stdin is not None
        claimer.stdin.write(b"go\n")
        claimer.stdin.flush()
    return claimers


def test_racing_claims_have_exactly_one_winner_each(tmp_path: Path) -> None:
    num_claims = 60
    claimers = race(tmp_path, num_claims)
    won = [[int(line) for line in claimer.communicate(timeout=DEADLINE_S)[0].split()] for claimer in claimers]
    assert [claimer.returncode for claimer in claimers] == [0] * len(claimers)
    assert sorted(number for numbers in won for number in numbers) == list(range(num_claims))
    for index, numbers in enumerate(won):
        for number in numbers:
            assert (tmp_path / f"{number:04d}").read_bytes() == bytes([ord("a") + index]) * 2000
    assert not temporaries(tmp_path)


def test_claims_of_killed_processes_are_whole_or_absent(tmp_path: Path) -> None:
    num_claims = 100_000
    claimers = race(tmp_path, num_claims)
    try:
        for number, claimer in enumerate(claimers, start=1):
            wait_until(lambda number=number: (tmp_path / f"{number * 10:04d}").exists())
            claimer.kill()
    finally:
        told = []
        for claimer in claimers:
            claimer.kill()
            told.append([int(line) for line in claimer.communicate()[0].split()])
    claimed = [path for path in tmp_path.iterdir() if not path.name.startswith(".tmp-")]
    assert len(claimed) >= 40
    for path in claimed:
        data = path.read_bytes()
        assert len(data) == 2000 and len(set(data)) == 1
    for index, numbers in enumerate(told):
        for number in numbers:
            assert (tmp_path / f"{number:04d}").read_bytes()[:1] == bytes([ord("a") + index])
    # Whoever comes later loses every name that is taken, and gets the next.
    assert not claim_file(claimed[0], b"late")
    assert claim_file(tmp_path / "next", b"late")


def test_only_temporaries_of_names_that_are_over_are_swept(tmp_path: Path) -> None:
    over, open_ = ".tmp-0001.json-0123456789ab", ".tmp-0002.json-0123456789ab"
    for name in (over, open_, "0001.json", ".tmp-0001.json"):
        (tmp_path / name).write_text("")
    sweep_temporaries(tmp_path, lambda name: name == "0001.json")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([open_, "0001.json", ".tmp-0001.json"])
    sweep_temporaries(tmp_path / "none", lambda _: True)
