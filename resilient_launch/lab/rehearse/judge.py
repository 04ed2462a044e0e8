"""What a rehearsed run proves, held against the uninterrupted one. Values in, values out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from resilient_launch.lab.rehearse.compare import Difference, compare, first_difference
from resilient_launch.lab.rehearse.diagnose import Diagnosis, diagnose
from resilient_launch.lab.rehearse.performance import Outcome
from resilient_launch.lab.rehearse.scenarios import Scenario
from resilient_launch.lab.rehearse.tolerance import Tolerance, distance
from resilient_launch.lab.rehearse.traces import Record, curve, loss_name

Verdict = Literal["pass", "fail", "skip"]
BIT_EXACT = "bit-exact"


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """A verdict, why, and where it is a failure: the likely missing ``piece``, first step, first tensor, what to try.

    ``test`` is what was asked of the run.
    """

    verdict: Verdict
    why: str
    test: str = BIT_EXACT
    piece: str = ""
    step: int | None = None
    tensor: str = ""
    hint: str = ""


def judge_reference(reference: Outcome) -> Judgement | None:
    """What keeps this job from being rehearsed at all; None where nothing does."""
    where = f"logs in {reference.paths.logs}"
    if not reference.records:
        ended = reference.error.splitlines()[-1] if reference.error else reference.reason
        never = "the job never checkpoints: it finished, and no step was seen"
        return Judgement(
            verdict="fail",
            why=never if reference.is_finished else f"no step was seen: {ended}",
            piece="attach",
            hint=f"the script joins with rl.attach() and goes through run.steps, or calls run.boundary; {where}",
        )
    if not reference.is_finished:
        return Judgement(
            verdict="fail", why=f"the uninterrupted run did not finish: {reference.reason}", piece="run", hint=where
        )
    if not any(status == "durable" for status, _, _ in reference.seen.saves):
        return Judgement(
            verdict="fail",
            why=f"the job never checkpoints: it made none in {reference.seen.moments.steps} steps",
            piece="checkpoint",
            hint="go through run.steps(state, until=...), or call run.boundary(state) once a step",
        )
    return None


def judge_exact(scenario: Scenario, outcome: Outcome, reference: Outcome, drops: Sequence[str] = ()) -> Judgement:
    """Whether the run ended as the reference did, every step on the way included, and as its scenario demands."""
    found = first_difference(reference.records, outcome.records)
    in_place = _saved_in_place(outcome)
    if in_place and (found is not None or not outcome.is_finished):
        return in_place
    if never := _never_resumed(outcome):
        return never
    if found is not None:
        return _differs(found, diagnose(found))
    if not outcome.is_finished:
        last = outcome.error.strip().splitlines()[-1:] or [""]
        why = f"the run did not finish: {outcome.reason} {last[0]}".strip()
        return Judgement(verdict="fail", why=why, piece="run", hint=f"logs in {outcome.paths.logs}")
    if outcome.digest != reference.digest:
        names = [line.split(" ", 2)[1] for line in outcome.lines if line not in set(reference.lines)]
        return Judgement(
            verdict="fail",
            why=f"no step differs, but the final states do: {', '.join(names[:5])}",
            piece=names[0] if names else "unknown",
            step=reference.seen.moments.steps,
            hint="what changes these after the last step?",
        )
    unseen, idle = _unseen_drops(outcome.records, reference.records, drops)
    problems = [*unseen, *scenario.condition(outcome.seen)]
    if problems:
        piece = "notice" if any("ignores notices" in problem for problem in problems) else "scenario"
        return Judgement(verdict="fail", why="; ".join(problems), piece=piece)
    missed = [piece for piece in drops if piece not in idle]
    seen = f"; seen to be missing, each: {', '.join(missed)}" if missed else ""
    seen += f"; as at the start, so nothing to miss: {', '.join(idle)}" if idle else ""
    return Judgement(verdict="pass", why=f"identical{seen}")


def judge_tolerant(outcome: Outcome, reference: Outcome, allowed: Tolerance | None, *, after: int) -> Judgement:
    """Whether the loss stayed as near to the reference's as another seed would put it."""
    if not outcome.is_finished:
        return Judgement(
            verdict="fail", why=f"the run did not finish: {outcome.reason}", piece="run", hint=f"{outcome.paths.logs}"
        )
    name = loss_name(reference.records)
    if name is None or allowed is None:
        return Judgement(
            verdict="skip", why="nothing is logged to compare", test="tolerance", hint="run.log(step, loss=loss.item())"
        )
    found = distance(curve(outcome.records, name), curve(reference.records, name), after=after)
    if found is None:
        return Judgement(verdict="fail", why="no step after the interruption", test=allowed.test, piece="run")
    is_within = found <= allowed.limit
    why = (
        f"{name} is {found:.4g} from the uninterrupted run's, {'within' if is_within else 'beyond'} {allowed.limit:.4g}"
    )
    return Judgement(
        verdict="pass" if is_within else "fail", why=why, test=allowed.test, piece="" if is_within else name
    )


def _differs(found: Difference, diagnosis: Diagnosis) -> Judgement:
    return Judgement(
        verdict="fail",
        why=diagnosis.why,
        piece=diagnosis.piece,
        step=found.step,
        tensor=found.tensors[0] if found.tensors else "",
        hint=diagnosis.hint,
    )


def _saved_in_place(outcome: Outcome) -> Judgement | None:
    mark = outcome.seen.marks.get("own-save")
    if not mark or not mark.get("existed"):
        return None
    return Judgement(
        verdict="fail",
        why=f"{mark['path']} is overwritten in place: a SIGKILL in the middle of torch.save left neither the old state "
        "nor the new one",
        piece="saves in place",
        hint="let run.steps save the state, or write to another name, fsync, and rename",
    )


def _never_resumed(outcome: Outcome) -> Judgement | None:
    seen = outcome.seen
    saved = [step for status, _, step in seen.saves if status == "durable"]
    if seen.num_lives < 2 or any(seen.resume_steps) or not saved or min(saved) >= seen.moments.steps:
        return None
    return Judgement(
        verdict="fail",
        why=f"the job never resumes: all {seen.num_lives} starts began at step 0, though step {min(saved)} was saved",
        piece="restore",
        step=0,
        hint="call run.restore(state) before the loop",
    )


def _unseen_drops(
    records: Sequence[Record], reference: Sequence[Record], drops: Sequence[str]
) -> tuple[list[str], list[str]]:
    """What is wrong with the lives that were made to forget: the comparison must see every one of them.

    Second, the pieces that happened to be at the restored step what they are at the start.
    """
    known = {(each.rank, each.step): each for each in reference}
    problems, idle = [], []
    for piece in drops:
        lives = [each for each in records if each.dropped == piece]
        pairs = [(known[each.rank, each.step], each) for each in lives if (each.rank, each.step) in known]
        if any(compare(expected, found) is not None for expected, found in pairs):
            continue
        first = next((each for each in lives if each.is_first), None)
        fresh = known.get((first.rank, 0)) if first else None
        if first is not None and fresh is not None and first.parts.get(piece) == fresh.parts.get(piece) is not None:
            idle.append(piece)
        else:
            problems.append(f"leaving out {piece} was not seen" if lives else f"{piece} was never left out")
    return problems, idle
