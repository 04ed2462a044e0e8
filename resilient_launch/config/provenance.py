"""Where each resolved value of a configuration came from: the file, an option, or a default."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resilient_launch.config import overrides as options
from resilient_launch.config.issues import Mark
from resilient_launch.config.load import as_dict, load
from resilient_launch.config.yamlpos import MAX_BYTES, Mapping, Node, decode_bytes, parse


@dataclass(frozen=True, kw_only=True)
class Origin:
    """One resolved value by its dotted key. ``where`` is ``file:line``, ``--set …``, or ``default``."""

    key: str
    value: Any
    where: str


def origins(path: Path, overrides: Sequence[str] = ()) -> list[Origin]:
    """Every resolved value of the configuration in ``path``, in the file's vocabulary. Raises what load raises."""
    words = as_dict(load(path, overrides))
    source = decode_bytes(path.read_bytes()[:MAX_BYTES], str(path))
    root = options.apply(parse(source)[0] or Mapping(Mark(source, 1, 1), ()), overrides, [])
    marks = dict(_marks(root, ""))
    return [Origin(key=key, value=value, where=_where(marks, key)) for key, value in _flat(words, "")]


def _flat(words: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in words.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _marks(node: Node, prefix: str) -> Iterator[tuple[str, Mark]]:
    if isinstance(node, Mapping):
        for entry in node.entries:
            yield f"{prefix}{entry.key}", entry.value.mark
            yield from _marks(entry.value, f"{prefix}{entry.key}.")


def _where(marks: dict[str, Mark], key: str) -> str:
    mark = marks.get(key)
    if mark is None:
        return "default"
    return mark.source.name if mark.source.is_option else f"{mark.source.name}:{mark.line}"
