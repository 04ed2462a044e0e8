"""Who runs below whom, from /proc. Kept free of heavy imports: every supervisor pays for them."""

from __future__ import annotations

import contextlib
import os
import signal
import time

_START_FIELD = 19


def _stat(pid: int | str) -> list[str] | None:
    """The fields of /proc/PID/stat after the command name: state, parent, group, …; None for a process that is gone."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return None
    try:
        text = os.read(fd, 4096)
    except OSError:
        return None
    finally:
        os.close(fd)
    return text[text.rindex(b")") + 2 :].decode().split()


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot: with its id, this names it for good. None when it is gone."""
    fields = _stat(pid)
    return None if fields is None or fields[0] in "ZX" else int(fields[_START_FIELD])


def is_alive(pid: int, ticks: int) -> bool:
    """Whether the very process that started at ``ticks`` still runs; a zombie does not."""
    return start_ticks(pid) == ticks


def descendants(root: int) -> list[int]:
    """Every live process below ``root``, itself not included, parents before children."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            fields = _stat(name)
            if fields is not None:
                children.setdefault(int(fields[1]), []).append(int(name))
    found = list(children.get(root, ()))
    for pid in found:
        found.extend(children.get(pid, ()))
    return [pid for pid in found if (fields := _stat(pid)) is not None and fields[0] not in "ZX"]


def with_marker(marker: str) -> list[int]:
    """Every process whose environment holds ``marker`` (``NAME=value``, or ``NAME=prefix/`` for all under a prefix).

    Finds what lost its supervisor.
    """
    found = []
    needle = marker.encode()
    is_prefix = needle.endswith(b"/")
    for name in os.listdir("/proc"):  # noqa: PTH208
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            fd = os.open(f"/proc/{name}/environ", os.O_RDONLY)
        except OSError:
            continue
        try:
            text = b""
            while chunk := os.read(fd, 1 << 16):
                text += chunk
        except OSError:
            continue
        finally:
            os.close(fd)
        if any(entry == needle or (is_prefix and entry.startswith(needle)) for entry in text.split(b"\0")):
            found.append(int(name))
    return found


def send(pids: list[int], signum: int) -> None:
    """Signal each process; one that has just gone is passed over."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)


def kill_marked(marker: str, *, timeout_s: float) -> list[int]:
    """KILL every process that carries ``marker`` until none is left; returns those that outlived ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while True:
        left = [pid for pid in with_marker(marker) if start_ticks(pid) is not None]
        if not left or time.monotonic() > deadline:
            return left
        send(left, signal.SIGKILL)
        time.sleep(0.01)
