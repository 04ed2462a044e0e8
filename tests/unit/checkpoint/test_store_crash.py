"""A save that is killed, or refused by the storage, at every system call it makes."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from faulty_save import DIGESTING, buffers, save

from resilient_launch.checkpoint import store
from resilient_launch.core.errors import CheckpointError
from resilient_launch.core.ids import CheckpointId

pytestmark = pytest.mark.skipif(not shutil.which("strace") and not os.environ.get("CI"), reason="needs strace")

OLD, NEW = 10, 20
CALLS = "mkdir,openat,write,fsync,close,rename,unlink,rmdir,unlinkat"


@dataclass
class FaultySaves:
    """Runs saves of step NEW beside a sound step OLD, under strace."""

    server: subprocess.Popen[str]
    root: Path

    def run(
        self, number: int, *options: str, meanwhile: Callable[[Path, int], None] | None = None
    ) -> tuple[Path, str | None, list[str]]:
        """The checkpoints directory after the save, its outcome (None: killed), and the trace."""
        directory = self.root / str(number) / "checkpoints"
        directory.mkdir(parents=True)
        save(directory, OLD)
        assert self.server.stdin and self.server.stdout
        self.server.stdin.write(json.dumps({"directory": str(directory), "step": NEW}) + "\n")
        self.server.stdin.flush()
        pid = int(self.server.stdout.readline())
        trace = directory.with_name("trace")
        command = ["strace", "-qqq", "-o", str(trace), "-e", f"trace={CALLS}", *options, "-p", str(pid)]
        tracer = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        wait_until(lambda: "TracerPid:\t0\n" not in Path(f"/proc/{pid}/status").read_text())
        os.kill(pid, signal.SIGCONT)
        if meanwhile is not None:
            try:
                meanwhile(directory, pid)
            except BaseException:
                os.kill(pid, signal.SIGKILL)
                raise
        status = int(self.server.stdout.readline())
        tracer.wait(30)
        outcome = directory.with_name("outcome")
        assert os.WIFSIGNALED(status) != outcome.exists()
        return directory, outcome.read_text() if outcome.exists() else None, trace.read_text().splitlines()


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "the condition was never met"
        time.sleep(0.001)


@pytest.fixture(scope="module")
def saves(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultySaves]:
    script = Path(__file__).with_name("faulty_save.py")
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, str(script)], stdin=pipe, stdout=pipe, text=True) as server:
        yield FaultySaves(server, tmp_path_factory.mktemp("saves"))


@pytest.fixture(scope="module")
def calls(saves: FaultySaves) -> list[tuple[str, int]]:
    """Every file system call of one save, as (name, how many of that name came before it plus one)."""
    _, outcome, trace = saves.run(1_000_000)
    assert outcome == "saved"
    seen: Counter[str] = Counter()
    found = []
    for line in trace:
        name = line.split("(")[0]
        if name in CALLS.split(","):
            seen[name] += 1
            found.append((name, seen[name]))
    # The last three belong to the test: it writes the outcome.
    assert [name for name, _ in found[-3:]] == ["openat", "write", "close"]
    return found[:-3]


def content(path: Path, step: int) -> bool:
    return all(store.read_verified(path, name) == data for name, data in buffers(step).items())


def check(directory: Path, *, was_saved: bool | None) -> str:
    """The loader finds old or new, whole, and the run goes on; returns which of them it found."""
    before = sorted(path.name for path in directory.iterdir())
    choice = store.choose(directory)
    assert choice.manifest is not None, before
    step = choice.manifest.id.step
    assert [verdict.standing for verdict in choice.verdicts] == [store.Standing.CHOSEN], (before, choice.verdicts)
    assert content(directory / choice.manifest.name, step)
    assert content(directory / str(CheckpointId(attempt=0, restart=0, step=OLD)), OLD)
    if was_saved is not None:
        assert step == (NEW if was_saved else OLD), before
    # The next start: fence, sweep, and the same step once more.
    store.fence(directory, attempt=1)
    store.sweep(directory)
    save(directory, NEW, attempt=1)
    assert not [path.name for path in directory.iterdir() if path.name.startswith(".")]
    return "new" if step == NEW else "old"


def test_killed_at_every_call(saves: FaultySaves, calls: list[tuple[str, int]]) -> None:
    found = []
    for number, (name, count) in enumerate(calls):
        directory, outcome, _ = saves.run(number, "-e", f"inject={name}:signal=KILL:when={count}")
        assert outcome is None
        found.append(check(directory, was_saved=None))
        shutil.rmtree(directory.parent)
    # Old up to the rename, new from there on, and both were met.
    renamed = calls.index(("rename", 1))
    assert found == ["old"] * (renamed + 1) + ["new"] * (len(calls) - renamed - 1)
    assert 0 < renamed < len(calls) - 1 and len(calls) > 25


def test_everything_is_durable_before_it_is_relied_on(saves: FaultySaves) -> None:
    """The order of a power cut's survivors: files, their directory, the rename, its directory."""
    directory, outcome, trace = saves.run(30_000, "-y")
    assert outcome == "saved"
    (rename,) = (at for at, line in enumerate(trace) if line.startswith("rename(") and "/step-" in line)
    temporary = re.search(r'rename\("([^"]+)"', trace[rename])[1]

    def last(call: str, path: str, before: int) -> int:
        return max(at for at, line in enumerate(trace[:before]) if line.startswith(f"{call}(") and f"<{path}>" in line)

    names = [path.name for path in (directory / str(CheckpointId(0, 0, NEW))).iterdir()]
    assert sorted(names) == ["MANIFEST.json", "large.bin", "small.bin"]
    synced = last("fsync", temporary, rename)
    for name in names:
        assert last("write", f"{temporary}/{name}", rename) < last("fsync", f"{temporary}/{name}", rename) < synced
    data = max(last("fsync", f"{temporary}/{name}", rename) for name in names if name != "MANIFEST.json")
    assert data < next(at for at, line in enumerate(trace) if "O_CREAT" in line and "MANIFEST.json" in line)
    pointer = next(at for at, line in enumerate(trace) if "O_CREAT" in line and "LATEST" in line)
    assert rename < last("fsync", str(directory), pointer) < pointer


