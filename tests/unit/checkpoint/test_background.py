"""Saving in the background, from one process: the copy is what is saved, and no failure tears or loses more than it."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from leaving_out import leave_out

from resilient_launch.checkpoint import store
from resilient_launch.checkpoint.background.arena import Arena, available_bytes
from resilient_launch.checkpoint.background.client import Client, WriterGoneError, spawn
from resilient_launch.checkpoint.background.saving import Background
from resilient_launch.checkpoint.background.shelf import Shelf
from resilient_launch.checkpoint.checkpointer import Checkpointer
from resilient_launch.checkpoint.digest import state_digest
from resilient_launch.checkpoint.outcomes import Saving
from resilient_launch.checkpoint.train_state import TrainState
from resilient_launch.core.errors import CheckpointError

DEADLINE_S = 120


class HookedBoard(store.LocalBoard):
    """Calls ``hook`` when the writer, its directory made, is about to write its files."""

    def __init__(self) -> None:
        super().__init__()
        self.hook: Callable[[], object] = lambda: None

    def post(self, key: str, value: bytes) -> None:
        super().post(key, value)
        if key.endswith("/plan"):
            hook, self.hook = self.hook, lambda: None
            hook()


class Place:
    """A state, its checkpointer, and the board between."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.directory, self.board = directory, HookedBoard()
        self.background = Background(self.board, rank=0, world_size=1, **options)
        self.checkpointer = Checkpointer(directory, board=self.board, background=self.background, save_timeout_s=1.0)
        torch.manual_seed(3)
        self.model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 300))
        self.state = TrainState(model=self.model)

    def begin(self, **options: Any) -> Saving:
        self.state.step += 1
        return self.checkpointer.begin_save(self.state, **options)

    def names(self) -> list[str]:
        # A checkpoint is announced before LATEST names it.
        self.checkpointer.settle()
        return sorted(path.name for path in self.directory.iterdir() if path.name != "LATEST")

    def writer(self) -> int:
        pid = self.background.writer_pid
        assert pid is not None
        return pid


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path / "checkpoints")
    yield made
    made.checkpointer.close(DEADLINE_S)


def test_the_snapshot_is_the_state_of_its_step_and_the_same_as_a_synchronous_save(place: Place, tmp_path: Path) -> None:
    sync = Checkpointer(tmp_path / "sync")
    place.state.step = 1
    sync.save(place.state)
    place.state.step = 0
    has_mutated = threading.Event()
    place.board.hook = lambda: has_mutated.wait(DEADLINE_S)
    saving = place.begin(reason="test", metadata={"note": 1})
    assert not saving.is_over
    with torch.no_grad():
        for tensor in place.model.state_dict().values():
            tensor.add_(1)
    has_mutated.set()
    report = saving.wait(DEADLINE_S)
    assert report.durable_s >= report.staged_s
    assert report.commit_s > 0
    one, other = place.directory / str(report.id), tmp_path / "sync" / str(report.id)
    assert state_digest(one) == state_digest(other)
    assert (one / "shard-r00000.bin").read_bytes() == (other / "shard-r00000.bin").read_bytes()
    with store.open_checkpoint(one) as opened:
        opened.verify_share()
        assert (opened.manifest.facts.reason, opened.manifest.facts.metadata) == ("test", {"note": 1})


def test_a_save_waits_for_the_one_in_flight_and_none_is_lost(place: Place) -> None:
    go_on = threading.Event()
    place.board.hook = lambda: go_on.wait(DEADLINE_S)
    first = place.begin()
    threading.Timer(0.3, go_on.set).start()
    second = place.begin()
    assert first.is_over
    assert second.wait(DEADLINE_S).waited_s > 0
    assert place.names() == [str(first.id), str(second.id)]


