"""Checkpoints of NumPy arrays from one process, without torch: the same store, format, digest and fencing."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from resilient_launch.checkpoint.index import INDEX_NAME, Chunk, Index, StoredTensor
from resilient_launch.checkpoint.outcomes import OnEnd, Origin, SaveReport, Saving
from resilient_launch.checkpoint.store import (
    Digesting,
    Facts,
    FileEntry,
    Lineage,
    LocalBoard,
    Manifest,
    OpenCheckpoint,
    Published,
    Round,
    Standing,
    described,
    fence,
    load,
    prune,
    publish,
    sweep,
)
from resilient_launch.core.errors import CheckpointError
from resilient_launch.core.ids import CheckpointId
from resilient_launch.policy.retention import Policy, newest

Array = np.ndarray[Any, np.dtype[Any]]
_LOG = logging.getLogger(__name__)


class ArrayState(Protocol):
    """A training state of NumPy arrays and JSON values. ``step`` is the number of completed steps."""

    step: int

    def advance(self) -> int:
        """Count one completed step; returns the new count."""

    def arrays(self) -> Mapping[str, Array]:
        """Every array by its name, parts separated by slashes."""

    def values(self) -> Mapping[str, Any]:
        """All the rest, as JSON."""

    def put(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        """Take on a state that ``arrays`` and ``values`` gave."""

    def inexactness(self, world_size: int) -> tuple[str, ...]:
        """What will keep a resumed run from being bit-identical; mostly nothing."""


class ArrayCheckpointer:
    """What Checkpointer is to a TrainState, for an ArrayState in one process.

    ``shard_of`` says which file an array goes into. The other arguments are Checkpointer's.
    """

    def __init__(
        self,
        directory: Path,
        *,
        run_id: str = "",
        attempt: int = 0,
        restart: int = 0,
        code_version: str = "",
        keep: int | Policy = 3,
        allowed: Collection[str] | None = None,
        passed_over: Collection[str] = (),
        metrics: Mapping[str, float] | None = None,
        shard_of: Callable[[str], str] = lambda _: "shard-00000.bin",
        without_rename: bool = False,
        digesting: Digesting | None = None,
    ) -> None:
        self._directory, self._attempt, self._restart = directory, attempt, restart
        self._lineage = Lineage(
            run_id=run_id,
            attempt=attempt,
            allowed=None if allowed is None else frozenset(allowed),
            passed_over=passed_over,
        )
        self._code_version, self._shard_of = code_version, shard_of
        self._without_rename, self._digesting = without_rename, digesting or Digesting()
        self._policy = newest(keep) if isinstance(keep, int) else keep
        self._metrics = metrics if metrics is not None else {}
        self._verified: set[CheckpointId] = set()
        self._resumed_from: CheckpointId | None = None
        self._num_rounds = 0
        directory.mkdir(parents=True, exist_ok=True)
        fence(directory, attempt, restart)
        sweep(directory)

    def save(self, state: ArrayState, *, reason: str = "", timeout_s: float | None = None) -> Published:
        """Save ``state`` as the checkpoint of its step; returns when it is durable.

        Raises CheckpointError and publishes nothing when that fails, FencedError when a newer attempt has taken over.
        ``timeout_s`` is there for Checkpointer's sake: one process waits for nobody.
        """
        arrays = {name: np.ascontiguousarray(array) for name, array in state.arrays().items()}
        ident = CheckpointId(attempt=self._attempt, restart=self._restart, step=state.step)
        shards: dict[str, list[str]] = {}
        for name in arrays:
            shards.setdefault(self._shard_of(name), []).append(name)
        tensors = _lay_out(shards, arrays)
        trees = {
            "train": {"step": state.step},
            "arrays": {name: {"$tensor": name} for name in arrays},
            "values": dict(state.values()),
        }

        def write(directory: Path) -> list[FileEntry]:
            return [_write_shard(self._digesting, directory, shard, names, arrays) for shard, names in shards.items()]

        facts = Facts(
            run_id=self._lineage.run_id,
            parent=str(self._resumed_from) if self._resumed_from else None,
            code_version=self._code_version,
            versions={"numpy": np.__version__},
            reason=reason,
            metadata=described(self._metrics),
        )
        done = publish(
            self._directory,
            ident,
            self._round("save"),
            merge=lambda _: {INDEX_NAME: Index(tensors=tensors, trees=trees, ranks={}).render()},
            write=write,
            facts=facts,
            digesting=self._digesting,
            without_rename=self._without_rename,
        )
        self._verified.add(ident)
        self._prune()
        return done

    def begin_save(
        self,
        state: ArrayState,
        *,
        reason: str = "",
        timeout_s: float | None = None,
        on_end: OnEnd | None = None,
        in_foreground: bool = True,
    ) -> Saving:
        """``save``, which is over on return, failed or not; ``on_end`` is told which."""
        started = time.monotonic()
        saving = Saving(CheckpointId(attempt=self._attempt, restart=self._restart, step=state.step), 0.0)
        outcome: SaveReport | CheckpointError
        try:
            done = self.save(state, reason=reason, timeout_s=timeout_s)
        except CheckpointError as error:
            outcome = error
        else:
            saving.staged_s = time.monotonic() - started
            outcome = SaveReport(
                id=done.id, num_bytes=done.num_bytes, staged_s=saving.staged_s, durable_s=saving.staged_s
            )
        if on_end is not None:
            on_end(saving, outcome)
        saving.settle(outcome)
        return saving

    @property
    def in_flight(self) -> None:
        """No save is ever under way when ``begin_save`` has returned."""

    @property
    def refusal(self) -> str:
        """Nothing keeps saves out of the background: they don't belong there."""
        return ""

    @property
    def origin(self) -> Origin:
        """Shared storage: one process has no worker group to start again, and keeps nothing in memory for one."""
        return Origin()

    def keep(self, state: ArrayState) -> bool:
        """Nothing is kept in memory."""
        return False

    def warm_up(self, state: ArrayState) -> None:
        """Nothing to make ready."""

    def settle(self, timeout_s: float | None = None) -> bool:
        """Whether no save is in flight."""
        return True

    def close(self, timeout_s: float | None = None) -> None:
        """Nothing to let go of."""

    def agree(self, topic: str, value: Any, timeout_s: float) -> Any:
        """The one process's word."""
        return value

    def restore(self, state: ArrayState) -> Manifest | None:
        """Load the newest checkpoint that verifies into ``state``; None, and ``state`` untouched, where there is none.

        A damaged one is quarantined and the next older one tried.
        """

        def read(opened: OpenCheckpoint) -> tuple[dict[str, Array], Index]:
            index = Index.parse(opened.read(INDEX_NAME))
            return {name: _read_array(opened, tensor) for name, tensor in index.tensors.items()}, index

        choice = load(self._directory, self._lineage, self._round("load"), read)
        for verdict in choice.verdicts:
            if verdict.standing is not Standing.CHOSEN:
                _LOG.warning("checkpoint %s is %s: %s", verdict.name, verdict.standing, verdict.why)
        if choice.manifest is None or choice.value is None:
            return None
        arrays, index = choice.value
        state.put(arrays, index.trees["values"])
        state.step = int(index.trees["train"]["step"])
        self._resumed_from = choice.manifest.id
        self._verified.add(choice.manifest.id)
        return choice.manifest

    def _prune(self) -> None:
        try:
            removed = prune(self._directory, self._policy, verified=self._verified, resumed_from=self._resumed_from)
        except (OSError, CheckpointError) as error:
            # The new checkpoint is safe; failing to remove an old one is no reason to stop.
            _LOG.warning("can't remove old checkpoints: %s", error)
        else:
            self._verified.difference_update(removed)

    def _round(self, what: str) -> Round:
        self._num_rounds += 1
        return Round(LocalBoard(), f"{what} {self._num_rounds}", rank=0, world_size=1, deadline_s=0.0)


