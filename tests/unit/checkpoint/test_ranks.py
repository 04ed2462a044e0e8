"""Two real ranks under gloo: exact resumption with DDP and FSDP2, damage, drift, and a rank that dies mid-save."""

import random
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranks_training import build, checkpointer, path_of, train_and_save
from real_ranks import Rank, Ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from training import Training

from resilient_launch.checkpoint import store
from resilient_launch.checkpoint.checkpointer import Checkpointer
from resilient_launch.checkpoint.digest import state_digest, state_lines
from resilient_launch.checkpoint.index import INDEX_NAME, Index
from resilient_launch.checkpoint.rng import seed_all
from resilient_launch.checkpoint.train_state import TrainState
from resilient_launch.core.errors import CheckpointError

CUT, END = 4, 9


def resume_and_save(me: Rank, directory: Path, until: int) -> tuple[int, list[tuple[str, str]]]:
    training, saver = build(me, seed=2), checkpointer(me, directory, attempt=1)
    restored = saver.restore(training.state)
    assert restored is not None
    training.train(until)
    saver.save(training.state)
    return restored.step, [(verdict.name, verdict.standing.value) for verdict in restored.verdicts]


def test_two_ranks_resume_exactly(two_ranks: Ranks, tmp_path: Path) -> None:
    two_ranks.values(train_and_save, tmp_path / "whole", END)
    two_ranks.values(train_and_save, tmp_path / "cut", CUT)
    assert (
        two_ranks.values(resume_and_save, tmp_path / "cut", END)
        == [(CUT, [(f"step-{CUT:08d}.a0000.r0", "chosen")])] * 2
    )
    whole, cut = path_of(tmp_path / "whole", END), path_of(tmp_path / "cut", END, attempt=1)
    assert state_digest(whole) == state_digest(cut)
    # Both ranks wrote, and each kept random states of its own.
    assert {path.name for path in whole.iterdir()} >= {"shard-r00000.bin", "shard-r00001.bin"}
    index = Index.parse(store.read_verified(whole, INDEX_NAME))
    shared = {chunk.file for key, each in index.tensors.items() if key[:4] != "rank" for chunk in each.chunks}
    assert shared == {"shard-r00000.bin", "shard-r00001.bin"}
    with store.open_checkpoint(whole) as opened:
        assert random_bytes(opened, index, 0) != random_bytes(opened, index, 1)


def random_bytes(opened: store.OpenCheckpoint, index: Index, rank: int) -> bytes:
    (chunk,) = index.tensors[f"rank{rank}/rng/torch"].chunks
    return opened.reader(chunk.file).read(chunk.offset, chunk.num_bytes)


def test_a_damaged_shard_sends_both_ranks_to_the_older_one(two_ranks: Ranks, tmp_path: Path) -> None:
    two_ranks.values(train_and_save, tmp_path, CUT, END)
    shard = path_of(tmp_path, END) / "shard-r00001.bin"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    expected = (CUT, [(f"step-{END:08d}.a0000.r0", "damaged"), (f"step-{CUT:08d}.a0000.r0", "chosen")])
    assert two_ranks.values(resume_and_save, tmp_path, CUT + 1) == [expected] * 2
    assert (tmp_path / f"step-{END:08d}.a0000.r0.corrupt").is_dir()


class Holder:
    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> Any:
        return self.value

    def load_state_dict(self, state: Any) -> None:
        self.value = state


def save_position(me: Rank, directory: Path, per_rank: bool) -> int:
    position = Holder(10 + me.rank)
    entries: dict[str, Any] = {"position": position, "per_rank": ["position"] if per_rank else []}
    checkpointer(me, directory).save(TrainState(**entries))
    position.value = 0
    checkpointer(me, directory, attempt=1).restore(TrainState(**entries))
    return position.value


def test_what_differs_between_ranks_is_saved_for_each_or_refused(two_ranks: Ranks, tmp_path: Path) -> None:
    assert two_ranks.values(save_position, tmp_path / "own", True) == [10, 11]
    for error in two_ranks.run(save_position, tmp_path / "shared", False):
        assert isinstance(error, CheckpointError)
        assert "ranks 0 and 1 have different position" in str(error) and "per_rank" in error.hint
    assert store.published(tmp_path / "shared") == []


def save_unequal_models(me: Rank, directory: Path) -> None:
    checkpointer(me, directory).save(TrainState(model=torch.nn.Linear(2, 2 + me.rank)))


