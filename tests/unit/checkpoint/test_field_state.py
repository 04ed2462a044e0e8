"""What went wrong with training state in the field. Each case is right with ours, wrong naively done."""

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from resilient_launch.checkpoint.background.saving import Background
from resilient_launch.checkpoint.checkpointer import Checkpointer
from resilient_launch.checkpoint.loader import resumable_loader
from resilient_launch.checkpoint.rng import seed_all
from resilient_launch.checkpoint.sampler import ResumableSampler
from resilient_launch.checkpoint.store import LocalBoard
from resilient_launch.checkpoint.train_state import TrainState

WORLD = 3
MEMORY_BYTES = 16 << 20
DEADLINE_S = 120.0


class WrongError(AssertionError):
    """The trouble that a case is about."""


def expect(is_right: bool, trouble: str) -> None:
    if not is_right:
        raise WrongError(trouble)


class Holder:
    """An entry of a state that is one tensor, or a structure of them."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> Any:
        return self.value

    def load_state_dict(self, state: Any) -> None:
        self.value = state


class Saver(Protocol):
    """Saves a tensor while training goes on: after ``begin`` it may be changed, after ``end`` all is saved."""

    def __init__(self, directory: Path) -> None: ...
    def begin(self, step: int, tensor: torch.Tensor) -> None: ...
    def end(self) -> None: ...
    def load(self, step: int) -> torch.Tensor: ...
    def close(self) -> None: ...


class HeldBoard(LocalBoard):
    """Holds up the writer, its directory made and none of its files written, until ``gate`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()

    def post(self, key: str, value: bytes) -> None:
        super().post(key, value)
        if key.endswith("/plan"):
            self.gate.wait(DEADLINE_S)


class OurSaver:
    """In the background, the writer held up until somebody waits for it: nothing gets by on speed."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.board = directory, HeldBoard()
        background = Background(self.board, rank=0, world_size=1)
        self.saver = Checkpointer(directory, keep=2, board=self.board, background=background)

    def begin(self, step: int, tensor: torch.Tensor) -> None:
        state = TrainState(x=Holder(tensor))
        state.step = step
        # A save waits for the one before it.
        self.board.gate.set()
        assert self.saver.settle(DEADLINE_S)
        self.board.gate.clear()
        saving = self.saver.begin_save(state)
        assert not saving.is_over and self.saver.refusal == ""

    def end(self) -> None:
        self.board.gate.set()
        assert self.saver.settle(DEADLINE_S)

    def close(self) -> None:
        self.board.gate.set()
        self.saver.close(DEADLINE_S)

    def load(self, step: int) -> torch.Tensor:
        holder = Holder(torch.empty(0))
        others = [name for name in self._names() if f"{step:08d}" not in name]
        restored = Checkpointer(self.directory, attempt=9, passed_over=others).restore(TrainState(x=holder))
        if restored is None or restored.step != step:
            raise WrongError("a snapshot is lost")
        return torch.as_tensor(holder.value)

    def _names(self) -> list[str]:
        return [path.name for path in self.directory.glob("step-*")]


class NaiveSaver:
    """Hands the tensor itself to a thread; the newest hand-over is the one that is written, and none is forgotten."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.stage: tuple[int, torch.Tensor] | None = None
        self.handed_over: list[Any] = []
        self.gate = threading.Event()
        self.threads: list[threading.Thread] = []

    def begin(self, step: int, tensor: torch.Tensor) -> None:
        self.stage = (step, tensor)
        self.handed_over.append(tensor.clone())
        self.threads.append(threading.Thread(target=self._write))
        self.threads[-1].start()

    def _write(self) -> None:
        self.gate.wait()
        assert self.stage is not None
        step, tensor = self.stage
        np.save(self.directory / f"{step}.npy", tensor.numpy())

    def close(self) -> None:
        self.end()

    def end(self) -> None:
        self.gate.set()
        for thread in self.threads:
            thread.join()
        self.threads.clear()
        self.gate.clear()

    def load(self, step: int) -> torch.Tensor:
        path = self.directory / f"{step}.npy"
        expect(path.exists(), "a snapshot is lost")
        return torch.from_numpy(np.load(path))


def changed_in_place_after_the_save(saver: Saver) -> None:
    """Report 20."""
    tensor = torch.zeros(1000)
    saver.begin(10, tensor)
    tensor.add_(1)
    saver.end()
    expect(bool((saver.load(10) == 0).all()), "new values are in the old snapshot")


def many_saves(saver: Saver) -> None:
    """Report 21."""
    tensor = torch.zeros(MEMORY_BYTES // 4)
    sizes = []
    for step in range(1, 21):
        saver.begin(step, tensor.fill_(step))
        saver.end()
        sizes.append(resident_bytes())
    expect(sizes[-1] - sizes[4] < 4 * MEMORY_BYTES, "memory grows with each save")


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def a_second_save_while_the_first_is_written(saver: Saver) -> None:
    """Report 30."""
    saver.begin(10, torch.full((1000,), 10.0))
    saver.begin(20, torch.full((1000,), 20.0))
    saver.end()
    for step in (10, 20):
        expect(bool((saver.load(step) == step).all()), "a snapshot has another one's values")


SAVER_CASES = [
    (changed_in_place_after_the_save, "new values are in the old snapshot"),
    (many_saves, "memory grows"),
    (a_second_save_while_the_first_is_written, "snapshot"),
]
SAVER_IDS = [case.__name__ for case, _ in SAVER_CASES]


@pytest.mark.parametrize("case", [case for case, _ in SAVER_CASES], ids=SAVER_IDS)
def test_our_saver_is_right(tmp_path: Path, case: Callable[[Saver], None]) -> None:
    with contextlib.closing(OurSaver(tmp_path)) as saver:
        case(saver)


@pytest.mark.parametrize(("case", "trouble"), SAVER_CASES, ids=SAVER_IDS)
def test_a_naive_saver_is_seen_to_go_wrong(tmp_path: Path, case: Callable[[Saver], None], trouble: str) -> None:
    with contextlib.closing(NaiveSaver(tmp_path)) as saver, pytest.raises(WrongError, match=trouble):
        case(saver)


# Report 23: every rank goes on with its own random numbers.


def draws_after_a_resume(directory: Path, save_and_load: Callable[[int, torch.Generator, Any], None]) -> None:
    generators = [torch.Generator().manual_seed(rank) for rank in range(WORLD)]
    gang = (directory, LocalBoard(), LocalBoard())
    copies = [torch.Generator() for _ in range(WORLD)]
    for copy, generator in zip(copies, generators, strict=True):
        copy.set_state(generator.get_state())
    expected = [float(torch.rand((), generator=copy)) for copy in copies]
    with ThreadPoolExecutor(WORLD) as pool:
        list(pool.map(lambda rank: save_and_load(rank, generators[rank], gang), range(WORLD)))
    found = [float(torch.rand((), generator=generator)) for generator in generators]
    expect(found == expected, "a rank goes on with another rank's random numbers")


def ours_for_each_rank(rank: int, generator: torch.Generator, gang: Any) -> None:
    directory, *boards = gang
    for attempt, board in enumerate(boards):
        saver = Checkpointer(directory, attempt=attempt, rank=rank, world_size=WORLD, board=board)
        state = TrainState(generator=generator)
        if attempt == 0:
            saver.save(state)
            generator.manual_seed(99)
        else:
            assert saver.restore(state) is not None


def one_key_for_all_ranks(rank: int, generator: torch.Generator, gang: Any) -> None:
    """The same key on every rank: one copy is written, and everybody reads it."""
    path = gang[0] / "rng.npy"
    if rank == 0:
        np.save(path.with_suffix(".new.npy"), generator.get_state().numpy())
        path.with_suffix(".new.npy").rename(path)
    while not path.exists():
        threading.Event().wait(0.01)
    generator.set_state(torch.from_numpy(np.load(path)))


def test_each_rank_goes_on_with_its_own_random_numbers(tmp_path: Path) -> None:
    draws_after_a_resume(tmp_path, ours_for_each_rank)


def test_one_key_for_all_ranks_is_seen_to_go_wrong(tmp_path: Path) -> None:
    with pytest.raises(WrongError):
        draws_after_a_resume(tmp_path, one_key_for_all_ranks)


# Report 26: random augmentation in the middle of an epoch. Report 28: two resumes in one epoch.


class Augmented(Dataset[Any]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, random.random() + float(torch.rand(()))


Life = Callable[[Path, int, int], list[Any]]
"""Resumes, or begins, in attempt n, trains so many steps, saves, and returns the batches it saw."""


def our_life(directory: Path, attempt: int, num_steps: int) -> list[Any]:
    sampler = ResumableSampler(40, batch_size=2, seed=3)
    state = TrainState(data=sampler)
    seed_all(1 if attempt == 0 else 50 + attempt)
    saver = Checkpointer(directory, attempt=attempt)
    saver.restore(state)
    batches = iter(resumable_loader(Augmented(), sampler))
    seen = []
    for _ in range(num_steps):
        seen.append([each.tolist() for each in next(batches)])
        state.advance()
    saver.save(state)
    return seen


def fetched_before_the_random_state_is_restored(directory: Path, attempt: int, num_steps: int) -> list[Any]:
    """Right in all but the order: the loader has its first batch already."""
    sampler = ResumableSampler(40, batch_size=2, seed=3)
    seed_all(1 if attempt == 0 else 50 + attempt)
    path = directory / "state.pt"
    saved = torch.load(path, weights_only=False) if path.exists() else None
    if saved:
        sampler.load_state_dict(saved["data"])
    batches = iter(resumable_loader(Augmented(), sampler))
    seen = [[each.tolist() for each in next(batches)]]
    if saved:
        random.setstate(saved["random"])
        torch.set_rng_state(saved["torch"])
    sampler.advance()
    for _ in range(num_steps - 1):
        seen.append([each.tolist() for each in next(batches)])
        sampler.advance()
    now = {"data": sampler.state_dict(), "random": random.getstate(), "torch": torch.get_rng_state()}
    torch.save(now, path)
    return seen


def only_the_last_stretch_is_skipped(directory: Path, attempt: int, num_steps: int) -> list[Any]:
    """The position counts from where this life began."""
    path = directory / "skip.npy"
    skip = int(np.load(path)) if path.exists() else 0
    order: Iterator[list[int]] = ResumableSampler(40, batch_size=2, seed=3).batches()
    for _ in range(skip):
        next(order)
    seen = [[next(order)] for _ in range(num_steps)]
    np.save(path, num_steps)
    return seen


def batches_are_those_of_one_life(directory: Path, life: Life) -> None:
    whole, run = directory / "whole", directory / "run"
    whole.mkdir()
    run.mkdir()
    expected = life(whole, 0, 9)
    found = [life(run, attempt, num_steps) for attempt, num_steps in enumerate((4, 3, 2))]
    indexes, wanted = [batch[0] for each in found for batch in each], [batch[0] for batch in expected]
    expect(indexes == wanted, "samples are skipped or seen twice")
    expect([batch for each in found for batch in each] == expected, "augmentation differs after a resume")


def test_two_resumes_in_an_epoch_with_augmentation(tmp_path: Path) -> None:
    batches_are_those_of_one_life(tmp_path, our_life)


@pytest.mark.parametrize(
    ("life", "trouble"),
    [
        (fetched_before_the_random_state_is_restored, "augmentation differs"),
        (only_the_last_stretch_is_skipped, "seen twice"),
    ],
)
def test_a_naive_order_or_count_is_seen_to_go_wrong(tmp_path: Path, life: Life, trouble: str) -> None:
    with pytest.raises(WrongError, match=trouble):
        batches_are_those_of_one_life(tmp_path, life)


# Report 27: the gradient scaler.


def new_scaler() -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)


def scaled_step(scaler: torch.amp.GradScaler) -> float:
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    scaler.scale(parameter.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    return scaler.get_scale()


def our_resume(directory: Path, scaler: torch.amp.GradScaler) -> torch.amp.GradScaler:
    Checkpointer(directory).save(TrainState(scaler=scaler))
    other = new_scaler()
    Checkpointer(directory, attempt=1).restore(TrainState(scaler=other))
    return other


def a_step_to_have_something_to_load_into(directory: Path, scaler: torch.amp.GradScaler) -> torch.amp.GradScaler:
    """Loads the state and then fills the optimizer by a step of its own, which the scaler counts."""
    other = new_scaler()
    other.load_state_dict(scaler.state_dict())
    scaled_step(other)
    return other


def the_scale_after_a_resume(
    directory: Path, resume: Callable[[Path, torch.amp.GradScaler], torch.amp.GradScaler]
) -> None:
    scaler = new_scaler()
    scaled_step(scaler)
    before = scaler.get_scale()
    resumed = resume(directory, scaler)
    expect(resumed.get_scale() == before, "the scale is doubled")
    expect([scaled_step(resumed) for _ in range(4)] == [scaled_step(scaler) for _ in range(4)], "it grows otherwise")


def test_the_scale_is_exact_after_a_resume(tmp_path: Path) -> None:
    the_scale_after_a_resume(tmp_path, our_resume)


def test_a_step_on_loading_is_seen_to_go_wrong(tmp_path: Path) -> None:
    with pytest.raises(WrongError, match="doubled"):
        the_scale_after_a_resume(tmp_path, a_step_to_have_something_to_load_into)