def test_a_layout_that_changes_leaves_nothing_of_the_old_one(place: Place, tmp_path: Path) -> None:
    place.begin().wait(DEADLINE_S)
    place.model.append(torch.nn.Linear(300, 3, bias=False, dtype=torch.float64))
    place.model[0] = torch.nn.Linear(2, 5).to(torch.bfloat16)
    report = place.begin().wait(DEADLINE_S)
    Checkpointer(tmp_path / "sync").save(place.state)
    one, other = place.directory / str(report.id), tmp_path / "sync" / str(report.id)
    assert (one / "shard-r00000.bin").read_bytes() == (other / "shard-r00000.bin").read_bytes()


def assert_fails_once(place: Place, match: str, **options: Any) -> CheckpointError:
    """The save under way fails, with nothing left of it, and the next one works."""
    outcomes: list[Any] = []
    with pytest.raises(CheckpointError, match=match) as caught:
        place.begin(on_end=lambda saving, outcome: outcomes.append(outcome), **options).wait(DEADLINE_S)
    assert outcomes == [caught.value]
    place.checkpointer.settle()
    assert not place.directory.exists() or place.names() == []
    place.directory.mkdir(exist_ok=True)
    report = place.begin().wait(DEADLINE_S)
    assert place.names() == [str(report.id)]
    return caught.value


def test_a_writer_that_dies_costs_its_save_alone(place: Place) -> None:
    place.board.hook = lambda: os.kill(place.writer(), signal.SIGKILL)
    assert "rank 0" in str(assert_fails_once(place, "writer is gone"))


def test_a_writer_that_hangs_is_given_up_after_a_while_and_never_publishes(place: Place) -> None:
    writers: list[int] = []

    def stop() -> None:
        writers.append(place.writer())
        os.kill(writers[0], signal.SIGSTOP)

    place.board.hook = stop
    assert_fails_once(place, "does not answer", timeout_s=0.1)
    # It can't go on later: that would read an arena which holds another step by then.
    assert not Path(f"/proc/{writers[0]}").exists()


def test_a_newer_attempt_shuts_the_writer_out(place: Place) -> None:
    place.board.hook = lambda: (store.fence(place.directory, 1), store.sweep(place.directory))
    assert_fails_once(place, "taken away|is gone")


def test_a_directory_that_vanishes_fails_the_save_alone(place: Place) -> None:
    place.board.hook = lambda: shutil.rmtree(place.directory)
    assert_fails_once(place, "not published|can't be created")


def test_a_name_that_is_taken_is_an_error_with_its_path(place: Place) -> None:
    place.begin().wait(DEADLINE_S)
    place.state.step -= 1
    with pytest.raises(CheckpointError, match="exists already") as caught:
        place.begin().wait(DEADLINE_S)
    assert str(place.directory) in str(caught.value)


def test_a_full_disk_gives_its_space_back(tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    is_mounted = not subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(mount)]).returncode
    leave_out("a small disk", [] if is_mounted else ["the right to mount a tmpfs"])
    place = Place(mount / "checkpoints")
    try:
        place.begin().wait(DEADLINE_S)
        place.checkpointer.settle()
        filler = mount / "filler"
        # Room for the directory and the beginning of its shard.
        filler.write_bytes(bytes((os.statvfs(mount).f_bfree - 2) * os.statvfs(mount).f_bsize))
        before = os.statvfs(mount).f_bfree
        with pytest.raises(CheckpointError, match="No space left"):
            place.begin().wait(DEADLINE_S)
        assert os.statvfs(mount).f_bfree == before
        filler.unlink()
        report = place.begin().wait(DEADLINE_S)
        with store.open_checkpoint(place.directory / str(report.id)) as opened:
            opened.verify_share()
    finally:
        place.checkpointer.close(DEADLINE_S)
        subprocess.run(["umount", str(mount)], check=True)


def test_without_memory_for_a_copy_the_save_is_made_at_once(tmp_path: Path) -> None:
    place = Place(tmp_path / "checkpoints", num_sharing=1 << 50)
    saving = place.begin()
    assert saving.is_over
    assert place.names() == [str(saving.wait().id)]
    assert "bytes of memory" in place.checkpointer.refusal
    place.checkpointer.close(DEADLINE_S)