def test_ranks_with_other_tensors_are_refused(two_ranks: Ranks, tmp_path: Path) -> None:
    for error in two_ranks.run(save_unequal_models, tmp_path):
        assert isinstance(error, CheckpointError) and "tensor names, dtypes or shapes" in str(error)


def buffers_of_their_own(me: Rank, directory: Path) -> list[float]:
    """Running statistics that no forward pass makes alike: without DDP, each rank's belong to it."""
    seed_all(1)
    model = torch.nn.BatchNorm1d(2)
    model(torch.full((3, 2), float(me.rank + 1)))
    checkpointer(me, directory).save(TrainState(model=model))
    expected = model.running_mean.tolist()
    model.running_mean.zero_()
    checkpointer(me, directory, attempt=1).restore(TrainState(model=model))
    assert model.running_mean.tolist() == expected
    return expected


def test_unshared_buffers_are_kept_for_each_rank(two_ranks: Ranks, tmp_path: Path) -> None:
    first, second = two_ranks.values(buffers_of_their_own, tmp_path)
    assert first != second


def fsdp(me: Rank, seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer, TrainState]:
    seed_all(seed)
    # Sizes that two ranks can't share evenly.
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3, bias=False))
    mesh = init_device_mesh("cpu", (me.world_size,))
    for module in (model[0], model[2], model):
        fully_shard(module, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return model, optimizer, TrainState(model=model, optimizer=optimizer)


def fsdp_train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, state: TrainState, until: int) -> None:
    while state.step < until:
        batch = torch.ones(4, 5) * (state.step + 1)
        model(batch).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        state.advance()


def fsdp_resume(me: Rank, directory: Path) -> dict[str, Any]:
    whole = fsdp(me, 1)
    fsdp_train(*whole, until=END)
    checkpointer(me, directory / "whole").save(whole[2])
    first = fsdp(me, 1)
    fsdp_train(*first, until=CUT)
    checkpointer(me, directory / "cut").save(first[2])
    second = fsdp(me, 2)
    saver = checkpointer(me, directory / "cut", attempt=1)
    assert saver.restore(second[2]) is not None
    fsdp_train(*second, until=END)
    saver.save(second[2])
    full = {name: value.full_tensor() for name, value in whole[0].state_dict().items() if isinstance(value, DTensor)}
    return {name: value.tolist() for name, value in full.items()}


def test_fsdp2_resumes_exactly_and_reshards(two_ranks: Ranks, tmp_path: Path) -> None:
    full, _ = two_ranks.values(fsdp_resume, tmp_path)
    whole, cut = path_of(tmp_path / "whole", END), path_of(tmp_path / "cut", END, attempt=1)
    index = Index.parse(store.read_verified(whole, INDEX_NAME))
    assert len(index.tensors["model/0.weight"].chunks) == 2
    assert len(index.tensors["optimizer/state/0.weight/exp_avg"].chunks) == 2
    assert comparable(whole) == comparable(cut)
    # One rank takes the sharded state into plain tensors.
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3, bias=False))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    state = TrainState(model=model, optimizer=optimizer)
    alone = Checkpointer(tmp_path / "whole", attempt=1)
    with pytest.raises(CheckpointError, match=r"saved by 2 ranks, sharded \(2,\); now there are 1, replicated"):
        alone.restore(state)
    restored = Checkpointer(tmp_path / "whole", attempt=2, on_topology_change="warn").restore(state)
    assert restored is not None and "saved by 2 ranks" in restored.warnings[0]
    assert {name: value.tolist() for name, value in model.state_dict().items()} == full
    report = Checkpointer(tmp_path / "plain").save(state)
    # The same full state has the same digest, sharded or not.
    assert comparable(tmp_path / "plain" / str(report.id)) == comparable(whole)

    # And two ranks take the plain one into shards of their own.
    for each in two_ranks.values(fsdp_take, tmp_path / "plain"):
        assert each == full


def fsdp_take(me: Rank, directory: Path) -> dict[str, Any]:
    model, _, state = fsdp(me, 3)
    assert checkpointer(me, directory, attempt=1, on_topology_change="warn").restore(state) is not None
    return {name: value.full_tensor().tolist() for name, value in model.state_dict().items()}


WHOLE = torch.arange(5 * 7 * 3, dtype=torch.float32).reshape(5, 7, 3)


def column_sharded(me: Rank, value: torch.Tensor) -> tuple[Holder, TrainState]:
    mesh = init_device_mesh("cpu", (me.world_size,))
    holder = Holder({"middle": distribute_tensor(value, mesh, [Shard(1)]), "copy": distribute_tensor(value, mesh)})
    return holder, TrainState(x=holder)


