"""One entry of a checkpoint, such as the model, as a single file for inference: safetensors, or torch's own format."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from resilient_launch.checkpoint.index import INDEX_NAME, Index
from resilient_launch.checkpoint.store import open_checkpoint
from resilient_launch.checkpoint.whole import read_tensor
from resilient_launch.core.durable import fsync_dir
from resilient_launch.core.errors import CheckpointError, UsageError

Form = Literal["safetensors", "torch"]


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was written. ``skipped`` are values of the entry that are no tensors and have no place in such a file."""

    path: Path
    num_tensors: int
    num_bytes: int
    skipped: tuple[str, ...]


def export(
    checkpoint: Path, target: Path, *, form: Form = "safetensors", entry: str = "model", is_forced: bool = False
) -> Exported:
    """Write the full, unsharded tensors of ``entry`` into ``target``, under the names of the model's own state_dict.

    Every byte is verified as it is read, and ``target`` appears whole or not at all. Raises UsageError for an entry
    that the checkpoint does not have and for a ``target`` that exists (unless ``is_forced``), CheckpointError for
    damage, and where the safetensors package is missing.
    """
    if os.path.lexists(target) and not is_forced:
        raise UsageError(f"{target}", why="exists already", hint="another name, or --force")
    with open_checkpoint(checkpoint) as opened:
        index = Index.parse(opened.read(INDEX_NAME))
        if entry not in index.trees:
            raise UsageError(
                f"entry {entry!r}",
                where=str(checkpoint),
                why="the checkpoint has no such entry for all ranks",
                hint=f"one of: {', '.join(sorted(index.trees))}",
            )
        import torch

        from resilient_launch.checkpoint.tree import dtype_of

        tensors, skipped = {}, []
        for name, value in _items(index.trees[entry]):
            if not isinstance(value, dict) or "$tensor" not in value:
                skipped.append(name)
                continue
            stored = index.tensors[value["$tensor"]]
            data = read_tensor(opened, stored)
            flat = torch.frombuffer(data, dtype=dtype_of(stored.dtype)) if data else torch.empty(0)
            tensors[name] = flat.to(dtype_of(stored.dtype)).reshape(stored.shape)
        manifest = opened.manifest
    if not tensors:
        raise UsageError(f"entry {entry!r}", where=str(checkpoint), why="holds no tensors by name", hint="model")
    facts = {"format": "pt", "run_id": manifest.facts.run_id, "checkpoint": manifest.name, "step": manifest.id.step}
    with _appearing(target) as temporary:
        _write(temporary, form, tensors, {key: str(value) for key, value in facts.items()})
    return Exported(
        path=target, num_tensors=len(tensors), num_bytes=target.stat().st_size, skipped=tuple(sorted(skipped))
    )


def _items(tree: Any) -> list[tuple[str, Any]]:
    """The named values of an encoded mapping."""
    if isinstance(tree, dict) and "$ordered" in tree:
        return [(str(name), value) for name, value in tree["$ordered"]]
    return list(tree.items()) if isinstance(tree, dict) else []


def _write(path: Path, form: Form, tensors: dict[str, Any], facts: dict[str, str]) -> None:
    if form == "torch":
        import torch

        # Into an open file, or torch would write the temporary name into it.
        with path.open("xb") as file:
            torch.save(tensors, file)
        return
    try:
        from safetensors import SafetensorError
        from safetensors.torch import save_file
    except ImportError as error:
        raise CheckpointError(
            "safetensors can't be written", why="the package is not installed", hint="pip install safetensors"
        ) from error
    try:
        save_file(tensors, path, metadata=facts)
    except (SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(
            "the tensors don't go into a safetensors file", why=str(error), hint="--format torch"
        ) from error


@contextlib.contextmanager
def _appearing(target: Path) -> Iterator[Path]:
    """A name to write under; on success its content is durable under ``target``."""
    temporary = target.with_name(f".tmp-{target.name}-{secrets.token_hex(6)}")
    try:
        yield temporary
        fd = os.open(temporary, os.O_RDWR)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        temporary.replace(target)
        fsync_dir(target.parent)
    finally:
        temporary.unlink(missing_ok=True)
