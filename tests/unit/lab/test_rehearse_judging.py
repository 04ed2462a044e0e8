"""What a rehearsal concludes from what it saw: the first difference, the likely missing piece, the tolerance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from resilient_launch.core.errors import UsageError
from resilient_launch.core.paths import RunPaths
from resilient_launch.lab.rehearse.compare import first_difference
from resilient_launch.lab.rehearse.diagnose import diagnose, explain_two_references
from resilient_launch.lab.rehearse.judge import judge_exact, judge_reference, judge_tolerant
from resilient_launch.lab.rehearse.performance import Outcome
from resilient_launch.lab.rehearse.scenarios import SCENARIOS, Moments, Seen, choose
from resilient_launch.lab.rehearse.tolerance import distance, tolerance
from resilient_launch.lab.rehearse.traces import Record, curve, loss_name, read_traces

STEPS, SAVED = 16, 8
PIECES = ("model", "optimizer", "lr_scheduler", "data", "rng", "step")
CRASH = choose(["crash"])[0]


def record(step: int, **changes: Any) -> Record:
    """What a whole run has at ``step``: every digest is a function of it."""
    names = ("model", "optimizer", "lr_scheduler", "data", "rng.torch")
    plain = Record(
        step=step,
        pieces=PIECES,
        is_first=step == 0,
        parts={name: f"{name}{step}" for name in names},
        tensors={"model/head": f"head{step}", "model/tail": f"tail{step}"},
        learning_rates=(1.0 / (step + 1),),
        inputs=f"data{step}",
        values={"loss": 10.0 - step / 10},
    )
    return replace(plain, **changes)


REFERENCE = [record(step) for step in range(STEPS + 1)]


def resumed(**changes: Any) -> list[Record]:
    """A life that went on from step 8. ``changes`` hold from the first step after it on."""
    first = record(SAVED, restart=1, resumed_from=SAVED, is_first=True, inputs=None, values={})
    return [first, *(_changed(step, changes) for step in range(SAVED + 1, STEPS + 1))]


def _changed(step: int, changes: dict[str, Any]) -> Record:
    plain = record(step, restart=1, resumed_from=SAVED)
    parts = {**plain.parts, **changes.get("parts", {})}
    return replace(plain, **{**changes, "parts": parts})


def outcome(records: Sequence[Record], **changes: Any) -> Outcome:
    seen = Seen(
        moments=Moments.of(STEPS),
        causes=["finished"],
        resume_steps=[0, 4, 12],
        restores=True,
        quarantined=[],
        saves=[("durable", "steps", SAVED), ("durable", "end", STEPS)],
        marks=changes.pop("marks", {}),
    )
    seen = replace(seen, **changes.pop("seen", {}))
    plain = Outcome(
        name="b-crash",
        paths=RunPaths(Path("/nowhere/b-crash")),
        is_finished=True,
        reason="the last step is done",
        error="",
        attempts=(),
        records=records,
        digest="d",
        lines=["entry train {}"],
        seen=seen,
        seconds=1.0,
    )
    return replace(plain, **changes)


WHOLE = outcome(REFERENCE)


def test_an_equal_run_has_no_difference() -> None:
    assert first_difference(REFERENCE, [*REFERENCE, *resumed()]) is None
    assert judge_exact(CRASH, outcome([*REFERENCE, *resumed()]), WHOLE).verdict == "pass"


def test_the_first_difference_is_the_first_in_time_and_names_its_tensor() -> None:
    lives = [*REFERENCE, *resumed(parts={"model": "other"}, tensors={"model/head": "head9", "model/tail": "other"})]
    found = first_difference(REFERENCE, lives)
    assert found is not None
    assert (found.step, found.what, found.tensors) == (SAVED + 1, ("model",), ("model/tail",))
    assert {"optimizer", "rng.torch", "inputs", "learning rate"} <= set(found.equal)


def test_a_step_computed_twice_must_come_out_twice() -> None:
    wrong_once = [record(3, values={"loss": 99.0}), *REFERENCE]
    found = first_difference(REFERENCE, wrong_once)
    assert found is not None and (found.step, found.what) == (3, ("values",))


def test_a_loss_that_is_not_a_number_both_times_is_the_same() -> None:
    nan = [record(3, values={"loss": float("nan")})]
    assert first_difference(nan, [record(3, values={"loss": float("nan")})]) is None


@pytest.mark.parametrize(
    ("changes", "piece", "word"),
    [
        ({"inputs": "other", "pieces": ("model", "rng")}, "data", "TrainState(..., data=sampler)"),
        ({"inputs": "other"}, "data", "after run.restore"),
        ({"learning_rates": (0.5,), "pieces": ("model", "optimizer", "rng")}, "lr_scheduler", "lr_scheduler=schedule"),
        (
            {"parts": {"unregistered optimizer": "other", "model": "other"}, "pieces": ("model", "rng")},
            "optimizer",
            "is the optimizer registered?",
        ),
        ({"parts": {"rng.torch": "other", "model": "other"}}, "rng", "a generator of its own"),
        ({"parts": {"model": "other"}}, "unknown", "more state than the TrainState holds"),
        ({"parts": {"model": "other"}, "world_size": 4}, "unknown", "find_unused_parameters"),
    ],
)
def test_the_missing_piece_after_a_resume(changes: dict[str, Any], piece: str, word: str) -> None:
    reference = [replace(each, parts={**each.parts, "unregistered optimizer": "kept"}) for each in REFERENCE]
    found = first_difference(reference, resumed(**changes))
    assert found is not None
    diagnosis = diagnose(found)
    assert diagnosis.piece == piece and word in diagnosis.hint and f"step {SAVED + 1}" in diagnosis.why


@pytest.mark.parametrize(("part", "piece"), [("rng.torch", "rng"), ("data", "data"), ("optimizer", "optimizer")])
def test_what_differs_before_any_step_was_not_restored_or_was_changed(part: str, piece: str) -> None:
    lives = resumed()
    lives[0] = replace(lives[0], parts={**lives[0].parts, part: "other"})
    judgement = judge_exact(CRASH, outcome(lives), WHOLE)
    assert (judgement.verdict, judgement.piece, judgement.step) == ("fail", piece, SAVED)
    assert "before any step" in judgement.why and "after run.restore" in judgement.hint


def test_a_file_overwritten_in_place_is_named_when_the_run_suffers() -> None:
    marks = {"own-save": {"path": "/run/own.pt", "existed": True}}
    torn = outcome(REFERENCE, marks=marks, is_finished=False)
    assert judge_exact(CRASH, torn, WHOLE).piece == "saves in place"
    assert judge_exact(CRASH, outcome(REFERENCE, marks=marks), WHOLE).verdict == "pass"
    beside = {"own-save": {"path": "/run/own.pt.new", "existed": False}}
    assert judge_exact(CRASH, replace(torn, seen=replace(torn.seen, marks=beside)), WHOLE).piece == "run"


def test_a_job_that_never_resumes_is_told_so_although_it_ends_equal() -> None:
    judgement = judge_exact(CRASH, outcome(REFERENCE, seen={"resume_steps": [0, 0, 0]}), WHOLE)
    assert judgement.piece == "restore" and "never resumes" in judgement.why


def test_a_notice_without_a_save_is_ignored() -> None:
    (preempt,) = choose(["preempt"])
    told = {"causes": ["preempted", "finished"], "saves": [("durable", "steps", SAVED)]}
    judgement = judge_exact(preempt, outcome(REFERENCE, seen=told), WHOLE)
    assert (judgement.verdict, judgement.piece) == ("fail", "notice") and "ignores notices" in judgement.why
    saved = {**told, "saves": [("durable", "notice", 9)]}
    assert judge_exact(preempt, outcome(REFERENCE, seen=saved), WHOLE).verdict == "pass"


def test_final_states_that_differ_without_a_step_that_does() -> None:
    other = outcome(REFERENCE, digest="e", lines=["entry train {}", "entry ema 7"])
    judgement = judge_exact(CRASH, other, WHOLE)
    assert (judgement.verdict, judgement.piece) == ("fail", "ema")


def test_references_that_can_not_be_rehearsed() -> None:
    assert judge_reference(WHOLE) is None
    for broken, piece, word in (
        (outcome([]), "attach", "never checkpoints"),
        (outcome([], is_finished=False), "attach", "no step was seen: "),
        (outcome(REFERENCE, is_finished=False), "run", "did not finish"),
        (outcome(REFERENCE, seen={"saves": []}), "checkpoint", "never checkpoints"),
    ):
        judgement = judge_reference(broken)
        assert judgement is not None and judgement.piece == piece and word in judgement.why


def test_every_piece_that_is_left_out_must_be_seen() -> None:
    (drop,) = choose(["drop"])

    def life(piece: str, **parts: str) -> list[Record]:
        lives = resumed()
        first = replace(lives[0], dropped=piece, parts={**lives[0].parts, **parts})
        return [first, *(replace(each, dropped=piece) for each in lives[1:2])]

    seen = outcome([*REFERENCE, *life("model", model="other")])
    assert judge_exact(drop, seen, WHOLE, ["model"]).verdict == "pass"
    blind = judge_exact(drop, outcome([*REFERENCE, *life("model")]), WHOLE, ["model"])
    assert blind.verdict == "fail" and "leaving out model was not seen" in blind.why
    absent = judge_exact(drop, WHOLE, WHOLE, ["model"])
    assert absent.verdict == "fail" and "never left out" in absent.why
    # A piece that is by chance where it began has nothing to show.
    wrapped = [replace(each, parts={**each.parts, "data": "same"}) for each in REFERENCE]
    lives = [replace(each, parts={**each.parts, "data": "same"}) for each in life("data")]
    idle = judge_exact(drop, outcome([*wrapped, *lives]), outcome(wrapped), ["data"])
    assert idle.verdict == "pass" and "nothing to miss: data" in idle.why


def test_two_references_that_agree_put_the_blame_on_the_resume() -> None:
    assert explain_two_references(None, ["a"], ["a"]) is None


@pytest.mark.parametrize(
    ("step", "changes", "word"),
    [
        (0, {"parts": {"model": "other"}}, "run.seed"),
        (3, {"inputs": "other"}, "seed what shuffles"),
        (3, {"parts": {"rng.torch": "other"}}, "draws"),
        (3, {"parts": {"model": "other"}}, "use_deterministic_algorithms"),
    ],
)
def test_non_determinism_is_said_at_its_step_with_what_to_switch_on(
    step: int, changes: dict[str, Any], word: str
) -> None:
    again = [*REFERENCE]
    again[step] = replace(again[step], **{**changes, "parts": {**again[step].parts, **changes.get("parts", {})}})
    explained = explain_two_references(first_difference(REFERENCE, again), ["a"], ["b"])
    assert explained is not None
    assert explained.piece == "non-determinism" and word in explained.hint
    assert ("before their first step" if step == 0 else f"at step {step}") in explained.why


def test_time_stamps_in_the_state_are_named() -> None:
    one = ['entry notes {"saved_at":1795976600.5,"version":1}', "tensor model/head float32 [2] aa"]
    two = ['entry notes {"saved_at":1795976633.5,"version":1}', "tensor model/head float32 [2] aa"]
    again = [replace(each, parts={**each.parts, "notes": "other"}) for each in REFERENCE]
    reference = [replace(each, parts={**each.parts, "notes": "one"}) for each in REFERENCE]
    explained = explain_two_references(first_difference(reference, again), one, two)
    assert explained is not None and explained.piece == "time stamp" and "notes/saved_at" in explained.why
    dated = explain_two_references(None, ['entry notes "2026-01-02T03:04:05"'], ['entry notes "2026-01-02T03:04:09"'])
    assert dated is not None and dated.piece == "time stamp"


def test_the_tolerance_is_what_other_seeds_show() -> None:
    flat, up, far = (dict.fromkeys(range(10), value) for value in (1.0, 1.5, 4.0))
    assert distance(flat, up) == pytest.approx(0.5)
    assert distance(flat, {20: 1.0}) is None
    found = tolerance([flat, up])
    assert found is not None and found.limit == pytest.approx(1.0) and "2 times" in found.test
    assert tolerance([flat, up], after=9) is None
    (changed,) = choose(["world-size"])
    assert not changed.is_exact

    def ended(level: float) -> Outcome:
        return outcome([record(step, values={"loss": level}) for step in range(1, 10)])

    assert judge_tolerant(ended(1.9), ended(1.0), found, after=4).verdict == "pass"
    beyond = judge_tolerant(ended(far[0]), ended(1.0), found, after=4)
    assert (beyond.verdict, beyond.piece) == ("fail", "loss") and "of different seeds" in beyond.test
    assert (
        judge_tolerant(outcome([record(1, values={})]), outcome([record(1, values={})]), None, after=0).verdict
        == "skip"
    )


def test_moments_lie_between_saves_and_scenarios_are_chosen_by_letter_or_name() -> None:
    for steps in (16, 40, 60):
        moments = Moments.of(steps)
        for number in range(1, 8):
            assert moments.save(number) < moments.between(number) < moments.save(number + 1) <= steps
    for steps in (15, 61):
        with pytest.raises(UsageError, match="16 to 60"):
            Moments.of(steps)
    assert [each.letter for each in SCENARIOS] == list("BCDEFGHIJKLMNO")
    assert [each.name for each in choose(["o", "crash"])] == ["crash", "zombie"]
    assert choose([]) == SCENARIOS
    with pytest.raises(UsageError, match="is not one"):
        choose(["storm"])


def test_traces_are_read_life_by_life_and_torn_lines_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a0000.r1.w00000.jsonl").write_bytes(b'{"step":4,"restart":1,"values":{"loss":1.5}}\n{"step":5,"rest')
    (tmp_path / "a0000.r0.w00000.jsonl").write_bytes(b'{"step":4,"values":{"rate":3,"loss":2.5},"new_field":1}\n')
    found = read_traces(tmp_path)
    assert [each.life for each in found] == [(0, 0), (0, 1)]
    assert loss_name(found) == "loss" and curve(found, "loss") == {4: 1.5}
