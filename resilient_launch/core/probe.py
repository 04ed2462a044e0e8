"""What a mount really does: locks, renames, exclusive creation, listings, the server's clock.

Documentation of file systems says what they should do; a mount's options and version decide. The probe uses files of
its own in a fresh directory and processes of its own, and removes both.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

NUM_RACERS = 4
NUM_RENAMES = 200
PEER_TIMEOUT_S = 30.0
FAREWELL_S = 3.0
"""How long a peer that did not answer gets to clean up: srun has a job to cancel."""
STALE_LIMIT_S = 10.0
_PEER = Path(__file__)


class LockKind(StrEnum):
    """Which lock a mount deserves."""

    FLOCK = "flock"
    """flock excludes, as far as was looked."""
    SOFT = "soft"
    """flock does not exclude, but exclusive creation does: a lock file."""
    NONE = "none"
    """Neither does."""


@dataclass(frozen=True, kw_only=True)
class MountReport:
    """What was found. None stands for what could not be found out."""

    directory: str
    flock_excludes: bool | None
    """Whether a second process was kept out."""
    flock_excludes_nodes: bool | None
    """Whether every other node was kept out; None where none was asked, or one did not answer."""
    rename_is_atomic: bool | None
    """Whether a reader always found the old file or the new one."""
    renames_directories: bool | None
    """Whether a directory can be renamed at all, as no object store's mount does in one step."""
    exclusive_create_is_honest: bool | None
    """Whether exactly one of several processes created each file."""
    listing_delay_s: float | None
    """How long another process's new file took to show in a listing, seconds."""
    clock_offset_s: float | None
    """The server's clock minus this machine's, seconds."""
    nodes: tuple[str, ...] = ()
    """The other nodes that were asked."""
    silent_nodes: tuple[str, ...] = ()
    """Those of them that did not answer."""

    @property
    def lock(self) -> LockKind:
        """What can be relied on, for speed alone."""
        if self.flock_excludes and self.flock_excludes_nodes is not False:
            return LockKind.FLOCK
        return LockKind.SOFT if self.exclusive_create_is_honest else LockKind.NONE

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "lock": str(self.lock)}


def probe(directory: Path, *, nodes: Mapping[str, Sequence[str]] | None = None) -> MountReport:
    """Try out the mount that holds ``directory``; takes a second or two, and as long again for each node.

    ``nodes`` are other nodes that should see the same mount, each with a command that runs a command there, such as
    ``("srun", "--nodes=1", "--ntasks=1", "--nodelist=node7")``. Raises OSError when nothing can be written there.
    """
    nodes = nodes or {}
    with tempfile.TemporaryDirectory(prefix=".probe-", dir=directory) as name:
        place = Path(name)
        locks = [_flock_excludes(place / f"lock{number}", remote) for number, remote in enumerate(nodes.values())]
        # A node that cannot say whether it got a lock will not make a file either.
        heard = [remote for remote, lock in zip(nodes.values(), locks, strict=True) if lock is not None]
        delays = [_listing_delay_s(place, remote) for remote in (heard if nodes else [()])]
        return MountReport(
            directory=str(directory),
            flock_excludes=_flock_excludes(place / "local", ()),
            flock_excludes_nodes=False if False in locks else None if None in locks or not locks else True,
            rename_is_atomic=_rename_is_atomic(place),
            renames_directories=_renames_directories(place),
            exclusive_create_is_honest=_create_is_honest(place),
            listing_delay_s=max((delay_s for delay_s in delays if delay_s is not None), default=None),
            clock_offset_s=_clock_offset_s(place),
            nodes=tuple(nodes),
            silent_nodes=tuple(node for node, lock in zip(nodes, locks, strict=True) if lock is None),
        )


def filesystem(path: Path) -> str:
    """The type of the file system that holds ``path``, by the longest mount point above it; empty if unknown."""
    best, kind = "", ""
    with contextlib.suppress(OSError):
        resolved = path.resolve()
        for line in Path("/proc/self/mounts").read_text().splitlines():
            _device, point, found = line.split()[:3]
            point = point.encode().decode("unicode_escape")
            # Of two on one point, the later one covers the earlier.
            if len(point) >= len(best) and resolved.is_relative_to(point):
                best, kind = point, found
    return kind


