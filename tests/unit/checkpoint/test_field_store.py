"""What went wrong with stores in the field. Each case is right with ours, and is seen to go wrong with a naive one."""

import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import pytest
from naive_store import Clock, Hinder, NaiveStore, OneActorStore, StrictNameStore

from resilient_launch.checkpoint import store
from resilient_launch.core.errors import CheckpointError
from resilient_launch.core.ids import CheckpointId
from resilient_launch.policy.requeue import Life, Limits, passed_over
from resilient_launch.policy.retention import newest

WORLD = 3
DEADLINE_S = 60.0


class WrongError(AssertionError):
    """The trouble that a case is about."""


def expect(is_right: bool, trouble: str) -> None:
    if not is_right:
        raise WrongError(trouble)


class Store(Protocol):
    directory: Path

    def save(
        self,
        step: int,
        data: Sequence[bytes],
        *,
        attempt: int = 0,
        hinder: Hinder | None = None,
        dead: Sequence[int] = (),
        clock: Clock = ...,
    ) -> list[Any]: ...
    def published(self) -> list[Path]: ...
    def load(self, *, attempt: int = 9) -> tuple[int, list[bytes]] | None: ...


class Ours:
    """Ranks as threads over one board, each with a shard."""

    def __init__(self, directory: Path, world: int, keep: int = 2) -> None:
        self.directory, self.world, self.keep = directory, world, keep
        self.board = store.LocalBoard()
        self.rounds = [store.Rounds(self.board, rank=rank, world_size=world) for rank in range(world)]
        self.saved: set[CheckpointId] = set()

    def save(
        self,
        step: int,
        data: Sequence[bytes],
        *,
        attempt: int = 0,
        hinder: Hinder | None = None,
        dead: Sequence[int] = (),
        clock: Clock = lambda rank: 0.0,
    ) -> list[Any]:
        ident = CheckpointId(attempt=attempt, restart=0, step=step)
        # Nobody but a test with a dead rank waits for anything here.
        deadline_s = 0.5 if dead else DEADLINE_S

        def act(rank: int) -> Any:
            def write(path: Path) -> list[store.FileEntry]:
                if hinder is not None:
                    hinder(rank, path)
                with store.Digesting().writer(path, f"shard-{rank}.bin") as file:
                    file.write(data[rank])
                    return [file.finish()]

            round_ = self.rounds[rank].start(f"save {ident}", deadline_s)
            try:
                store.publish(self.directory, ident, round_, write=write, facts=store.Facts())
                if rank == 0:
                    self.saved.add(ident)
                    store.prune(self.directory, newest(self.keep), verified=self.saved, resumed_from=None)
            except CheckpointError as error:
                return error

        living = [rank for rank in range(self.world) if rank not in dead]
        with ThreadPoolExecutor(self.world) as pool:
            results = dict(zip(living, pool.map(act, living), strict=True))
        return [results.get(rank) for rank in range(self.world)]

    def published(self) -> list[Path]:
        return [self.directory / str(ident) for ident in reversed(store.published(self.directory))]

    def load(self, *, attempt: int = 9) -> tuple[int, list[bytes]] | None:
        def read(opened: store.OpenCheckpoint) -> list[bytes]:
            return [opened.read(f"shard-{rank}.bin") for rank in range(self.world)]

        alone = store.Round(store.LocalBoard(), "load", rank=0, world_size=1, deadline_s=DEADLINE_S)
        choice = store.load(self.directory, store.Lineage(attempt=attempt), alone, read)
        return None if choice.manifest is None or choice.value is None else (choice.manifest.id.step, choice.value)


def data_of(step: int) -> list[bytes]:
    return [bytes([step % 256, rank]) * 500 for rank in range(WORLD)]


def hinder_rank_1(rank: int, path: Path) -> None:
    if rank == 1:
        # A real error on this rank alone: something else has the shard's name.
        (path / "shard-1.bin").mkdir()


def a_shards_write_fails(kept: Store) -> None:
    """Report 19."""
    results = kept.save(10, data_of(10), hinder=hinder_rank_1)
    expect(all(isinstance(result, Exception) for result in results), "the save said that all is well")
    expect(kept.published() == [], "it was published")
    expect(all("rank 1" in str(result) for result in results), "nobody knows whose shard it was")
    expect(kept.save(20, data_of(20)) == [None] * WORLD, "the next save does not work")


def a_writer_dies(kept: Store) -> None:
    """Report 22."""
    results = kept.save(10, data_of(10), dead=[1])
    expect(all("rank 1 did not answer" in str(results[rank]) for rank in (0, 2)), "the others wait for ever")
    expect(kept.save(20, data_of(20)) == [None] * WORLD, "the next save does not work")


