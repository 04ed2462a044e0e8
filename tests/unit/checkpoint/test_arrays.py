"""States of NumPy arrays in the store, without torch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from resilient_launch.checkpoint.arrays import Array, ArrayCheckpointer
from resilient_launch.checkpoint.digest import state_digest
from resilient_launch.checkpoint.store import FencedError, published
from resilient_launch.core.ids import CheckpointId


class Counting:
    """Arrays of several kinds that every step changes."""

    def __init__(self) -> None:
        self.step = 0
        self.table = np.zeros((3, 2))
        self.extra: dict[str, Array] = {
            "a/scalar": np.array(7, dtype=np.int64),
            "a/none": np.zeros((0, 4), dtype=np.float32),
            "a/turned": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        }
        self.words: dict[str, Any] = {"big": 2**100, "list": [1.5, None]}

    def advance(self) -> int:
        self.table = self.table + 1
        self.step += 1
        return self.step

    def arrays(self) -> dict[str, Array]:
        return {"table": self.table, **self.extra}

    def values(self) -> dict[str, Any]:
        return self.words

    def put(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        self.table = arrays["table"]
        self.extra = {name: array for name, array in arrays.items() if name != "table"}
        self.words = dict(values)

    def inexactness(self, world_size: int) -> tuple[str, ...]:
        return ()


def _saved(directory: Path, num_steps: int, **facts: Any) -> ArrayCheckpointer:
    state, store = Counting(), ArrayCheckpointer(directory, **facts)
    for _ in range(num_steps):
        state.advance()
        store.save(state)
    return store


def test_what_is_restored_is_what_was_saved(tmp_path: Path) -> None:
    _saved(tmp_path, 2, shard_of=lambda name: f"{name.replace('/', '-')}.bin")
    state, fresh = Counting(), Counting()
    state.table, state.extra, state.words = np.ones(1), {}, {}
    manifest = ArrayCheckpointer(tmp_path, attempt=1).restore(state)
    assert manifest is not None
    assert sorted(entry.name for entry in manifest.files) == [
        "INDEX.json",
        "a-none.bin",
        "a-scalar.bin",
        "a-turned.bin",
        "table.bin",
    ]
    assert (state.step, state.words) == (2, fresh.words)
    np.testing.assert_array_equal(state.table, np.full((3, 2), 2.0))
    for name, array in fresh.extra.items():
        np.testing.assert_array_equal(state.extra[name], array)
        assert state.extra[name].dtype == array.dtype
    state.table += 1


def test_nothing_to_restore_leaves_the_state_alone(tmp_path: Path) -> None:
    state = Counting()
    assert ArrayCheckpointer(tmp_path).restore(state) is None
    assert state.step == 0


def test_the_digest_is_of_the_state_and_not_of_its_files(tmp_path: Path) -> None:
    _saved(tmp_path / "one", 2)
    _saved(tmp_path / "many", 2, shard_of=lambda name: f"{name.replace('/', '-')}.bin", attempt=3)
    _saved(tmp_path / "other", 3)
    one, many, other = (
        state_digest(tmp_path / name / str(published(tmp_path / name)[0])) for name in ("one", "many", "other")
    )
    assert one == many != other


def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_it_used(tmp_path: Path) -> None:
    _saved(tmp_path, 3)
    newest = str(published(tmp_path)[0])
    shard = tmp_path / newest / "shard-00000.bin"
    shard.write_bytes(bytes([shard.read_bytes()[0] ^ 1]) + shard.read_bytes()[1:])
    state = Counting()
    manifest = ArrayCheckpointer(tmp_path, attempt=1).restore(state)
    assert manifest is not None and (manifest.id.step, state.step) == (2, 2)
    assert (tmp_path / f"{newest}.corrupt").is_dir()


def test_retention_and_lineage_are_those_of_every_checkpoint(tmp_path: Path) -> None:
    old = _saved(tmp_path, 4, keep=2)
    assert [ident.step for ident in published(tmp_path)] == [4, 3]
    state = Counting()
    newer = ArrayCheckpointer(tmp_path, attempt=1, allowed=[str(CheckpointId(attempt=0, restart=0, step=3))])
    newer.restore(state)
    assert state.step == 3
    state.advance()
    newer.save(state)
    with pytest.raises(FencedError):
        old.restore(state)


def test_torch_is_not_needed() -> None:
    code = (
        "import sys, resilient_launch.examples.article.train, resilient_launch.job.run\n"
        "print('torch' in sys.modules, 'torch.distributed' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False False\n"
