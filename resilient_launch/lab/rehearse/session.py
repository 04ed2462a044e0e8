"""A whole rehearsal: one reference, the scenarios one after another, and a verdict over all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from resilient_launch.config.schema import LaunchConfig
from resilient_launch.lab.rehearse.compare import first_difference
from resilient_launch.lab.rehearse.diagnose import explain_two_references
from resilient_launch.lab.rehearse.judge import Judgement, judge_exact, judge_reference, judge_tolerant
from resilient_launch.lab.rehearse.performance import Outcome, Theatre
from resilient_launch.lab.rehearse.scenarios import Moments, Scenario
from resilient_launch.lab.rehearse.tolerance import Tolerance, tolerance
from resilient_launch.lab.rehearse.traces import curve, loss_name

SCHEMA = 1
NUM_SEEDS = 2
Overall = Literal["identical", "within tolerance", "different", "not deterministic", "unusable"]


@dataclass(frozen=True, kw_only=True)
class Result:
    """One scenario's outcome and judgement; the outcome is None where it was not run."""

    scenario: Scenario
    judgement: Judgement
    outcome: Outcome | None = None

    def as_json(self) -> dict[str, Any]:
        judgement, outcome = self.judgement, self.outcome
        rows = outcome.attempts if outcome else ()
        return {
            "letter": self.scenario.letter,
            "name": self.scenario.name,
            "faults": self.scenario.fault,
            "attempts": [
                {
                    "cause": row.cause,
                    "resume_step": row.resume_step,
                    "end_step": row.end_step,
                    "worker_group_restarts": row.torchelastic_restart_count,
                    "rework_steps": row.rework_steps,
                }
                for row in rows
            ],
            "verdict": judgement.verdict,
            "why": judgement.why,
            "test": judgement.test,
            "piece": judgement.piece or None,
            "first_step": judgement.step,
            "first_tensor": judgement.tensor or None,
            "hint": judgement.hint or None,
            "digest": outcome.digest or None if outcome else None,
            "directory": str(outcome.paths.directory) if outcome else None,
            "seconds": round(outcome.seconds, 1) if outcome else None,
        }


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """The whole answer. ``why`` says what the verdict rests on where it is not that of the scenarios."""

    name: str
    verdict: Overall
    why: str
    hint: str
    moments: Moments
    seed: int
    directory: Path
    reference: Outcome
    results: Sequence[Result]

    @property
    def is_good(self) -> bool:
        return self.verdict in ("identical", "within tolerance")

    def as_json(self) -> dict[str, Any]:
        """What ``rlaunch rehearse --json`` prints."""
        return {
            "schema": SCHEMA,
            "name": self.name,
            "verdict": self.verdict,
            "why": self.why or None,
            "hint": self.hint or None,
            "steps": self.moments.steps,
            "seed": self.seed,
            "directory": str(self.directory),
            "reference": {
                "digest": self.reference.digest or None,
                "seconds": round(self.reference.seconds, 1),
                "directory": str(self.reference.paths.directory),
            },
            "scenarios": [each.as_json() for each in self.results],
        }


@dataclass(kw_only=True)
class Session:
    """Rehearses ``config`` below ``directory``. ``say`` hears of each scenario that begins, ``on_result`` of its end.

    ``is_tolerant``: a run that is not bit-identical may still pass by its loss.
    """

    config: LaunchConfig
    directory: Path
    moments: Moments
    seed: int
    is_tolerant: bool = False
    say: Callable[[str], None] = lambda _: None
    on_result: Callable[[Result], None] = lambda _: None
    _seeds: list[Outcome] = field(default_factory=list)

    def run(self, scenarios: Sequence[Scenario]) -> Rehearsal:
        """Everything. Raises RlaunchError when a run can't even be submitted; leaves no process behind."""
        theatre = Theatre(self.config, self.directory, self.moments, seed=self.seed)
        try:
            self.say("A reference: uninterrupted")
            reference = theatre.perform("a-reference")
            if (problem := judge_reference(reference)) is not None:
                return self._answer("unusable", problem.why, problem.hint, reference, [])
            results: list[Result] = []
            for scenario in scenarios:
                results.append(self._rehearse(theatre, scenario, reference))
                self.on_result(results[-1])
            return self._conclude(theatre, reference, results)
        finally:
            theatre.close()

    def _rehearse(self, theatre: Theatre, scenario: Scenario, reference: Outcome) -> Result:
        num_ranks = reference.records[0].world_size
        if num_ranks < scenario.needs_ranks:
            why = f"needs {scenario.needs_ranks} ranks, the job has {num_ranks}"
            return Result(scenario=scenario, judgement=Judgement(verdict="skip", why=why))
        self.say(f"{scenario.letter} {scenario.name}: {scenario.fault}")
        drops = reference.records[0].pieces if scenario.drops else ()
        outcome = theatre.perform(f"{scenario.letter.lower()}-{scenario.name}", scenario, drops=drops)
        if scenario.is_exact:
            judgement = judge_exact(scenario, outcome, reference, drops)
            if judgement.verdict == "fail" and judgement.step is not None and self.is_tolerant:
                judgement = self._tolerate(theatre, outcome, reference)
        else:
            judgement = self._tolerate(theatre, outcome, reference)
        return Result(scenario=scenario, judgement=judgement, outcome=outcome)

    def _tolerate(self, theatre: Theatre, outcome: Outcome, reference: Outcome) -> Judgement:
        after = next((step for step in outcome.seen.resume_steps[1:]), 0)
        return judge_tolerant(outcome, reference, self._tolerance(theatre, reference, after), after=after)

    def _tolerance(self, theatre: Theatre, reference: Outcome, after: int) -> Tolerance | None:
        """From runs of other seeds, made once and only when they are needed."""
        name = loss_name(reference.records)
        if name is None:
            return None
        while len(self._seeds) < NUM_SEEDS:
            number = len(self._seeds) + 1
            self.say(f"the same with another seed, for the tolerance ({number} of {NUM_SEEDS})")
            self._seeds.append(theatre.perform(f"seed-{number}", seed_offset=1000 * number))
        return tolerance([curve(each.records, name) for each in (reference, *self._seeds)], after=after)

    def _conclude(self, theatre: Theatre, reference: Outcome, results: list[Result]) -> Rehearsal:
        failed = [each for each in results if each.judgement.verdict == "fail"]
        if not failed:
            is_exact = all(each.judgement.test == "bit-exact" for each in results if each.scenario.is_exact)
            return self._answer("identical" if is_exact else "within tolerance", "", "", reference, results)
        if any(each.judgement.step is not None for each in failed):
            self.say("A once more: do two uninterrupted runs agree?")
            again = theatre.perform("a-reference-again")
            found = first_difference(reference.records, again.records)
            explained = explain_two_references(found, reference.lines, again.lines)
            if explained is not None:
                blamed = [
                    replace(each, judgement=replace(each.judgement, piece=explained.piece, hint=explained.hint))
                    if each.judgement.verdict == "fail" and each.judgement.step is not None
                    else each
                    for each in results
                ]
                return self._answer("not deterministic", explained.why, explained.hint, reference, blamed)
        return self._answer("different", "", "", reference, results)

    def _answer(
        self, verdict: Overall, why: str, hint: str, reference: Outcome, results: Sequence[Result]
    ) -> Rehearsal:
        return Rehearsal(
            name=self.config.name,
            verdict=verdict,
            why=why,
            hint=hint,
            moments=self.moments,
            seed=self.seed,
            directory=self.directory,
            reference=reference,
            results=results,
        )
