"""A group's directory: looking at it, taking a ticket, turning the ticket into a turn, giving it back.

Times that are compared between clients are the file server's: a client touches its own ticket and reads the stamp
back. A holder or a waiter that has not touched its ticket for a while is passed over; its file need not be removed for
that, which a sticky directory would not allow anyway.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import filelock

from resilient_launch.core.probe import LockKind, MountReport, probe
from resilient_launch.policy import stagger
from resilient_launch.policy.stagger import WriteSample
from resilient_launch.stagger import tickets
from resilient_launch.stagger.tickets import Member, Ticket

EXPIRY_S = 30.0
"""A turn whose holder has not been heard of for so long is over."""
PATIENCE_S = 15.0
"""A waiter that has not been heard of for so long is passed over, until it is heard of again."""
SILENT_S = 8.0
"""Nobody who lives and can write lets so long pass without a sign of life, busy as its machine may be."""
MEMBER_AGE_S = 7 * 86400.0
MUTEX_TIMEOUT_S = 1.0
LITTER_AGE_S = 3600.0
_TEMPORARY = (".new-", ".time-")
_MOUNT = ".mount.json"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A ticket as found: ``heard`` is its owner's last sign of life, by the server's clock."""

    ticket: Ticket
    taken_at: float | None
    """When its turn came, to the second, by its owner's word; None while it waits."""
    heard: float


@dataclass(frozen=True, kw_only=True)
class View:
    """A group at one moment ``now`` of the server's clock. Dead and silent tickets are left out already."""

    now: float
    holders: tuple[Entry, ...]
    waiters: tuple[Entry, ...]
    """The next to go first."""
    members: tuple[Member, ...]
    writers: int
    """How many may write at once."""

    @property
    def samples(self) -> list[WriteSample]:
        return [sample for member in self.members for sample in member.samples]

    @property
    def hold_s(self) -> float:
        """How long a turn lasts on average: as measured, else as the tickets say."""
        known = [entry.ticket.want.write_s for entry in (*self.holders, *self.waiters)]
        return stagger.mean_hold_s(self.samples) or (sum(known) / len(known) if known else 0.0)

    def position(self, ticket_id: str) -> int:
        """How many waiters are ahead of this one."""
        ids = [entry.ticket.want.id for entry in self.waiters]
        return ids.index(ticket_id) if ticket_id in ids else 0

    def lapse_s(self, ticket_id: str) -> float:
        """When the first of the silent ones who are in this waiter's way will be passed over; infinity without any."""
        ahead = self.waiters[: self.position(ticket_id)]
        due = [(entry, EXPIRY_S) for entry in self.holders] + [(entry, PATIENCE_S) for entry in ahead]
        silent = [(limit_s, self.now - entry.heard) for entry, limit_s in due if self.now - entry.heard > SILENT_S]
        return min((limit_s - silent_s for limit_s, silent_s in silent), default=math.inf)


def _newest_attempts(entries: Sequence[Entry]) -> list[Entry]:
    """``entries`` without those of a run's earlier agents.

    Slurm starts a run again when it has ended the run before, so that a later agent's ticket is Slurm's word that the
    earlier agent is gone, or must be taken for gone: its node may have lost Slurm and still see the storage.
    """
    newest: dict[tuple[int, str], Entry] = {}
    for entry in entries:
        known = newest.setdefault((entry.ticket.uid, entry.ticket.run), entry)
        if entry.ticket.want.arrived > known.ticket.want.arrived:
            newest[entry.ticket.uid, entry.ticket.run] = entry
    return [entry for entry in entries if entry.ticket.mark == newest[entry.ticket.uid, entry.ticket.run].ticket.mark]