def save_columns(me: Rank, directory: Path) -> None:
    _, state = column_sharded(me, WHOLE)
    checkpointer(me, directory).save(state)


def load_columns(me: Rank, directory: Path) -> bool:
    holder, state = column_sharded(me, torch.zeros_like(WHOLE))
    assert checkpointer(me, directory, attempt=1, on_topology_change="warn").restore(state) is not None
    is_sharded = holder.value["middle"].placements == (Shard(1),) and holder.value["middle"].to_local().shape[1] < 7
    return is_sharded and all(torch.equal(value.full_tensor(), WHOLE) for value in holder.value.values())


def test_shards_along_an_inner_dimension(two_ranks: Ranks, tmp_path: Path) -> None:
    two_ranks.values(save_columns, tmp_path / "columns")
    holder = Holder(None)
    alone = TrainState(x=holder)
    assert Checkpointer(tmp_path / "columns", attempt=1, on_topology_change="warn").restore(alone) is not None
    assert all(torch.equal(value, WHOLE) for value in holder.value.values())
    report = Checkpointer(tmp_path / "plain").save(alone)
    assert comparable(tmp_path / "plain" / str(report.id)) == comparable(path_of(tmp_path / "columns", 0))
    assert two_ranks.values(load_columns, tmp_path / "plain") == [True, True]


def comparable(path: Path) -> list[str]:
    """Lines of the digest that do not depend on the number of ranks."""
    return [line for line in state_lines(path) if not line.startswith(("rank ", "tensor rank"))]


def restore_grown(me: Rank, directory: Path, attempt: int) -> tuple[list[float], list[str]]:
    training = build(me, seed=3)
    restored = checkpointer(me, directory, attempt=attempt, on_topology_change="warn").restore(training.state)
    assert restored is not None
    return [random.random(), float(np.random.rand()), float(torch.rand(()))], list(restored.warnings)


def test_a_rank_that_the_checkpoint_does_not_know_gets_a_random_state_of_its_own(
    two_ranks: Ranks, tmp_path: Path
) -> None:
    alone = Training()
    alone.train(3)
    Checkpointer(tmp_path).save(alone.state)
    expected = [random.random(), float(np.random.rand()), float(torch.rand(()))]
    results = two_ranks.values(restore_grown, tmp_path, 1)
    (first, first_warnings), (second, second_warnings) = results
    assert first == expected and not set(first) & set(second)
    assert len(first_warnings) == 1 and "derived from rank 0's" in second_warnings[1]
    assert two_ranks.values(restore_grown, tmp_path, 2) == results


@pytest.fixture
def mortal_ranks() -> Iterator[Ranks]:
    ranks = Ranks(2)
    yield ranks
    ranks.close()


def save_with_a_limit(me: Rank, directory: Path, victim: int, is_fatal: bool) -> str:
    """One rank may write no file longer than a page; going beyond is an error, or death on the spot."""
    saver = checkpointer(me, directory)
    state = TrainState(weights=Holder(torch.ones(1 << 20)), more=Holder(torch.zeros(1 << 20)))
    saver.save(state)
    state.advance()
    previous = resource.getrlimit(resource.RLIMIT_FSIZE)
    if me.rank == victim:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL if is_fatal else signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, previous[1]))
    with pytest.raises(CheckpointError) as caught:
        saver.save(state, timeout_s=1.0 if is_fatal else 60.0)
    resource.setrlimit(resource.RLIMIT_FSIZE, previous)
    if not is_fatal:
        saver.save(state)
    return str(caught.value)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_cannot_write_fails_all_at_once(two_ranks: Ranks, tmp_path: Path, victim: int) -> None:
    texts = two_ranks.values(save_with_a_limit, tmp_path, victim, False)
    for text in texts:
        assert f"rank {victim}: " in text and f"shard-r{victim:05d}.bin" in text and "File too large" in text
    assert [ident.step for ident in store.published(tmp_path)] == [1, 0]
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_dies_writing_costs_the_deadline_and_is_named(
    mortal_ranks: Ranks, tmp_path: Path, victim: int
) -> None:
    results = mortal_ranks.run(save_with_a_limit, tmp_path, victim, True)
    assert results[victim] is None
    assert f"rank {victim} did not answer" in results[1 - victim]
    assert [ident.step for ident in store.published(tmp_path)] == [0]
    # Where rank 0 lives it has tidied up; where it died the next start does.
    assert len(list(tmp_path.glob(".tmp-*"))) == (victim == 0)
    store.fence(tmp_path, attempt=1)
    store.sweep(tmp_path)
    assert not list(tmp_path.glob(".*"))
