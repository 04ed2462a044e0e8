"""Several ranks publishing and loading over one board: threads as ranks, real files."""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from resilient_launch.checkpoint import store
from resilient_launch.core.errors import CheckpointError
from resilient_launch.core.ids import CheckpointId

WORLD = 3
DIGESTING = store.Digesting(chunk_bytes=64)


def ident(step: int) -> CheckpointId:
    return CheckpointId(attempt=0, restart=0, step=step)


def together(act: Callable[[int], Any], ranks: Sequence[int] = range(WORLD)) -> list[Any]:
    """Run ``act(rank)`` for every rank at once; an exception counts as its result."""

    def caught(rank: int) -> Any:
        try:
            return act(rank)
        except Exception as error:
            return error

    with ThreadPoolExecutor(WORLD) as pool:
        return list(pool.map(caught, ranks))


class Gang:
    """Ranks that share a board and count their rounds as a run does."""

    def __init__(self, directory: Path, deadline_s: float = 20.0) -> None:
        self.directory, self.deadline_s = directory, deadline_s
        self.board = store.LocalBoard()
        self.rounds = [store.Rounds(self.board, rank=rank, world_size=WORLD) for rank in range(WORLD)]

    def save(
        self, step: int, write: Callable[[int, Path], Any] | None = None, ranks: Sequence[int] = range(WORLD)
    ) -> list[Any]:
        def act(rank: int) -> store.Published:
            def write_shard(path: Path) -> list[store.FileEntry]:
                if write is not None:
                    write(rank, path)
                with DIGESTING.writer(path, f"shard-{rank}.bin") as file:
                    file.write(bytes([step, rank]) * 100)
                    return [file.finish()]

            round_ = self.rounds[rank].start(f"save {step}", self.deadline_s)
            merge = lambda parts: {"INDEX.json": repr(parts).encode()}  # noqa: E731
            return store.publish(
                self.directory,
                ident(step),
                round_,
                part={"rank": rank},
                merge=merge,
                write=write_shard,
                facts=store.Facts(),
            )

        return together(act, ranks)

    def load(self, name: str, read: Callable[[int, store.OpenCheckpoint], Any]) -> list[Any]:
        def act(rank: int) -> store.Choice[Any]:
            round_ = self.rounds[rank].start(name, self.deadline_s)
            return store.load(self.directory, store.Lineage(), round_, lambda checkpoint: read(rank, checkpoint))

        return together(act)


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_all_shards_are_published_together(tmp_path: Path) -> None:
    gang = Gang(tmp_path)
    published = gang.save(1)
    assert len({each.uuid for each in published}) == 1
    manifest = store.open_checkpoint(tmp_path / str(ident(1))).manifest
    assert [entry.name for entry in manifest.files] == ["INDEX.json", *(f"shard-{rank}.bin" for rank in range(WORLD))]
    assert (
        store.read_verified(tmp_path / str(ident(1)), "INDEX.json")
        == repr([{"rank": rank} for rank in range(WORLD)]).encode()
    )


@pytest.mark.parametrize("failing", range(WORLD))
def test_one_ranks_error_reaches_all_and_the_next_save_works(tmp_path: Path, failing: int) -> None:
    gang = Gang(tmp_path)
    gang.save(1)

    def write(rank: int, path: Path) -> None:
        if rank == failing:
            # The name is taken, as an I/O error in one rank would be: real, and on this rank alone.
            (path / f"shard-{rank}.bin").mkdir()

    for error in gang.save(2, write):
        assert isinstance(error, CheckpointError)
        assert f"rank {failing}: " in str(error) and f"shard-{failing}.bin" in error.where
    assert names(tmp_path) == {str(ident(1)), "LATEST"}
    assert all(isinstance(each, store.Published) for each in gang.save(3))


def test_a_rank_that_raises_something_else_fails_all(tmp_path: Path) -> None:
    def write(rank: int, path: Path) -> None:
        if rank == 1:
            raise RuntimeError("device lost")

    errors = Gang(tmp_path).save(1, write)
    assert type(errors[1]) is RuntimeError
    assert all("rank 1: RuntimeError: device lost" in str(errors[rank]) for rank in (0, 2))
    assert names(tmp_path) == set()


@pytest.mark.parametrize("missing", range(WORLD))
def test_an_absent_rank_costs_the_deadline_and_is_named(tmp_path: Path, missing: int) -> None:
    # Long enough that no rank that is there, but late on a busy machine, is named instead.
    gang = Gang(tmp_path, deadline_s=3.0)
    ranks = [rank for rank in range(WORLD) if rank != missing]
    for error in gang.save(1, ranks=ranks):
        assert isinstance(error, CheckpointError)
        assert f"rank {missing} did not answer" in str(error)
    assert names(tmp_path) == set()


