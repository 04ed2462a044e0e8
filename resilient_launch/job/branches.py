"""New lineages: a run that was told to go on from an older checkpoint leaves all that is no ancestor of it behind."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from resilient_launch.checkpoint.store import open_checkpoint, published
from resilient_launch.checkpoint.store.prune import kept
from resilient_launch.core import durable
from resilient_launch.core.errors import CheckpointError
from resilient_launch.core.ids import CheckpointId
from resilient_launch.core.paths import RunPaths
from resilient_launch.policy.retention import Kept, lineage


@dataclass(frozen=True, kw_only=True)
class Branch:
    """One decision to go on from ``checkpoint``.

    ``left_behind`` are all checkpoints that the loader passes over from then on; ``next_attempt`` is the first attempt
    of the new lineage, ``made_at`` seconds since the epoch.
    """

    checkpoint: str
    step: int
    left_behind: tuple[str, ...]
    next_attempt: int
    made_at: float

    @property
    def why(self) -> str:
        return f"left behind: training was told to go on from {self.checkpoint}"


def read_branches(paths: RunPaths) -> list[Branch]:
    """The run's branches, oldest first; mostly none. The newest alone says what is left behind."""
    try:
        record = json.loads(paths.lineage.read_bytes())
        return [Branch(**{**each, "left_behind": tuple(each["left_behind"])}) for each in record["branches"]]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            "the run's branches can't be read",
            where=str(paths.lineage),
            why=str(error),
            hint="restore the file, or remove it to let the newest checkpoint count",
        ) from error


def left_behind(paths: RunPaths) -> dict[str, str]:
    """Checkpoints that a resume must not use although they are sound, each with the reason."""
    branches = read_branches(paths)
    return dict.fromkeys(branches[-1].left_behind, branches[-1].why) if branches else {}


@contextlib.contextmanager
def branched(paths: RunPaths, origin: CheckpointId, *, next_attempt: int) -> Iterator[Branch]:
    """Let the run go on from ``origin``; what was decided before holds again where the block raises.

    Everything that is no ancestor of it is left behind, and nothing is removed.
    """
    items = [_look(paths, ident) for ident in published(paths.checkpoints)]
    own = {item.id for item in lineage([item for item in items if item.id <= origin])}
    branch = Branch(
        checkpoint=str(origin),
        step=origin.step,
        left_behind=tuple(sorted(str(item.id) for item in items if item.id not in own)),
        next_attempt=next_attempt,
        made_at=time.time(),
    )
    before = read_branches(paths)
    _write(paths, [*before, branch])
    try:
        yield branch
    except BaseException:
        _write(paths, before)
        raise


def _write(paths: RunPaths, branches: list[Branch]) -> None:
    record = {"schema": 1, "branches": [asdict(each) for each in branches]}
    durable.replace_file(paths.lineage, json.dumps(record, indent=1).encode())


def _look(paths: RunPaths, ident: CheckpointId) -> Kept:
    try:
        with open_checkpoint(paths.checkpoints / str(ident)) as opened:
            return kept(opened.manifest, is_verified=False)
    except CheckpointError:
        return Kept(id=ident, is_verified=False)
