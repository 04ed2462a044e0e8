"""Power cuts: a small ext4 image is copied while its writer stands still in the middle of saves, and the copy is read.

What the kernel still holds back is not in the copy, as it would not be on a disk whose power went.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from resilient_launch.checkpoint import store
from resilient_launch.policy.retention import newest
from tests.faults.campaigns.operations import ident
from tests.faults.campaigns.states import Shape, must_load, save, tree
from tests.faults.campaigns.strikes import memory
from tests.faults.campaigns.tally import BrokenError, Tally, hold

SHAPE = Shape(ranks=2, num_bytes=20000)
KEPT = 8
IMAGE_MB = 24
# The weakest order that ext4 offers: names may reach the disk before what they name, and no rename is a hint to it.
OPTIONS = "data=writeback,noauto_da_alloc"
START_TIMEOUT_S = 60.0
MOST_PAUSE_S = 0.02


def power_cuts(tally: Tally) -> None:
    """Cuts at random moments of many saves; they can't be repeated one by one, only the whole part with its seed."""
    if reason := _missing():
        tally.left_out.append(f"power cuts: {reason}")
        return
    num_saves = 200 if tally.is_long else 20
    rng = random.Random(tally.seed)
    with tempfile.TemporaryDirectory(prefix="rlaunch-campaign-", dir=memory()) as scratch:
        image, copy, after = (Path(scratch) / name for name in ("image", "copy", "after"))
        _format(image)
        with _mounted(image, Path(scratch) / "disk") as disk, _writer(disk, num_saves) as (pid, counter):
            while not _stop(pid):
                reported = counter()
                _copy_still(image, copy)
                with tally.case("power-cuts", f"after save {reported}"), _mounted(copy, after) as found:
                    _check(found / "checkpoints", reported)
                    tally.counts["power cuts"] += 1
                os.kill(pid, signal.SIGCONT)
                _wait_for(counter, min(num_saves, reported + rng.randrange(4)))
                time.sleep(rng.uniform(0, MOST_PAUSE_S))
            hold(counter() == num_saves, f"the writer ended after {counter()} saves")


def _check(directory: Path, reported: int) -> None:
    expected = [ident(reported) if reported else None, ident(reported + 1)]
    must_load(directory, expected, SHAPE)
    for step in range(max(1, reported - KEPT + 2), reported + 1):
        path = directory / str(ident(step))
        files = {each.name: each.read_bytes() for each in path.iterdir()} if path.is_dir() else {}
        files.pop("MANIFEST.json", None)
        hold(files == SHAPE.content(ident(step)), f"{path.name} was reported durable and is not there", tree(directory))


def _write(disk: Path, num_saves: int, done: mmap.mmap) -> None:
    directory = disk / "checkpoints"
    for step in range(1, num_saves + 1):
        save(directory, ident(step), SHAPE)
        done[:8] = struct.pack("q", step)
        store.prune(directory, newest(KEPT), verified=[ident(step)], resumed_from=None)


@contextlib.contextmanager
def _writer(disk: Path, num_saves: int) -> Iterator[tuple[int, Callable[[], int]]]:
    (disk / "checkpoints").mkdir()
    os.sync()
    done = mmap.mmap(-1, 8)
    pid = os.fork()
    if pid == 0:
        try:
            _write(disk, num_saves, done)
        finally:
            os._exit(0)
    try:
        yield pid, lambda: int(struct.unpack("q", done[:8])[0])
    finally:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _wait_for(counter: Callable[[], int], least: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while counter() < least:
        hold(time.monotonic() < deadline, "the writer writes no more")
        time.sleep(0.001)


def _stop(pid: int) -> bool:
    """Stop the writer where it is; whether it had ended before."""
    os.kill(pid, signal.SIGSTOP)
    _, status = os.waitpid(pid, os.WUNTRACED)
    return not os.WIFSTOPPED(status)


def _copy_still(image: Path, copy: Path) -> None:
    # The kernel writes on while its writer stands still; a disk is what it is at one moment.
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        data = image.read_bytes()
        if data == image.read_bytes():
            copy.write_bytes(data)
            return
        hold(time.monotonic() < deadline, "the image never stands still")


def _format(image: Path) -> None:
    with image.open("wb") as file:
        file.truncate(IMAGE_MB << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(image)], check=True)


@contextlib.contextmanager
def _mounted(image: Path, at: Path) -> Iterator[Path]:
    at.mkdir(exist_ok=True)
    done = subprocess.run(["mount", "-o", f"loop,{OPTIONS}", str(image), str(at)], capture_output=True, text=True)
    if done.returncode:
        raise BrokenError(f"does not mount: {done.stderr.strip()}")
    try:
        yield at
    finally:
        subprocess.run(["umount", str(at)], check=True)


def _missing() -> str:
    """Why this machine can't do it; empty where it can."""
    if os.geteuid() != 0:
        return "mounting an image needs root"
    if not shutil.which("mkfs.ext4"):
        return "there is no mkfs.ext4"
    with tempfile.TemporaryDirectory(prefix="rlaunch-campaign-", dir=memory()) as scratch:
        image = Path(scratch) / "image"
        _format(image)
        try:
            with _mounted(image, Path(scratch) / "disk"):
                return ""
        except BrokenError as error:
            return f"an image can't be mounted here ({error})"