def test_a_file_in_a_sibling_directory_is_not_published(tmp_path: Path) -> None:
    def write(rank: int, path: Path) -> None:
        if rank == 2:
            os.rename(path / "shard-1.bin", path.parent / "shard-1.bin")  # noqa: PTH104

    written = threading.Event()

    def in_order(rank: int, path: Path) -> None:
        if rank == 2:
            assert written.wait(10)
            write(rank, path)
        elif rank == 0:
            deadline = threading.Event()
            while not (path / "shard-1.bin").exists() or (path / "shard-1.bin").stat().st_size < 200:
                assert not deadline.wait(0.001)
            written.set()

    errors = Gang(tmp_path).save(1, in_order)
    assert all("is not in the checkpoint's directory" in str(error) for error in errors)
    assert names(tmp_path) == {"shard-1.bin"}


def test_a_stranger_in_the_directory_is_not_published(tmp_path: Path) -> None:
    errors = Gang(tmp_path).save(1, lambda rank, path: (path / f"stale-{rank}.bin").touch())
    assert all("no rank reported" in str(error) for error in errors)
    assert names(tmp_path) == set()


def test_a_name_taken_meanwhile_is_left_alone(tmp_path: Path) -> None:
    def write(rank: int, path: Path) -> None:
        if rank == 1:
            (tmp_path / str(ident(1))).mkdir()

    errors = Gang(tmp_path).save(1, write)
    assert all("exists already" in str(error) for error in errors)
    assert names(tmp_path) == {str(ident(1))} and not names(tmp_path / str(ident(1)))


def test_fenced_while_writing(tmp_path: Path) -> None:
    def write(rank: int, path: Path) -> None:
        if rank == 1:
            store.fence(tmp_path, attempt=1)

    errors = Gang(tmp_path).save(1, write)
    assert all(isinstance(error, store.FencedError) for error in errors)
    assert store.published(tmp_path) == []


def test_the_board_does_not_fill_up(tmp_path: Path) -> None:
    gang = Gang(tmp_path)
    sizes = []
    for step in range(1, 9):
        gang.save(step)
        sizes.append(len(gang.board._values))
    # The words of one round: rank 0's two, and two of every other rank.
    assert sizes[-1] == sizes[1] <= 2 * WORLD


def test_the_last_word_of_a_round_stays_until_every_rank_is_in_the_next_one() -> None:
    board = store.LocalBoard()
    quick, slow = (store.Rounds(board, rank=rank, world_size=2) for rank in range(2))
    unread = slow.start("first", 20.0)
    quick.start("first", 20.0).share("outcome", 7)
    second = quick.start("second", 20.0)
    second.share("plan", 8)
    assert unread.share("outcome") == 7
    slow.start("second", 20.0).gather("word", 1)
    assert second.gather("word", 0) == [0, 1]
    second.share("outcome", 9)
    with pytest.raises(TimeoutError):
        board.read("first/outcome", 0.0)


def test_damage_seen_by_one_rank_sends_all_to_the_older_one(tmp_path: Path) -> None:
    gang = Gang(tmp_path)
    gang.save(1)
    gang.save(2)
    shard = tmp_path / str(ident(2)) / "shard-1.bin"
    shard.write_bytes(bytes(200))
    # Each rank reads its own shard only; the damage is rank 1's to find.
    choices = gang.load("load", lambda rank, checkpoint: checkpoint.read(f"shard-{rank}.bin"))
    assert [choice.value for choice in choices] == [bytes([1, rank]) * 100 for rank in range(WORLD)]
    assert {choice.manifest.id for choice in choices} == {ident(1)}
    assert len({choice.verdicts for choice in choices}) == 1
    bad, good = choices[0].verdicts
    assert (bad.standing, bad.quarantined_as) == (store.Standing.DAMAGED, f"{ident(2)}.corrupt")
    assert "rank 1" in bad.why and "shard-1.bin" in bad.why
    assert good.standing == store.Standing.CHOSEN


@pytest.mark.parametrize("damaged", ["INDEX.json", "shard-0.bin", "shard-1.bin", "shard-2.bin"])
def test_every_file_is_verified_by_some_rank(tmp_path: Path, damaged: str) -> None:
    gang = Gang(tmp_path)
    gang.save(1)
    path = tmp_path / str(ident(1)) / damaged
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    choices = gang.load("load", lambda rank, checkpoint: None)
    assert all(choice.manifest is None for choice in choices)


def test_a_state_that_does_not_fit_condemns_nothing(tmp_path: Path) -> None:
    gang = Gang(tmp_path)
    gang.save(1)

    def read(rank: int, checkpoint: store.OpenCheckpoint) -> None:
        if rank == 2:
            raise CheckpointError("another shape")

    errors = gang.load("load", read)
    assert all(isinstance(error, CheckpointError) and "another shape" in str(error) for error in errors)
    assert store.published(tmp_path) == [ident(1)]
