"""A rehearsal in words, as a test runner would put it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from resilient_launch.lab.rehearse.session import Rehearsal, Result

_WORDS = {"pass": "PASS", "fail": "FAIL", "skip": "SKIP"}


def result_lines(result: Result, command: Sequence[str]) -> list[str]:
    """One scenario: a line, and where it failed, what was done, what differs, and how to see it again.

    ``command`` are the words that rehearse the same job in the same way.
    """
    scenario, judgement = result.scenario, result.judgement
    lives = len(result.outcome.seen.resume_steps) if result.outcome else 0
    seconds = f" in {result.outcome.seconds:.0f} s, {lives} starts" if result.outcome else ""
    lines = [f"{_WORDS[judgement.verdict]} {scenario.letter} {scenario.name}: {judgement.why}{seconds}"]
    if judgement.verdict != "fail":
        return lines
    lines.append(f"     fault      {scenario.fault}")
    if judgement.step is not None:
        tensor = f", first tensor {judgement.tensor}" if judgement.tensor else ""
        lines.append(f"     differs    from step {judgement.step}{tensor}")
    if judgement.piece:
        lines.append(f"     missing    {judgement.piece}")
    if judgement.hint:
        lines.append(f"     try        {judgement.hint}")
    lines.append(f"     reproduce  {shlex.join([*command, '--scenario', scenario.name])}")
    if result.outcome:
        lines.append(f"     kept       {result.outcome.paths.directory}")
    return lines


def summary_lines(found: Rehearsal) -> list[str]:
    """The verdict over all of them, and where everything is kept."""
    counts = [
        f"{number} {word}"
        for key, word in (("fail", "failed"), ("pass", "passed"), ("skip", "skipped"))
        if (number := sum(each.judgement.verdict == key for each in found.results))
    ]
    lines = [f"{found.name}: {found.verdict}{f', {found.why}' if found.why else ''}"]
    if found.hint:
        lines.append(f"try: {found.hint}")
    lines.append(f"{', '.join(counts) or 'nothing rehearsed'}; kept in {found.directory}")
    return lines
