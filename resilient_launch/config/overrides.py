"""``--set a.b=c``: one more place that values come from, later than the file and checked alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from resilient_launch.config.issues import ConfigErrors, ConfigIssue, Mark, Source
from resilient_launch.config.yamlpos import Entry, Mapping, Node, Scalar, parse
from resilient_launch.config.yamlpos import Sequence as SequenceNode


def apply(root: Node, overrides: Sequence[str], issues: list[ConfigIssue], *, label: str = "") -> Node:
    """``root`` with every override put in, in order; those that cannot be read are added to ``issues``.

    ``label`` is what the user typed, where that was not ``--set``.
    """
    for text in overrides:
        path, equals, value_text = text.partition("=")
        source = Source(label or f"--set {text}", value_text, is_option=True)
        mark = Mark(source, 1, 1)
        keys = path.strip().split(".")
        if not equals or not all(keys):
            issues.append(
                mark.issue("", "override", why="must be a key, =, and a value", hint="--set checkpoint.keep=5")
            )
            continue
        try:
            value, found = parse(source)
        except ConfigErrors as error:
            issues += [replace(issue, key=path) for issue in error.issues]
            continue
        issues += [replace(issue, key=path) for issue in found]
        try:
            root = _put(root, keys, value or Scalar(mark, "null", ""), mark)
        except LookupError as error:
            issues.append(mark.issue(path, "override", why=str(error.args[0]), hint=f"{keys[0]}: … in the file"))
    return root


def _put(node: Node | None, keys: list[str], value: Node, mark: Mark) -> Node:
    if not keys:
        return value
    key, rest = keys[0], keys[1:]
    if isinstance(node, SequenceNode):
        if not key.isdecimal() or len(key) > 6 or int(key) >= len(node.items):
            raise LookupError(f"the list has {len(node.items)} elements, counted from 0, and no {key}")
        index = int(key)
        items = (*node.items[:index], _put(node.items[index], rest, value, mark), *node.items[index + 1 :])
        return replace(node, items=items)
    if isinstance(node, Scalar) and node.kind != "null":
        raise LookupError(f"{node.text[:40]!r} has no key {key}")
    if not isinstance(node, Mapping):
        node = Mapping(mark, ())
    old = node.get(key)
    entry = Entry(key, mark, _put(old.value if old else None, rest, value, mark))
    if old is None:
        return replace(node, entries=(*node.entries, entry))
    return replace(node, entries=tuple(entry if found is old else found for found in node.entries))
