"""Worker groups that start again go on from memory: two real ranks, each with a writer that outlives the group."""

import os
import signal
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks_training import build, path_of, train_and_save
from real_ranks import Rank, Ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from resilient_launch.checkpoint import store
from resilient_launch.checkpoint.background.client import spawn
from resilient_launch.checkpoint.background.saving import Background
from resilient_launch.checkpoint.background.shelf import Shelf
from resilient_launch.checkpoint.checkpointer import Checkpointer
from resilient_launch.checkpoint.digest import state_digest
from resilient_launch.checkpoint.outcomes import Origin, Tier
from resilient_launch.checkpoint.rng import seed_all
from resilient_launch.checkpoint.train_state import TrainState

SAVED, KEPT, NEWEST, END = 2, 4, 5, 9
DEADLINE_S = 120
Mishap = Callable[[Rank, Path, Background], None]


def saver_of(me: Rank, directory: Path, socket: Path, restart: int, **options: Any) -> tuple[Checkpointer, Background]:
    board = me.board(f"{directory} {restart}")
    background = Background(board, rank=me.rank, world_size=me.world_size, socket=socket, has_spare=True)
    made = Checkpointer(
        directory,
        rank=me.rank,
        world_size=me.world_size,
        board=board,
        restart=restart,
        background=background,
        run_id="run",
        **options,
    )
    return made, background


def lose_nothing(me: Rank, socket: Path, background: Background) -> None:
    pass


def flip_a_bit_of_the_newest(me: Rank, socket: Path, background: Background) -> None:
    if me.rank == 1:
        label = max(Shelf(socket).labels(), key=lambda label: label.mark)
        assert background._client is not None
        background._client.arenas[label.slot].view[label.entry.size // 2] ^= 1


def lose_all_labels(me: Rank, socket: Path, background: Background) -> None:
    if me.rank == 1:
        for label in Shelf(socket).labels():
            Shelf(socket).take_away(label.slot)


def lose_the_writer(me: Rank, socket: Path, background: Background) -> None:
    if me.rank == 1:
        assert background.writer_pid is not None
        os.kill(background.writer_pid, signal.SIGKILL)


def resume(me: Rank, directory: Path, mishap: Mishap) -> tuple[int, Origin]:
    """Train, save, keep copies, have the worker group end without a word, and go on in the next one to the end."""
    with tempfile.TemporaryDirectory(dir="/tmp") as sockets:
        socket = Path(sockets) / "writer"
        writer = spawn(socket)
        try:
            training = build(me, seed=1)
            first, background = saver_of(me, directory, socket, 0)
            for step in range(1, NEWEST + 1):
                training.train(step)
                if step == SAVED:
                    first.begin_save(training.state).wait(DEADLINE_S)
                if step in (KEPT, NEWEST):
                    assert first.keep(training.state)
            background._end_hashing()
            mishap(me, socket, background)
            torch.distributed.barrier()
            first.close()
            again = build(me, seed=2)
            second, _ = saver_of(me, directory, socket, 1)
            restored = second.restore(again.state)
            assert restored is not None
            again.train(END)
            second.begin_save(again.state).wait(DEADLINE_S)
            second.close(DEADLINE_S)
            return restored.step, second.origin
        finally:
            writer.kill()
            writer.wait()


@pytest.fixture(scope="module")
def whole(two_ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("whole")
    two_ranks.values(train_and_save, directory, END)
    return state_digest(path_of(directory, END))


@pytest.mark.parametrize(
    ("mishap", "step", "tier", "why"),
    [
        (lose_nothing, NEWEST, Tier.LOCAL, "complete on every rank"),
        (flip_a_bit_of_the_newest, KEPT, Tier.LOCAL, "rank 1: checkpoint file does not have the content"),
        (lose_all_labels, SAVED, Tier.SHARED, "rank 1 has no snapshot in memory"),
        (lose_the_writer, SAVED, Tier.SHARED, "rank 1 has no snapshot in memory: the checkpoint writer is gone"),
    ],
)
def test_all_ranks_go_on_from_one_snapshot_or_from_shared_storage(
    two_ranks: Ranks, tmp_path: Path, whole: str, mishap: Mishap, step: int, tier: Tier, why: str
) -> None:
    results = two_ranks.values(resume, tmp_path, mishap)
    for found, origin in results:
        assert (found, origin.tier) == (step, tier)
        assert why in origin.why
        assert origin.is_durable == (tier is Tier.SHARED)
    end = tmp_path / f"step-{END:08d}.a0000.r1"
    assert state_digest(end) == whole
    with store.open_checkpoint(end) as opened:
        # What was in memory alone is nobody's parent.
        assert opened.manifest.facts.parent == str(path_of(tmp_path, SAVED).name)


def sharded_state() -> TrainState:
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 3))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 6)).sum().backward()
    optimizer.step()
    return TrainState(model=model, optimizer=optimizer)


