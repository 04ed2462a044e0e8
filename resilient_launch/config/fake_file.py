"""A fake cluster's own file, whose keys are those under ``fake`` in a configuration, and the same as options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from resilient_launch.cluster.fake.spec import FakeSpec
from resilient_launch.config import overrides
from resilient_launch.config.cursor import Cursor, Report, read_fields
from resilient_launch.config.issues import ConfigErrors, ConfigIssue, Mark, Source
from resilient_launch.config.load import read_source
from resilient_launch.config.sections import FAKE
from resilient_launch.config.yamlpos import Mapping as MappingNode
from resilient_launch.config.yamlpos import Node, parse
from resilient_launch.core.errors import UsageError

_WORDS = ("off", "requeue", "cancel")


def load_fake(path: Path | None, options: Mapping[str, str] = {}) -> FakeSpec:
    """The cluster in ``path`` with ``options`` (a key, and its value as YAML) put in; both may be absent.

    Raises ConfigErrors with all that is wrong, UsageError without a file.
    """
    issues: list[ConfigIssue] = []
    root: Node = MappingNode(Mark(Source("options", "", is_option=True), 1, 1), ())
    if path is not None:
        found, problems = parse(read_source(path))
        issues += problems
        root = found or root
    for key, value in options.items():
        root = overrides.apply(root, [f"{key}={value}"], issues, label=f"--{key.replace('_', '-')} {value}")
    report = Report(root.mark, issues)
    values: list[dict[str, Any]] = Cursor(root, "", report).read(lambda cursor: read_fields(cursor, FAKE))
    if report.issues:
        raise ConfigErrors(sorted(report.issues, key=lambda issue: (issue.line is None, issue.line, issue.column)))
    return FakeSpec(**values[0])


def partitions_value(texts: Sequence[str]) -> str:
    """YAML for partitions written as ``low:1:requeue:grace=60s``: a name, then tier, preemption, grace in any order.

    Raises UsageError for a part that is none of these.
    """
    found = []
    for text in texts:
        name, *parts = text.split(":")
        words = {"name": name}
        for part in parts:
            if part.isdecimal():
                words["tier"] = part
            elif part in _WORDS:
                words["preempt"] = part
            elif part.startswith("grace="):
                words["grace"] = part.removeprefix("grace=")
            else:
                raise UsageError(
                    f"{part[:40]!r} in partition {text[:80]!r}",
                    where="--partition",
                    why="is no tier, no preemption and no grace",
                    hint="--partition low:1:requeue:grace=60s --partition high:10",
                )
        found.append("{" + ", ".join(f"{key}: {value}" for key, value in words.items()) + "}")
    return f"[{', '.join(found)}]"
