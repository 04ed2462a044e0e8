"""YAML 1.2's core schema and nothing beyond, with the place of every node.

PyYAML splits the text into events; what a plain scalar means is decided here, because stock PyYAML reads ``no`` as
False and ``12:30:00`` as 45000.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import yaml
from yaml.parser import Parser
from yaml.reader import Reader
from yaml.scanner import Scanner

from resilient_launch.config.issues import ConfigErrors, ConfigIssue, Mark, Source

MAX_BYTES = 256 * 1024
MAX_DEPTH = 24
MAX_NODES = 10_000

Kind = Literal["null", "bool", "int", "float", "str"]

# Section 10.3.2 of the YAML 1.2.2 specification.
_CORE: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("null", re.compile(r"~|null|Null|NULL|")),
    ("bool", re.compile(r"true|True|TRUE|false|False|FALSE")),
    ("int", re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")),
    (
        "float",
        re.compile(
            r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?(\.inf|\.Inf|\.INF)|\.nan|\.NaN|\.NAN", re.ASCII
        ),
    ),
)


@dataclass(frozen=True)
class Scalar:
    """A single value. ``text`` is what the file says, quotes and escapes undone."""

    mark: Mark
    kind: Kind
    text: str
    quoted: bool = False


@dataclass(frozen=True)
class Sequence:
    """A list."""

    mark: Mark
    items: tuple[Node, ...]


@dataclass(frozen=True)
class Entry:
    """A key of a mapping, as written, and its value."""

    key: str
    mark: Mark
    value: Node


@dataclass(frozen=True)
class Mapping:
    """A mapping; its keys are distinct."""

    mark: Mark
    entries: tuple[Entry, ...]

    def get(self, key: str) -> Entry | None:
        """The entry called ``key``."""
        return next((entry for entry in self.entries if entry.key == key), None)


Node = Scalar | Sequence | Mapping


def plain_kind(text: str) -> Kind:
    """What an unquoted scalar is under the core schema."""
    return next((kind for kind, pattern in _CORE if pattern.fullmatch(text)), "str")


def decode_bytes(data: bytes, name: str) -> Source:
    """The text of a file. Raises ConfigErrors when it is too long or not UTF-8."""
    if len(data) > MAX_BYTES:
        mark = Mark(Source(name, ""), 1, 1)
        raise ConfigErrors(
            [mark.issue("", "file is too long", why=f"more than {MAX_BYTES // 1024} KiB", hint="a shorter one")]
        )
    try:
        return Source(name, data.decode("utf-8"))
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8")
        line, column = before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1
        readable = Source(name, data.decode("utf-8", "replace"))
        what, why = f"byte 0x{data[error.start]:02x}", "the file is not UTF-8"
        raise ConfigErrors([Mark(readable, line, column).issue("", what, why=why, hint="save it as UTF-8")]) from None


def parse(source: Source) -> tuple[Node | None, list[ConfigIssue]]:
    """The one document of ``source``, and its duplicate or unusable keys; None where there is nothing in it.

    Raises ConfigErrors where the text cannot be read on: bad syntax, tags, a second document, more than MAX_DEPTH
    levels or MAX_NODES nodes (an alias counts as all that it stands for).
    """
    if match := Reader.NON_PRINTABLE.search(source.text):
        before = source.text[: match.start()]
        mark = Mark(source, before.count("\n") + 1, match.start() - before.rfind("\n"))
        what = f"character U+{ord(match.group()):04X}"
        raise ConfigErrors([mark.issue("", what, why="not allowed in YAML", hint="an escape in double quotes")])
    builder = _Builder(source)
    return builder.document(), builder.issues


class _Events(Reader, Scanner, Parser):
    def __init__(self, text: str) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)


class _Builder:
    def __init__(self, source: Source) -> None:
        self.issues: list[ConfigIssue] = []
        self._source = source
        self._anchors: dict[str, tuple[Node, int]] = {}
        self._num_nodes = 0
        self._events = self._read_events()

    def _read_events(self) -> Iterator[yaml.Event]:
        events = _Events(self._source.text)
        try:
            while events.check_event():
                yield events.get_event()  # type: ignore[no-untyped-call]
        except yaml.MarkedYAMLError as error:
            problem = error.problem or error.context or "unreadable"
            mark = error.problem_mark or error.context_mark
            raise self._stop(mark, "not YAML", problem, _syntax_hint(problem)) from None
        except (ValueError, OverflowError):
            # PyYAML hands escapes like "\UFFFFFFFF" and endless version numbers to chr() and int() unchecked.
            raise self._stop(events.get_mark(), "not YAML", "a number or escape out of range", "plain text") from None

    def _stop(self, mark: Any, what: str, why: str, hint: str) -> ConfigErrors:
        return ConfigErrors([*self.issues, self._mark(mark).issue("", what, why=why, hint=hint)])

    def _mark(self, mark: Any) -> Mark:
        return Mark(self._source, mark.line + 1, mark.column + 1) if mark else Mark(self._source, 1, 1)

    def document(self) -> Node | None:
        root: Node | None = None
        num_documents = 0
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                num_documents += 1
                if num_documents > 1:
                    raise self._stop(
                        event.start_mark, "second document", "a configuration is one document", "a file of its own"
                    )
                root = self._node(next(self._events), "", 0)
        return root

    def _node(self, event: yaml.Event, key: str, depth: int) -> Node:
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise self._stop(
                    event.start_mark, f"alias *{event.anchor}", "no such anchor ends before it", "the value itself"
                )
            node, size = self._anchors[event.anchor]
            self._count(event, size)
            return node
        assert isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent)
        if event.tag is not None:
            raise self._stop(event.start_mark, f"tag {event.tag}", "a configuration has no tags", "leave it out")
        if depth > MAX_DEPTH:
            raise self._stop(event.start_mark, "nested too deep", f"more than {MAX_DEPTH} levels", "fewer levels")
        before = self._num_nodes
        self._count(event, 1)
        if isinstance(event, yaml.ScalarEvent):
            node = self._scalar(event)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._sequence(event, key, depth)
        else:
            node = self._mapping(event, key, depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = (node, self._num_nodes - before)
        return node

    def _count(self, event: yaml.Event, num: int) -> None:
        self._num_nodes += num
        if self._num_nodes > MAX_NODES:
            raise self._stop(event.start_mark, "too many values", f"more than {MAX_NODES}", "fewer values")

    def _scalar(self, event: yaml.ScalarEvent) -> Node:
        kind = plain_kind(event.value) if event.implicit[0] else "str"
        return Scalar(self._mark(event.start_mark), kind, event.value, quoted=not event.implicit[0])

    def _sequence(self, start: yaml.CollectionStartEvent, key: str, depth: int) -> Node:
        items: list[Node] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._node(event, f"{key}.{len(items)}" if key else str(len(items)), depth + 1))
        return Sequence(self._mark(start.start_mark), tuple(items))

    def _mapping(self, start: yaml.CollectionStartEvent, key: str, depth: int) -> Node:
        entries: dict[str, Entry] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            name = self._node(event, key, depth + 1)
            mark = self._mark(event.start_mark)
            text = name.text if isinstance(name, Scalar) else ""
            path = f"{key}.{text}" if key else text
            value = self._node(next(self._events), path, depth + 1)
            if not isinstance(name, Scalar) or not text:
                self.issues.append(mark.issue(path, "unusable key", why="a key is a word", hint="word: value"))
            elif text in entries:
                first = entries[text].mark.line
                why = f"first given in line {first}"
                self.issues.append(mark.issue(path, "duplicate key", why=why, hint="keep one of the two"))
            else:
                entries[text] = Entry(text, mark, value)
        return Mapping(self._mark(start.start_mark), tuple(entries.values()))


def _syntax_hint(problem: str) -> str:
    if "'\\t'" in problem:
        return "indent with spaces"
    if "cannot start any token" in problem:
        return "put the value in quotes"
    if "mapping values are not allowed" in problem:
        return "check the indentation, and put a value that contains ': ' in quotes"
    return "check the quotes, brackets and indentation here and just before"
