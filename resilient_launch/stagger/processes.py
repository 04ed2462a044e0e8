"""Which process took a ticket, and whether it is provably gone."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class ProcessMark:
    """A process in one boot of one machine, told apart from whatever gets its id later.

    ``place`` is the boot and the process-id namespace: two containers may share a host name, never this.
    """

    place: str
    pid: int
    started: int
    """Clock ticks after boot."""

    @classmethod
    def of_self(cls) -> ProcessMark:
        pid = os.getpid()
        return cls(place=_place(), pid=pid, started=_start(pid) or 0)

    def is_gone(self) -> bool:
        """Whether it can be proved, from here, that the process has ended. False wherever in doubt."""
        if self.place != _place() or self.pid <= 0:
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        started = _start(self.pid)
        return started is not None and started != self.started


@cache
def _place() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"  # noqa: PTH116 - a link whose target is no path
    except OSError:
        return ""


def _start(pid: int) -> int | None:
    """None where it cannot be read; -1 for a zombie, which has started nothing that goes on."""
    try:
        # The command name may hold spaces and parentheses; everything after its last ')' is plain fields.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return -1 if fields[0] == "Z" else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None