ERRORS = {
    "ENOSPC": "mkdir,openat,write",
    "EDQUOT": "write",
    "EIO": "openat,write,fsync,rename",
    "EROFS": "mkdir,openat,rename",
    "ESTALE": "fsync,rename",
}


@pytest.mark.parametrize("code", ERRORS)
def test_refused_at_every_call(saves: FaultySaves, calls: list[tuple[str, int]], code: str) -> None:
    outcomes = Counter()
    for name, count in calls:
        if name not in ERRORS[code].split(","):
            continue
        number = 10_000 + len(list(saves.root.iterdir()))
        directory, outcome, trace = saves.run(number, "-e", f"inject={name}:error={code}:when={count}")
        was_saved = outcome == "saved"
        outcomes[was_saved] += 1
        if not was_saved:
            assert outcome and str(directory) in outcome and "\ntry: " in outcome
            # Nothing is left of it but the room it took, and that is given back.
            assert {path.name for path in directory.iterdir()} == {str(CheckpointId(0, 0, OLD)), "LATEST"}
            assert not retried_fsync(trace)
        check(directory, was_saved=was_saved)
    assert outcomes[False] > 0


def retried_fsync(trace: list[str]) -> bool:
    """Whether a descriptor whose fsync failed was synced again before it was closed."""
    failed: set[str] = set()
    for line in trace:
        match = re.match(r"(fsync|close)\((\d+)\)\s+= (-?\d+)", line)
        if match is None:
            continue
        call, descriptor, result = match.groups()
        if call == "close":
            failed.discard(descriptor)
        elif descriptor in failed:
            return True
        elif result == "-1":
            failed.add(descriptor)
    return False


@pytest.mark.parametrize("is_swept", [False, True])
def test_a_writer_stopped_before_its_rename_publishes_nothing_later(
    saves: FaultySaves, calls: list[tuple[str, int]], is_swept: bool
) -> None:
    syncs = [call for call in calls[: calls.index(("rename", 1))] if call[0] == "fsync"]

    def take_over(directory: Path, pid: int) -> None:
        trace = directory.with_name("trace")
        wait_until(lambda: re.search(r"^fsync(.*\n)+--- stopped by SIGSTOP", trace.read_text(), re.MULTILINE))
        assert list(directory.glob(".tmp-*/MANIFEST.json"))
        assert len(store.fence(directory, attempt=1)) == 1
        if is_swept:
            store.sweep(directory)
        os.kill(pid, signal.SIGCONT)

    # The signal stops it on its way back from the directory's fsync, the last call before the rename.
    option = f"inject=fsync:signal=STOP:when={syncs[-1][1]}"
    directory, outcome, _ = saves.run(20_000 + is_swept, "-e", option, meanwhile=take_over)
    assert outcome and "newer attempt" in outcome
    assert check(directory, was_saved=False) == "old"


def test_a_full_disk_gives_its_space_back(tmp_path: Path) -> None:
    mount = tmp_path / "small disk"
    mount.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(mount)]).returncode:
        pytest.skip("needs to mount a tmpfs")
    try:
        directory = mount / "checkpoints"
        directory.mkdir()
        save(directory, OLD)
        with pytest.raises(CheckpointError, match="No space left on device") as caught:
            store.write_buffers(directory, CheckpointId(0, 0, NEW), {"big.bin": bytes(4 << 20)}, digesting=DIGESTING)
        assert "big.bin" in caught.value.where and "keep fewer" in caught.value.hint
        assert check(directory, was_saved=False) == "old"
    finally:
        subprocess.run(["umount", str(mount)], check=True)
