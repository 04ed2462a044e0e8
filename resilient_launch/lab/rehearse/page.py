"""The account of a rehearsal as one self-contained page: no network, no script."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from resilient_launch.lab.rehearse.session import Rehearsal, Result
from resilient_launch.lab.rehearse.traces import curve, loss_name
from resilient_launch.report.charts import Line, Mark, chart
from resilient_launch.report.style import STYLE

_WORDS = {"pass": "passed", "fail": "failed", "skip": "skipped"}
_NUM_STYLES = 6


def page(found: Rehearsal) -> str:
    """The whole page."""
    title = f"{found.name}: {found.verdict}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>"
        f"<body><article>{''.join(_body(found))}</article></body></html>\n"
    )


def _body(found: Rehearsal) -> Iterator[str]:
    yield f"<h1>{escape(found.name)} <small>{escape(found.verdict)}</small></h1>"
    for text in (found.why, found.hint):
        if text:
            yield f"<p>{escape(text)}</p>"
    yield (
        f"<p>{found.moments.steps} steps on the fake cluster, a save every {found.moments.every}; "
        f"reference {escape(found.reference.digest or 'without a digest')}; seed {found.seed}.</p>"
    )
    yield "<h2>Scenarios</h2><div class='scroll'><table>"
    heads = ("scenario", "verdict", "starts", "seconds", "what was done, what was seen")
    yield f"<tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>"
    for result in found.results:
        yield _row(result)
    yield "</table></div>"
    yield from _curves(found)
    yield f"<h2>Kept</h2><code>{escape(str(found.directory))}</code>"


def _row(result: Result) -> str:
    judgement, outcome = result.judgement, result.outcome
    words = [judgement.why, judgement.hint]
    if judgement.step is not None:
        words.insert(1, f"first at step {judgement.step} {judgement.tensor}".rstrip())
    if judgement.test != "bit-exact":
        words.append(judgement.test)
    seen = "<br>".join(escape(word) for word in (result.scenario.fault, *words) if word)
    starts, seconds = (len(outcome.seen.resume_steps), f"{outcome.seconds:.0f}") if outcome else ("", "")
    name = f"{result.scenario.letter} {result.scenario.name}"
    return (
        f"<tr><td>{escape(name)}</td><td>{_WORDS[judgement.verdict]}</td><td>{starts}</td><td>{seconds}</td>"
        f"<td style='white-space:normal'>{seen}</td></tr>"
    )


def _curves(found: Rehearsal) -> Iterator[str]:
    """The loss of every run that is not the reference's, over the reference's."""
    name = loss_name(found.reference.records)
    if name is None:
        return
    reference = curve(found.reference.records, name)
    lines = [Line(points=sorted(reference.items()), style="line l0", title="reference")]
    marks = []
    for result in found.results:
        other = curve(result.outcome.records, name) if result.outcome else {}
        if other and any(reference.get(step) != value for step, value in other.items()):
            style = f"line l{1 + (len(lines) - 1) % (_NUM_STYLES - 1)}"
            lines.append(Line(points=sorted(other.items()), style=style, title=result.scenario.name))
            if result.judgement.step is not None:
                marks.append(Mark(x=result.judgement.step, text=result.scenario.name))
    yield "<h2>Loss</h2>" + chart(title=name, x_name="completed steps", lines=lines, marks=marks)
    if len(lines) == 1:
        yield "<p>Every run's curve is the reference's.</p>"