def _clock_offset_s(place: Path) -> float:
    path = place / "clock"
    path.touch()
    before = time.time()
    os.utime(path)
    after = time.time()
    return path.stat().st_mtime - (before + after) / 2


def _peer(remote: Sequence[str], *args: str) -> subprocess.Popen[bytes]:
    # -I: neither the working directory nor the environment may lend it other modules.
    command = [*remote, sys.executable, "-I", str(_PEER), *args]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def _answer(peer: subprocess.Popen[bytes]) -> str | None:
    """The peer's one word; None when it did not come, or the peer failed."""
    try:
        out, _ = peer.communicate(timeout=PEER_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        peer.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            peer.wait(FAREWELL_S)
        peer.kill()
        peer.communicate()
        return None
    return out.decode("ascii", "replace").strip() if peer.returncode == 0 else None


def _flock_excludes(path: Path, remote: Sequence[str]) -> bool | None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        try:
            answer = _answer(_peer(remote, "flock", str(path)))
        except OSError:
            return None
        return {"refused": True, "taken": False}.get(answer or "")
    finally:
        os.close(fd)


def _rename_is_atomic(place: Path) -> bool | None:
    target = place / "renamed"
    target.write_text("0" * 4096)
    try:
        reader = _peer((), "read", str(target))
    except OSError:
        return None
    number = 0
    deadline = time.monotonic() + PEER_TIMEOUT_S
    while reader.poll() is None and time.monotonic() < deadline:
        number = (number + 1) % 10
        temporary = place / "renaming"
        temporary.write_text(str(number) * 4096)
        temporary.replace(target)
    return {"whole": True, "torn": False}.get(_answer(reader) or "")


def _renames_directories(place: Path) -> bool:
    before, after = place / "before", place / "after"
    before.mkdir()
    (before / "file").write_text("here")
    try:
        before.rename(after)
    except OSError:
        return False
    return not os.path.lexists(before) and (after / "file").read_text() == "here"


def _create_is_honest(place: Path) -> bool | None:
    folder = place / "created"
    folder.mkdir()
    try:
        racers = [_peer((), "create", str(folder)) for _ in range(NUM_RACERS)]
    except OSError:
        return None
    # A race needs a common start.
    deadline = time.monotonic() + PEER_TIMEOUT_S
    while not all((folder / f"ready-{racer.pid}").exists() for racer in racers) and time.monotonic() < deadline:
        time.sleep(0.01)
    (folder / "go").touch()
    answers = [_answer(racer) for racer in racers]
    if any(answer is None or not answer.isdecimal() for answer in answers):
        return None
    return sum(int(answer or 0) for answer in answers) == NUM_RENAMES


def _listing_delay_s(place: Path, remote: Sequence[str]) -> float | None:
    folder = Path(tempfile.mkdtemp(prefix="listed-", dir=place))
    # A cached listing is what may be stale, so there has to be one.
    sorted(folder.iterdir())
    name = secrets.token_hex(8)
    try:
        if _answer(_peer(remote, "touch", str(folder / name))) is None:
            return None
    except OSError:
        return None
    began = time.monotonic()
    while folder / name not in folder.iterdir():
        if time.monotonic() - began > STALE_LIMIT_S:
            return STALE_LIMIT_S
        time.sleep(0.05)
    return time.monotonic() - began


# What the other process does. It runs this file by itself, so nothing of the package is needed on the other side.


def _peer_main(role: str, path: Path) -> str:
    if role == "flock":
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return "refused"
        return "taken"
    if role == "read":
        for _ in range(NUM_RENAMES):
            try:
                data = path.read_bytes()
            except OSError:
                return "torn"
            if len(data) != 4096 or len(set(data)) != 1:
                return "torn"
            time.sleep(0.001)
        return "whole"
    if role == "create":
        won = 0
        (path / f"ready-{os.getpid()}").touch()
        deadline = time.monotonic() + PEER_TIMEOUT_S
        while not (path / "go").exists() and time.monotonic() < deadline:
            time.sleep(0.001)
        for number in range(NUM_RENAMES):
            with contextlib.suppress(FileExistsError):
                os.close(os.open(path / str(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
                won += 1
        return str(won)
    path.touch()
    return "done"


if __name__ == "__main__":
    sys.stdout.write(_peer_main(sys.argv[1], Path(sys.argv[2])))