def resume_sharded(me: Rank, directory: Path) -> bool:
    with tempfile.TemporaryDirectory(dir="/tmp") as sockets:
        socket = Path(sockets) / "writer"
        writer = spawn(socket)
        try:
            seed_all(5)
            state = sharded_state()
            first, background = saver_of(me, directory, socket, 0)
            # Nothing is durable yet: memory is all there is.
            assert first.keep(state) is True
            background._end_hashing()
            before = first_values(state)
            first.close()
            seed_all(6)
            other = sharded_state()
            second, _ = saver_of(me, directory, socket, 1)
            assert first_values(other) != before
            restored = second.restore(other)
            assert restored is not None
            assert "there is no checkpoint on shared storage" in second.origin.why
            second.close()
            return first_values(other) == before
        finally:
            writer.kill()
            writer.wait()


def first_values(state: TrainState) -> list[list[float]]:
    capture = state.capture(torch.distributed.get_rank(), torch.distributed.get_world_size())
    local = [getattr(tensor, "to_local", lambda tensor=tensor: tensor)() for tensor in capture.tensors.values()]
    return [tensor.double().flatten().tolist() for tensor in local]


def test_a_sharded_state_comes_back_to_each_rank(two_ranks: Ranks, tmp_path: Path) -> None:
    assert two_ranks.values(resume_sharded, tmp_path) == [True, True]


class Held(store.LocalBoard):
    """Holds a save in flight, its directory made, until ``go_on``."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on, self.is_held = threading.Event(), threading.Event()

    def post(self, key: str, value: bytes) -> None:
        super().post(key, value)
        if key.endswith("/plan"):
            self.is_held.set()
            self.go_on.wait(DEADLINE_S)


class Watched(dict[str, torch.Tensor]):
    """Notes which snapshots are labelled whenever one of its tensors is looked at."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], shelf: Shelf) -> None:
        super().__init__(tensors)
        self.shelf = shelf
        self.seen: list[list[int]] = []

    def __getitem__(self, key: str) -> torch.Tensor:
        self.seen.append([label.mark.id.step for label in self.shelf.labels()])
        return super().__getitem__(key)


def test_copies_in_memory_never_touch_the_save_in_flight_and_one_is_always_whole(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as sockets:
        socket = Path(sockets) / "writer"
        writer = spawn(socket)
        try:
            board = Held()
            background = Background(board, rank=0, world_size=1, socket=socket, has_spare=True)
            saver = Checkpointer(tmp_path / "ours", board=board, background=background)
            model = torch.nn.Linear(300, 50)
            state = TrainState(model=model)
            saver.warm_up(state)
            saver.settle()
            shelf = Shelf(socket)
            with torch.no_grad():
                state.step = 1
                Checkpointer(tmp_path / "sync").save(state)
                saving = saver.begin_save(state)
                assert board.is_held.wait(DEADLINE_S)
                for step in (2, 3, 4):
                    state.step = step
                    model.weight.fill_(step)
                    assert saver.keep(state)
                    background._end_hashing()
                    assert [label.mark.id.step for label in shelf.labels()] == [step]
                board.go_on.set()
                report = saving.wait(DEADLINE_S)
                saver.settle()
                assert state_digest(tmp_path / "ours" / str(report.id)) == state_digest(
                    tmp_path / "sync" / str(report.id)
                )
                assert sorted(label.mark.id.step for label in shelf.labels()) == [1, 4]
                # The older of the two is overwritten, and has no label from before the first byte of it changes.
                watched = Watched(state.capture().tensors, shelf)
                capture = replace(state.capture(), tensors=watched)
                assert background.keep(saver._job(5, "", store.Facts()), capture)
                assert watched.seen and all(steps == [4] for steps in watched.seen)
            saver.close()
        finally:
            writer.kill()
            writer.wait()


def test_without_a_spare_arena_nothing_is_kept_between_saves(tmp_path: Path) -> None:
    background = Background(store.LocalBoard(), rank=0, world_size=1)
    saver = Checkpointer(tmp_path, background=background)
    assert saver.keep(TrainState(model=torch.nn.Linear(2, 2))) is False
    assert background.arena_bytes == 0
    saver.close()