def killed_in_a_save(kept: Store) -> None:
    """Report 24. The whole job is killed in the middle of a save, resumes, and saves the same step again."""

    def die(rank: int, path: Path) -> None:
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    kept.save(10, data_of(10))
    child = os.fork()
    if child == 0:
        kept.save(20, data_of(20), hinder=die)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    expect(kept.save(20, data_of(20), attempt=1) == [None] * WORLD, "the step can't be saved again")
    expect(kept.load() == (20, data_of(20)), "something else was loaded")


def everybody_renames_and_deletes(kept: Store) -> None:
    """Report 25. Several nodes see the same directory."""
    for step in (10, 20, 30):
        expect(kept.save(step, data_of(step)) == [None] * WORLD, "a rank found that another had been faster")
    expect(kept.load() == (30, data_of(30)) and len(kept.published()) == 2, "retention went wrong")


def clocks_across_a_second(kept: Store) -> None:
    """Report 29. The last rank's clock is a moment ahead."""
    clocks = [100.9, 100.95, 101.05]
    expect(kept.save(10, data_of(10), clock=clocks.__getitem__) == [None] * WORLD, "a rank failed")
    for path in kept.published():
        shards = {each.name for each in path.glob("shard-*")}
        expect(shards == {f"shard-{rank}.bin" for rank in range(WORLD)}, "a shard is in a sibling directory")
    expect(kept.load() == (10, data_of(10)), "something else was loaded")


def a_bad_checkpoint(kept: Store) -> None:
    """Report 31. Whoever resumes from step 20 dies at once; step 10 is good."""
    kept.save(10, data_of(10))
    kept.save(20, data_of(20))
    lives: list[Life] = []
    for attempt in range(1, 8):
        step = resume(kept, lives, attempt)
        if step == 10:
            return
        lives.append(
            Life(
                attempt=attempt,
                restart=0,
                checkpoint=str(CheckpointId(attempt=0, restart=0, step=20)),
                resume_step=20,
                end_step=20,
                has_saved=False,
                has_failed=True,
            )
        )
    raise WrongError("the bad one is restarted again and again")


def resume(kept: Store, lives: list[Life], attempt: int) -> int | None:
    """The step that the next life goes on from; only our loader can be told what led nowhere."""
    if not isinstance(kept, Ours):
        loaded = kept.load()
        return loaded[0] if loaded else None
    names = [path.name for path in kept.published()]
    over = passed_over(lives, names, limits=Limits(same_step=3))
    choice = store.choose(kept.directory, store.Lineage(attempt=attempt, passed_over=over))
    return choice.manifest.id.step if choice.manifest else None


def the_power_goes(kept: Store) -> None:
    """Report 32. Files of the newest have no content, and LATEST is gone."""
    kept.save(10, data_of(10))
    kept.save(20, data_of(20))
    for file in kept.published()[-1].iterdir():
        os.truncate(file, 0)
    (kept.directory / "LATEST").unlink()
    expect(kept.load() == (10, data_of(10)), "the older one is not used")


def a_step_is_passed_again(kept: Store) -> None:
    """Report 33. A client that knows the first directory by its name must not take it for the second."""
    kept.save(10, data_of(10))
    (first,) = kept.published()
    known = first.stat().st_ino
    kept.save(10, [b"other"] * WORLD, attempt=1)
    (again,) = (path for path in kept.published() if path.stat().st_ino != known)
    expect(again.name != first.name, "a name was used twice")


CASES: list[tuple[Callable[[Store], None], type[NaiveStore], str]] = [
    (a_shards_write_fails, OneActorStore, "said that all is well"),
    (a_writer_dies, NaiveStore, "wait for ever"),
    (killed_in_a_save, StrictNameStore, "can't be saved again"),
    (everybody_renames_and_deletes, NaiveStore, "another had been faster"),
    (clocks_across_a_second, NaiveStore, "rank failed|sibling directory"),
    (a_bad_checkpoint, OneActorStore, "again and again"),
    (the_power_goes, OneActorStore, "older one is not used"),
    (a_step_is_passed_again, OneActorStore, "used twice"),
]
IDS = [case.__name__ for case, _, _ in CASES]


@pytest.mark.parametrize("case", [case for case, _, _ in CASES], ids=IDS)
def test_ours_is_right(tmp_path: Path, case: Callable[[Store], None]) -> None:
    case(Ours(tmp_path, WORLD))


@pytest.mark.parametrize(("case", "naive", "trouble"), CASES, ids=IDS)
def test_a_naive_one_is_seen_to_go_wrong(
    tmp_path: Path, case: Callable[[Store], None], naive: type[NaiveStore], trouble: str
) -> None:
    with pytest.raises(WrongError, match=trouble):
        case(naive(tmp_path, WORLD))
