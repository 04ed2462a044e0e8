"""The table that a contract run ends with: test ids by scheduler, the sums, and where versions differ."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import pytest

_WORDS = {"passed": "ok", "failed": "FAILED", "skipped": "left out"}
_ORDER = ("ok", "left out", "FAILED")


def summary(reports: Sequence[pytest.TestReport], backends: Sequence[str]) -> list[str]:
    """Lines to print; none when no test of the contract ran."""
    cells: dict[str, dict[str, str]] = {}
    differences: set[str] = set()
    reasons: set[str] = set()
    for report in reports:
        properties = dict(report.user_properties)
        backend = str(properties.get("backend", ""))
        # A test's differences come with its last report, that of its clean-up.
        differences |= {f"{value}" for name, value in report.user_properties if name == "differs"}
        if not backend or (report.when != "call" and report.outcome == "passed"):
            continue
        if isinstance(report.longrepr, tuple):
            reasons.add(f"{backend}: {report.longrepr[2].removeprefix('Skipped: ')}")
        row = cells.setdefault(test_id(report.nodeid, backend), {})
        # A test that passed and whose clean-up failed is one that failed.
        row[backend] = max(row.get(backend, "ok"), _WORDS[report.outcome], key=_ORDER.index)
    if not cells:
        return []
    width = max(map(len, cells))
    lines = ["", "contract".ljust(width) + "".join(f"  {backend:>10}" for backend in backends)]
    for name, row in sorted(cells.items()):
        lines.append(name.ljust(width) + "".join(f"  {row.get(backend, '-'):>10}" for backend in backends))
    if differences:
        lines += ["", "where versions differ, each test expects what its own version does:"]
        lines += [f"  {text}" for text in sorted(differences)]
    if reasons:
        lines += ["", *sorted(reasons)]
    lines.append("")
    for backend in backends:
        counts = Counter(row[backend] for row in cells.values() if backend in row)
        others = [f", {counts[word]} {word}" for word in _ORDER[1:] if counts[word]]
        lines.append(f"{backend}: {counts['ok']} passed{''.join(others)}")
    return lines


def test_id(nodeid: str, backend: str) -> str:
    """The test's name without its scheduler: the same on every one."""
    # pytest-xdist adds the group that keeps some tests on one worker.
    name, _, words = re.sub(r"\]@[\w.-]+$", "]", nodeid).rpartition("::")[2].partition("[")
    words = words.removesuffix("]")
    if words.startswith(f"{backend}-"):
        words = words.removeprefix(f"{backend}-")
    else:
        words = words.removesuffix(backend).removesuffix("-")
    return f"{name}[{words}]" if words else name


test_id.__test__ = False  # type: ignore[attr-defined]