class Group:
    """One process's access to a group. ``writers`` None adapts to the bandwidth seen. Not for two threads at once.

    Every method may raise OSError: the directory is remote, may vanish and may be full.
    """

    num_listings = 0
    """How often the directory was listed."""

    def __init__(self, directory: Path, *, writers: int | None = None, lock: LockKind | None = None) -> None:
        """``lock`` None uses the kind that a probe of the mount found right; the first to need it probes."""
        self.directory, self._writers, self._lock = directory, writers, lock
        self._mutex: filelock.BaseFileLock | None = None
        self._tickets: dict[tuple[str, int], Ticket | None] = {}
        self._members: dict[tuple[str, int, int], Member | None] = {}

    @property
    def uses_mutex(self) -> bool:
        return self._lock is not LockKind.NONE

    def prepare(self) -> None:
        """Make the directory if it is missing: writable for the group, and sticky, so that files stay their owners'."""
        try:
            self.directory.mkdir(parents=True)
        except FileExistsError:
            return
        self.directory.chmod(0o3770)

    def look(self, now: float) -> View:
        """The group at server time ``now``, which comes from touching a ticket, or from ``server_time``."""
        self.num_listings += 1
        found: dict[tuple[str, int], Ticket | None] = {}
        members: dict[tuple[str, int, int], Member | None] = {}
        entries = []
        with os.scandir(self.directory) as listing:
            for item in listing:
                named = tickets.parse_ticket_name(item.name)
                is_litter = item.name.startswith(_TEMPORARY)
                if named is None and not is_litter and not tickets.is_member_name(item.name):
                    continue
                try:
                    status = item.stat(follow_symlinks=False)
                except OSError:
                    continue
                path, silent_s = self.directory / item.name, now - status.st_mtime
                if silent_s > LITTER_AGE_S and (named is not None or is_litter):
                    # Another user's stays, in a sticky directory, and does no harm.
                    with contextlib.suppress(OSError):
                        path.unlink()
                    continue
                if named is None:
                    if silent_s < MEMBER_AGE_S and not is_litter:
                        key = (item.name, status.st_ino, status.st_mtime_ns)
                        members[key] = self._members[key] if key in self._members else tickets.read_member(path)
                    continue
                ticket_id, taken_at = named
                inode = (ticket_id, status.st_ino)
                ticket = self._tickets[inode] if inode in self._tickets else tickets.read_ticket(path, ticket_id)
                found[inode] = ticket
                limit_s = PATIENCE_S if taken_at is None else EXPIRY_S
                if ticket is None or silent_s > limit_s or ticket.mark.is_gone():
                    continue
                entries.append(Entry(ticket=ticket, taken_at=taken_at, heard=status.st_mtime))
        self._tickets, self._members = found, members
        return self._view(_newest_attempts(entries), [member for member in members.values() if member is not None], now)

    def _view(self, entries: Sequence[Entry], members: Sequence[Member], now: float) -> View:
        samples = [sample for member in members for sample in member.samples]
        # Renamed while the directory was being read, a ticket may show under both names: the turn is the newer fact.
        holders = {entry.ticket.want.id: entry for entry in entries if entry.taken_at is not None}
        waiters = {entry.ticket.want.id: entry for entry in entries if entry.taken_at is None}
        order = stagger.in_order([waiters[each].ticket.want for each in waiters.keys() - holders.keys()], now)
        return View(
            now=now,
            holders=tuple(holders.values()),
            waiters=tuple(waiters[want.id] for want in order),
            members=tuple(members),
            writers=self._writers or stagger.num_writers(samples),
        )

    def server_time(self) -> float:
        """The server's clock, from the stamp of a file that is made for it."""
        name = f".time-{secrets.token_hex(8)}"
        arrived = self.put(name, lambda now: b"")
        (self.directory / name).unlink(missing_ok=True)
        return arrived

    def put(self, name: str, content: Callable[[float], bytes]) -> float:
        """Put a file under ``name`` whole, readable by everybody; ``content`` gets the server time that is returned."""
        temporary = self.directory / f".new-{secrets.token_hex(8)}"
        # Nothing is synced: after a power cut nobody waits any more.
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            try:
                os.fchmod(fd, 0o644)
                os.utime(fd)
                now = os.fstat(fd).st_mtime
                data = content(now)
                if os.write(fd, data) < len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(temporary))
            finally:
                os.close(fd)
            temporary.rename(self.directory / name)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        return now

    def publish(self, member: Member) -> None:
        """Say what this run is and how its writes go."""
        self.put(tickets.member_name(member.run), lambda now: tickets.encode_member(member))

    def note_mount(self, report: MountReport) -> None:
        """Leave what a probe of the mount found to everybody in the group."""
        record = json.dumps({"v": tickets.VERSION, **report.as_json()}).encode()
        self.put(_MOUNT, lambda now: record)

    def known_lock(self) -> LockKind | None:
        """The kind of lock that the newest probe found right; None when nobody has probed."""
        found = tickets.read_record(self.directory / _MOUNT)
        return next((kind for kind in LockKind if found is not None and found[1].get("lock") == kind), None)

    def _make_mutex(self) -> filelock.BaseFileLock | None:
        if self._lock is None:
            self._lock = self.known_lock()
        if self._lock is None:
            report = probe(self.directory)
            self._lock = report.lock
            self.note_mount(report)
        if self._mutex is None and self._lock is not LockKind.NONE:
            kind = filelock.FileLock if self._lock is LockKind.FLOCK else filelock.SoftFileLock
            self._mutex = kind(self.directory / ".mutex", timeout=MUTEX_TIMEOUT_S, mode=0o666)
        return self._mutex

    @contextlib.contextmanager
    def mutex(self) -> Iterator[bool]:
        """The group's mutex: yields whether it is held, after a short wait at most.

        Whoever holds it may be frozen, may be on a node that died, or may be a user whose files are not ours to open.
        """
        lock = None
        try:
            lock = self._make_mutex()
            if lock is not None:
                lock.acquire()
        except (OSError, filelock.Timeout):
            lock = None
        try:
            yield lock is not None
        finally:
            if lock is not None:
                with contextlib.suppress(OSError):
                    lock.release()
