"""From a file to a LaunchConfig and back."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from resilient_launch.cluster.fake.spec import FakeSpec
from resilient_launch.config import checks
from resilient_launch.config import overrides as options
from resilient_launch.config.cursor import Cursor, Report, read_fields, write_fields
from resilient_launch.config.issues import ConfigErrors, ConfigIssue, Mark, Source
from resilient_launch.config.schema import LaunchConfig
from resilient_launch.config.sections import ELSEWHERE, TOP
from resilient_launch.config.values import check_path
from resilient_launch.config.yamlpos import MAX_BYTES, Mapping, decode_bytes, parse, plain_kind
from resilient_launch.core.errors import UsageError


def load(path: Path, overrides: Sequence[str] = (), *, frozen: bool = False) -> LaunchConfig:
    """The configuration in ``path`` with each ``a.b=c`` of ``overrides`` put in.

    Relative paths start at the file's directory. ``frozen`` reads what dump wrote: paths must be absolute, and nothing
    but this file is looked up on the disk. Raises ConfigErrors with all that is wrong, UsageError without a file.
    """
    return _resolve(read_source(path), overrides, path.absolute().parent, frozen)


def read_source(path: Path) -> Source:
    """The text of a file. Raises UsageError where it cannot be read, ConfigErrors where it is no text."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        near = checks.nearest_files(path)
        why = (error.strerror or str(error)).lower()
        hint = str(path.with_name(near[0])) if near else "the path of a YAML file"
        raise UsageError("configuration", where=str(path), why=why, hint=hint) from None
    return decode_bytes(data, str(path))


def loads(
    text: str, source: str = "<text>", overrides: Sequence[str] = (), *, base: Path | None = None, frozen: bool = False
) -> LaunchConfig:
    """As load, from ``text``, which messages call ``source``; relative paths start at ``base``, or here."""
    return _resolve(decode_bytes(text.encode("utf-8", "replace"), source), overrides, base or Path.cwd(), frozen)


def as_dict(config: LaunchConfig) -> dict[str, Any]:
    """``config`` in the file's own words, fit for JSON: every default filled in, what is left to the site absent."""
    words = write_fields(config, TOP)
    if not config.command:
        del words["command"]
    return words


def dump(config: LaunchConfig) -> str:
    """YAML that ``load(…, frozen=True)`` reads back to an equal configuration, anywhere and at any time."""
    text: str = yaml.dump(as_dict(config), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=2**31)
    return text


class _Dumper(yaml.SafeDumper):
    """Quotes all that stock YAML, this package's loader or a reader's eye might take for something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    is_plain = text.isprintable() and plain_kind(text) == "str"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if is_plain else '"')


_Dumper.add_representer(str, _represent_text)


def _resolve(source: Source, overrides: Sequence[str], base: Path, frozen: bool) -> LaunchConfig:
    issues: list[ConfigIssue] = []
    root_mark = Mark(source, 1, 1)
    try:
        root, found = parse(source)
    except ConfigErrors as error:
        # Nothing more can be said about this text, but the options may be wrong too.
        options.apply(Mapping(root_mark, ()), overrides, issues)
        raise ConfigErrors([*error.issues, *issues]) from None
    issues += found
    root = options.apply(root or Mapping(root_mark, ()), overrides, issues)
    report = Report(root.mark, issues)
    top = Cursor(root, "", report)
    for values in top.read(lambda cursor: read_fields(cursor, TOP, ELSEWHERE)):
        config = _build(values, base, report)
        if frozen and not Path(values.get("workdir", "")).is_absolute():
            report.add(("workdir",), "workdir", why="must be absolute here", hint="an absolute path")
        checks.check_values(config, report)
        if not frozen:
            checks.check_files(config, report)
        if not report.issues:
            return config
    raise ConfigErrors(sorted(report.issues, key=lambda issue: (issue.line is None, issue.line, issue.column)))


def _build(values: dict[str, Any], base: Path, report: Report) -> LaunchConfig:
    """The configuration of the good values, defaults for the others; issues for required keys that are not there."""
    if "name" not in values and report.is_good("name"):
        report.add(("name",), "no name", why="every run has one", hint="name: my-run")
    workdir = Path(os.path.normpath(base / values.get("workdir", "")))
    values = {**values, "workdir": workdir}
    if report.is_good("workdir"):
        try:
            check_path(str(workdir))
        except UsageError as error:
            report.add(("workdir",), error.what, why=error.why, hint=error.hint)
    python = values.get("python") or sys.executable or "python3"
    values["python"] = str(workdir / python) if "/" in python else python
    if "script" in values:
        script = os.path.normpath(workdir / values["script"])
        inside = Path(script).is_relative_to(workdir)
        values["script"] = str(Path(script).relative_to(workdir)) if inside else script
    if (shared := values.get("stagger")) is not None and shared.group is not None:
        values["stagger"] = replace(shared, group=Path(os.path.normpath(workdir / shared.group)))
    if (saving := values.get("checkpoint")) is not None and saving.failure_history is not None:
        history = Path(os.path.normpath(workdir / saving.failure_history))
        values["checkpoint"] = replace(saving, failure_history=history)
    given = values.pop("fake", {})
    config = LaunchConfig(**{"name": "", **values})
    default = FakeSpec()
    sized = {
        "num_nodes": max(default.num_nodes, config.nodes.max),
        "cpus": max(default.cpus, config.cpus_per_node),
        "gpus": max(default.gpus, config.gpus_per_node),
        "memory_mb": max(default.memory_mb, config.memory_mb or 0),
    }
    return replace(config, fake=FakeSpec(**{**sized, **given}))