def test_the_memory_and_the_writer_stay_the_same_from_save_to_save(place: Place) -> None:
    place.checkpointer.warm_up(place.state)
    place.begin().wait(DEADLINE_S)
    place.checkpointer.settle()
    before = place.writer(), place.background.arena_bytes, num_descriptors(os.getpid()), num_descriptors(place.writer())
    for _ in range(5):
        place.begin().wait(DEADLINE_S)
    place.checkpointer.settle()
    after = place.writer(), place.background.arena_bytes, num_descriptors(os.getpid()), num_descriptors(place.writer())
    assert before == after
    assert place.background.arena_bytes > 0


def num_descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def test_a_writer_serves_the_next_process_with_the_same_memory(tmp_path: Path) -> None:
    first = Client()
    arena = first.prepare(1 << 20, 1)
    arena.view[:5] = b"still"
    second = Client(first.path)
    first.disconnect()
    again = second.prepare(1 << 19, 1)
    assert bytes(again.view[:5]) == b"still"
    second.close()
    first.close()


def test_a_writer_ends_with_whoever_started_it() -> None:
    code = (
        "from resilient_launch.checkpoint.background.client import Client; c = Client(); c.prepare(1, 1);"
        "print(c.pid, flush=True); import os; os._exit(0)"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True, timeout=DEADLINE_S)
    pid = int(done.stdout)
    gone = threading.Event()
    for _ in range(DEADLINE_S * 10):
        if not is_alive(pid):
            return
        gone.wait(0.1)
    pytest.fail("the writer is still there")


def is_alive(pid: int) -> bool:
    try:
        return "background.process" in Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_client_says_when_nobody_listens(tmp_path: Path) -> None:
    client = Client()
    os.kill(client.pid or 0, signal.SIGKILL)
    with pytest.raises(WriterGoneError):
        client.prepare(1, 1)
    client.close()


def test_an_arena_is_shared_through_its_descriptor() -> None:
    made = Arena.create(3)
    joined = Arena(os.dup(made.fd))
    made.view[1] = 7
    assert joined.view[1] == 7
    assert made.num_bytes == joined.num_bytes >= 3
    joined.close()
    made.close()
    assert available_bytes() > 0


@pytest.fixture
def outlived(tmp_path: Path) -> Iterator[tuple[Place, Shelf]]:
    """A place whose writer stays when the training goes, and the labels of what it has in memory then."""
    with tempfile.TemporaryDirectory(prefix="rlaunch-test-", dir="/tmp") as short:
        socket = Path(short) / "socket"
        writer = spawn(socket)
        made = Place(tmp_path / "checkpoints", socket=socket)
        yield made, Shelf(socket)
        made.checkpointer.close(DEADLINE_S)
        writer.kill()
        writer.wait()


def test_a_state_that_cannot_be_copied_costs_its_save_alone(outlived: tuple[Place, Shelf]) -> None:
    place, shelf = outlived
    # Laid out in another way than the file, it is brought into order first, which takes as much memory again.
    place.model.append(torch.nn.Linear(5000, 5000, bias=False))
    place.model[-1].weight = torch.nn.Parameter(torch.zeros(5000, 5000).t())
    first = place.begin().wait(DEADLINE_S)
    place.checkpointer.settle()
    assert [label.mark.id for label in shelf.labels()] == [first.id]
    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + (50 << 20), before[1]))
    try:
        saving = place.begin()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    with pytest.raises(CheckpointError, match="could not be copied"):
        saving.wait(DEADLINE_S)
    assert place.names() == [str(first.id)]
    # What is in memory is half of each.
    assert shelf.labels() == []
    second = place.begin().wait(DEADLINE_S)
    assert place.names() == [str(first.id), str(second.id)]
    assert [label.mark.id for label in shelf.labels()] == [second.id]
