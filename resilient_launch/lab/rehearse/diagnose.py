"""From the first difference to the piece of the training state that is probably missing. Values in, values out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from resilient_launch.lab.rehearse.compare import INPUTS, RATE, VALUES, Difference

UNREGISTERED = "unregistered optimizer"
_EPOCH_FROM_S, _EPOCH_TO_S = 1.0e9, 4.2e9
"""Seconds since 1970 from 2001 to 2103: a number in there that changes from run to run is probably the time of day."""
_DATE = re.compile(r"20\d\d-\d\d-\d\d[T ]\d\d:")
_SWITCHES = (
    "torch.use_deterministic_algorithms(True) makes torch use, or ask for, deterministic kernels; on CUDA also set "
    "CUBLAS_WORKSPACE_CONFIG=:4096:8 and torch.backends.cudnn.benchmark = False"
)


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """``piece`` is the likely culprit in a word or two, ``why`` how one can tell, ``hint`` what to try."""

    piece: str
    why: str
    hint: str


def diagnose(found: Difference) -> Diagnosis:
    """The likely missing piece behind the first difference of a run that was resumed."""
    return _at_resume(found) if found.is_at_resume else _after_resume(found)


def _at_resume(found: Difference) -> Diagnosis:
    where = f"right after the resume from step {found.record.resumed_from}, before any step"
    if found.parts("rng") and not found.parts("model"):
        which = ", ".join(name for name in found.what if name.startswith("rng"))
        return Diagnosis(
            piece="rng",
            why=f"the random state ({which}) is not the saved one {where}",
            hint="something seeds or draws after run.restore: call run.seed before it, and draw nothing in between",
        )
    name = next((name for name in found.what if name not in (RATE, INPUTS, VALUES)), found.what[0])
    return Diagnosis(
        piece=name,
        why=f"{name} is not what was saved {where}",
        hint=f"is {name} made anew, or changed, after run.restore? restore last, just before the loop",
    )


def _after_resume(found: Difference) -> Diagnosis:
    step, pieces = found.step, found.record.pieces
    equal = [word for name, word in ((INPUTS, "data"), (RATE, RATE)) if name in found.equal]
    if any(name.startswith("rng") for name in found.equal) and not found.parts("rng"):
        equal.append("RNG")
    others = f" ({', '.join(equal)} equal)" if equal else ""
    if INPUTS in found.what or found.parts("data"):
        if "data" not in pieces:
            return Diagnosis(
                piece="data",
                why=f"the data of step {step} are not the uninterrupted run's, and the state has no data entry",
                hint="is the sampler in the state? rl.TrainState(..., data=sampler)",
            )
        return Diagnosis(
            piece="data",
            why=f"the data of step {step} are not the uninterrupted run's, although the position is saved",
            hint="make the iterator after run.restore; loaders of torch's own draw from the global generator: use "
            "checkpoint.loader.resumable_loader",
        )
    if RATE in found.what:
        known = any(name.startswith("lr_scheduler") for name in pieces)
        hint = "does it depend on more than its state_dict?" if known else "rl.TrainState(..., lr_scheduler=schedule)"
        return Diagnosis(
            piece="lr_scheduler",
            why=f"the learning rate differs from step {step}{others}",
            hint=hint if known else f"is the schedule in the state? {hint}",
        )
    if found.parts(UNREGISTERED):
        return Diagnosis(
            piece="optimizer",
            why=f"optimizer state differs from step {step}{others}, and no entry of the state holds that optimizer",
            hint="is the optimizer registered? rl.TrainState(..., optimizer=optimizer)",
        )
    if found.parts("rng"):
        return Diagnosis(
            piece="rng",
            why=f"step {step} drew other random numbers, from the same random state",
            hint="a generator of its own belongs into the state: rl.TrainState(..., generator=generator)",
        )
    what = next((name for name in found.what if name not in (RATE, INPUTS, VALUES)), VALUES)
    hint = "is there more state than the TrainState holds (an average, a scaler, a cache, a buffer)?"
    if found.record.world_size > 2:
        hint += " DistributedDataParallel on more than two ranks needs find_unused_parameters=True"
    return Diagnosis(piece="unknown", why=f"{what} differs from step {step}{others}", hint=hint)


def explain_two_references(found: Difference | None, one: Sequence[str], two: Sequence[str]) -> Diagnosis | None:
    """Why two uninterrupted runs differ; None where they don't. ``one`` and ``two`` are the lines of their digests."""
    stamps = sorted(_time_stamps(one, two))
    stamped = {stamp.split("/")[0] for stamp in stamps}
    rest = [] if found is None else [name for name in found.what if name not in stamped]
    if stamps and not rest:
        return Diagnosis(
            piece="time stamp",
            why=f"{stamps[0]} is the time of day: it differs in two uninterrupted runs",
            hint="leave it out of the state, or no two runs can end in equal states",
        )
    if found is None:
        if list(one) == list(two):
            return None
        return Diagnosis(
            piece="non-determinism", why="the final states of two uninterrupted runs differ", hint=_SWITCHES
        )
    step = found.step
    if step == 0:
        what = ", ".join(found.what)
        return Diagnosis(
            piece="non-determinism",
            why=f"two uninterrupted runs differ before their first step, in {what}",
            hint="seed before anything is made: run.seed(1234) right after rl.attach()",
        )
    if INPUTS in found.what:
        return Diagnosis(
            piece="non-determinism",
            why=f"two uninterrupted runs differ at step {step}, in their data",
            hint="seed what shuffles and what augments; rl.ResumableSampler takes a seed",
        )
    if found.parts("rng"):
        return Diagnosis(
            piece="non-determinism",
            why=f"two uninterrupted runs differ at step {step}: they drew different random numbers",
            hint="look for draws that depend on time, on threads or on the order of a set",
        )
    what = ", ".join(found.what[:3])
    return Diagnosis(
        piece="non-determinism", why=f"two uninterrupted runs differ at step {step}, in {what}", hint=_SWITCHES
    )


def _time_stamps(one: Sequence[str], two: Sequence[str]) -> Iterator[str]:
    """Values in the state that differ and look like seconds since 1970, as entry/key."""
    for left, right in zip(one, two, strict=False):
        first, second = left.split(" ", 2), right.split(" ", 2)
        if left != right and first[:2] == second[:2] and first[0] == "entry":
            try:
                yield from _differing_times(json.loads(first[2]), json.loads(second[2]), first[1])
            except ValueError:
                continue


def _differing_times(one: object, two: object, where: str) -> Iterator[str]:
    if isinstance(one, dict) and isinstance(two, dict):
        for key in one.keys() & two.keys():
            yield from _differing_times(one[key], two[key], f"{where}/{key}")
    elif isinstance(one, list) and isinstance(two, list):
        for number, (left, right) in enumerate(zip(one, two, strict=False)):
            yield from _differing_times(left, right, f"{where}/{number}")
    elif one != two and _is_time(one) and _is_time(two):
        yield where


def _is_time(value: object) -> bool:
    if isinstance(value, str):
        return bool(_DATE.match(value))
    return isinstance(value, int | float) and _EPOCH_FROM_S < value < _EPOCH_TO_S