def _lay_out(shards: Mapping[str, list[str]], arrays: Mapping[str, Array]) -> dict[str, StoredTensor]:
    """Where each array will lie: one after the other in its file."""
    tensors: dict[str, StoredTensor] = {}
    for shard, names in shards.items():
        position = 0
        for name in names:
            array = arrays[name]
            chunk = Chunk(
                offsets=(0,) * array.ndim, sizes=array.shape, file=shard, offset=position, num_bytes=array.nbytes
            )
            tensors[name] = StoredTensor(dtype=array.dtype.name, shape=array.shape, chunks=(chunk,))
            position += array.nbytes
    return tensors


def _write_shard(
    digesting: Digesting, directory: Path, shard: str, names: list[str], arrays: Mapping[str, Array]
) -> FileEntry:
    with digesting.writer(directory, shard) as file:
        for name in names:
            file.write(arrays[name].reshape(-1).view(np.uint8).data)
        return file.finish()


def _read_array(opened: OpenCheckpoint, tensor: StoredTensor) -> Array:
    (chunk,) = tensor.chunks
    data = opened.reader(chunk.file).read(chunk.offset, chunk.num_bytes)
    # A copy, because training writes into what it restored.
    return np.frombuffer(data, dtype=np.dtype(tensor.dtype)).reshape(tensor.shape).copy()
