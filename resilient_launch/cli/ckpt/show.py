"""``rlaunch ckpt show``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from resilient_launch.cli.ckpt.common import SCHEMA, AsJson, Which, age, look, pick
from resilient_launch.cli.common import Root, RunName, table

if TYPE_CHECKING:
    from resilient_launch.checkpoint.index import Index
    from resilient_launch.checkpoint.store import Found, Manifest


def show(
    run: RunName,
    checkpoint: Which = None,
    root: Root = None,
    tensors: Annotated[bool, typer.Option("--tensors", help="Every tensor too: dtype, shape, where it lies.")] = False,
    as_json: AsJson = False,
) -> None:
    """Tell all about one checkpoint: when, by whom and why it was saved, its lineage, its files, what is in it."""
    import json

    from resilient_launch.checkpoint.index import INDEX_NAME, Index
    from resilient_launch.checkpoint.store import open_checkpoint
    from resilient_launch.core.errors import CheckpointError

    looked = look(run, root)
    found = pick(looked, checkpoint)
    with open_checkpoint(found.path) as opened:
        manifest = opened.manifest
        try:
            index = Index.parse(opened.read(INDEX_NAME))
        except CheckpointError as error:
            typer.echo(f"note: {error}", err=True)
            index = None
    lineage = _lineage(manifest, looked.found)
    if as_json:
        typer.echo(json.dumps(_as_json(run, found, manifest, index, lineage, with_tensors=tensors)))
        return
    typer.echo("\n".join(_lines(found, manifest, index, lineage)))
    if tensors and index is not None:
        rows = [
            (key, each.dtype, "x".join(map(str, each.shape)) or "scalar", len(each.chunks), each.chunks[0].file)
            for key, each in sorted(index.tensors.items())
            if each.chunks
        ]
        typer.echo(table(("tensor", "dtype", "shape", "chunks", "first in"), rows))


def _lineage(manifest: Manifest, found: list[Found]) -> list[dict[str, Any]]:
    """The checkpoint's ancestors, newest first, as far as they are still there to tell theirs."""
    known = {each.name: each for each in found}
    chain: list[dict[str, Any]] = []
    parent = manifest.facts.parent
    while parent is not None and all(parent != each["name"] for each in chain):
        there = known.get(parent)
        chain.append({"name": parent, "is_here": there is not None})
        parent = there.manifest.facts.parent if there is not None and there.manifest is not None else None
    return chain


def _entries(index: Index) -> dict[str, dict[str, int]]:
    """Tensors, elements and bytes of each entry of the state; each rank's own together."""
    entries: dict[str, dict[str, int]] = {}
    for key, tensor in index.tensors.items():
        parts = key.split("/")
        name = f"{parts[1]} of each rank" if parts[0].removeprefix("rank").isdigit() and len(parts) > 1 else parts[0]
        entry = entries.setdefault(name, {"num_tensors": 0, "num_elements": 0, "num_bytes": 0})
        entry["num_tensors"] += 1
        entry["num_elements"] += tensor.num_elements
        entry["num_bytes"] += sum(chunk.num_bytes for chunk in tensor.chunks)
    return entries


def _lines(found: Found, manifest: Manifest, index: Index | None, lineage: list[dict[str, Any]]) -> Iterator[str]:
    from resilient_launch.core.units import format_duration, format_size

    facts = manifest.facts
    yield f"{manifest.name}: {found.standing}, {found.why}"
    saved = time.strftime("%F %T", time.localtime(manifest.saved_at))
    yield f"saved      {saved} ({age(manifest.saved_at)}), reason {facts.reason or 'unknown'}"
    yield f"training   {manifest.id.step} steps, {format_duration(round(facts.training_s))} in all attempts"
    yield f"run        {facts.run_id or 'unknown'}, attempt {manifest.id.attempt}, restart {manifest.id.restart}"
    yield f"topology   {facts.world_size} ranks, {facts.layout.get('kind', 'unknown')}"
    yield f"code       {facts.code_version or 'unknown'}"
    yield f"versions   {', '.join(f'{name} {version}' for name, version in sorted(facts.versions.items()))}"
    chain = [each["name"] + ("" if each["is_here"] else " (gone)") for each in lineage]
    yield f"lineage    {' <- '.join([manifest.name, *chain])}"
    if facts.metadata:
        yield f"metadata   {dict(facts.metadata)}"
    yield f"files      {len(manifest.files)}, {format_size(manifest.num_bytes)}, digests {manifest.algorithm}"
    if index is not None:
        rows = [
            (name, entry["num_tensors"], entry["num_elements"], format_size(entry["num_bytes"]))
            for name, entry in _entries(index).items()
        ]
        yield table(("entry", "tensors", "elements", "size"), rows)


def _as_json(
    run: str,
    found: Found,
    manifest: Manifest,
    index: Index | None,
    lineage: list[dict[str, Any]],
    *,
    with_tensors: bool,
) -> dict[str, Any]:
    import json

    record = json.loads(manifest.render())
    record["files"] = [{key: entry[key] for key in ("name", "size", "digest")} for entry in record["files"]]
    more: dict[str, Any] = {} if index is None else {"entries": _entries(index)}
    if with_tensors and index is not None:
        more["tensors"] = {
            key: {"dtype": each.dtype, "shape": list(each.shape), "num_chunks": len(each.chunks)}
            for key, each in sorted(index.tensors.items())
        }
    return {
        "schema": SCHEMA,
        "name": run,
        "standing": str(found.standing),
        "why": found.why,
        "lineage": lineage,
        "manifest": record,
        **more,
    }
