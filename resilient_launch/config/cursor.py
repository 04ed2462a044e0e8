"""Decoding of nodes: a value at a time, every fault collected, never stopping at the first."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from resilient_launch.config.issues import ConfigIssue, Mark, closest
from resilient_launch.config.yamlpos import Mapping as MappingNode
from resilient_launch.config.yamlpos import Node, Scalar, Sequence
from resilient_launch.core.errors import UsageError

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
MAX_INT = 10**9


@dataclass
class Report:
    """Where every key of a configuration stands, and what is wrong so far."""

    root: Mark
    issues: list[ConfigIssue] = field(default_factory=list)
    marks: dict[str, Mark] = field(default_factory=dict)
    misspelt: set[str] = field(default_factory=set)

    def is_good(self, *keys: str) -> bool:
        """Whether nothing is wrong with these keys or with anything inside them, their spelling included."""
        suspects = {issue.key for issue in self.issues} | self.misspelt
        return not any(f"{suspect}.".startswith(f"{key}.") for suspect in suspects for key in keys)

    def add(self, keys: tuple[str, ...], what: str, *, why: str = "", hint: str = "") -> None:
        """Report ``what`` at the first of ``keys`` that the file has."""
        key = next((key for key in keys if key in self.marks), keys[0])
        self.issues.append(self.marks.get(key, self.root).issue(key, what, why=why, hint=hint))


@dataclass(frozen=True)
class Cursor:
    """One value, and its dotted key."""

    node: Node
    key: str
    report: Report

    def read(self, decode: Callable[[Cursor], Any]) -> list[Any]:
        """The decoded value alone in a list; an empty list, and an issue reported here, when ``decode`` refuses it."""
        self.report.marks[self.key] = self.node.mark
        try:
            return [decode(self)]
        except UsageError as error:
            issue = self.node.mark.issue(self.key, error.what, why=error.why, hint=error.hint)
            self.report.issues.append(issue)
            return []

    def child(self, key: str, node: Node) -> Cursor:
        return Cursor(node, f"{self.key}.{key}" if self.key else key, self.report)

    def scalar(self, wanted: str, hint: str) -> Scalar:
        """The node, which must be a single value."""
        if not isinstance(self.node, Scalar):
            found = "a list" if isinstance(self.node, Sequence) else "a mapping"
            raise UsageError(found, why=f"must be {wanted}", hint=hint)
        return self.node

    def items(self, wanted: str, hint: str) -> Iterator[Cursor]:
        """The elements of the node, which must be a list."""
        if not isinstance(self.node, Sequence):
            raise UsageError(describe(self.node), why=f"must be {wanted}", hint=hint)
        return (self.child(str(index), item) for index, item in enumerate(self.node.items))

    def mapping(self, wanted: str, hint: str) -> MappingNode:
        """The node, which must be a mapping."""
        if not isinstance(self.node, MappingNode):
            raise UsageError(describe(self.node), why=f"must be {wanted}", hint=hint)
        return self.node


Decoder = Callable[[Cursor], Any]


def _same(value: Any) -> Any:
    return value


Fields: TypeAlias = Mapping[str, "Field"]


@dataclass(frozen=True)
class Field:
    """One key of a section: the attribute it fills, how its value is read, and how it is written back.

    ``section`` are the keys inside, where the value is a section of its own.
    """

    attr: str
    decode: Decoder
    encode: Callable[[Any], Any] = _same
    tilde_is_text: bool = False
    section: Fields | None = None


def read_fields(cursor: Cursor, fields: Fields, elsewhere: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The good values of a section by attribute. An absent, null or refused key is left out.

    ``elsewhere`` maps keys that belong to other places, or go by other names, to where they belong.
    """
    values: dict[str, Any] = {}
    for entry in cursor.mapping("a mapping of keys to values", f"{next(iter(fields))}: …").entries:
        child = cursor.child(entry.key, entry.value)
        if entry.key not in fields:
            cursor.report.issues.append(_unknown(entry.mark, cursor, entry.key, fields, elsewhere or {}))
            continue
        spec = fields[entry.key]
        if isinstance(entry.value, Scalar) and entry.value.kind == "null" and not spec.tilde_is_text:
            continue
        values.update((spec.attr, value) for value in child.read(spec.decode))
    return values


def write_fields(value: Any, fields: Fields) -> dict[str, Any]:
    """What a file would say for ``value``; attributes that are None are left out."""
    found = ((key, spec, getattr(value, spec.attr)) for key, spec in fields.items())
    return {key: spec.encode(attr) for key, spec, attr in found if attr is not None}


def _unknown(mark: Mark, cursor: Cursor, key: str, known: Fields, elsewhere: Mapping[str, str]) -> ConfigIssue:
    near = elsewhere.get(key) or closest(key, known) or elsewhere.get(closest(key, elsewhere) or "")
    if near is None:
        why, hint = "not part of a configuration here", f"one of {', '.join(known)}"
    else:
        why = f"it is called {near}" if key in elsewhere else f"did you mean {near}?"
        hint = f"{near}: …"
        cursor.report.misspelt.add(f"{cursor.key}.{near}" if cursor.key else near)
    return mark.issue(cursor.child(key, cursor.node).key, "unknown key", why=why, hint=hint)


def describe(node: Node) -> str:
    """The node in an error's words: what kind it is and, where short, what it says."""
    if isinstance(node, Sequence):
        return "a list"
    if isinstance(node, MappingNode):
        return "a mapping"
    text = node.text if len(node.text) <= 60 else node.text[:57] + "..."
    words = {
        "null": "nothing",
        "bool": "the truth value",
        "int": "the number",
        "float": "the number",
        "str": "the text",
    }
    return words["null"] if node.kind == "null" else f"{words[node.kind]} {repr(text) if node.kind == 'str' else text}"


def check_text(text: str, *, multiline: bool = False) -> str:
    """Return ``text`` if it has no control characters; ``multiline`` text may have all but NUL.

    A newline inside an sbatch value would become a line of the batch script. Lone surrogates are not text at all.
    """
    pattern = re.compile("[\x00\ud800-\udfff]") if multiline else _CONTROL
    if match := pattern.search(text):
        what = f"character U+{ord(match.group()):04X}" if match.group() != "\n" else "a line break"
        hint = "a single line: no | or > before the value" if match.group() == "\n" else "leave it out"
        raise UsageError(what, why="not allowed in this value", hint=hint)
    return text
