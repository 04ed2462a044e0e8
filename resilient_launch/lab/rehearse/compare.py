"""The first moment at which an interrupted run is not the uninterrupted one. Values in, values out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from resilient_launch.lab.rehearse.traces import Record

INPUTS, RATE, VALUES = "inputs", "learning rate", "values"
"""What can differ beside the pieces of the state: the step's data, the learning rate, what the script logged."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Where two runs part. ``what`` names everything that differs there, ``equal`` what was compared and does not.

    ``tensors`` are the differing tensors' names, ``record`` is the interrupted run's side of it.
    """

    record: Record
    what: tuple[str, ...]
    equal: tuple[str, ...]
    tensors: tuple[str, ...] = ()

    @property
    def step(self) -> int:
        return self.record.step

    @property
    def is_at_resume(self) -> bool:
        """Whether no step was taken between the restore and this."""
        return self.record.is_first and self.record.resumed_from is not None

    def parts(self, prefix: str) -> bool:
        """Whether a piece called ``prefix``, or a member of it, differs."""
        return any(name == prefix or name.startswith((f"{prefix}.", f"{prefix} ")) for name in self.what)


def first_difference(reference: Sequence[Record], other: Sequence[Record]) -> Difference | None:
    """Compare every record of ``other``, steps that were taken twice included, with the reference's of rank and step.

    Records of steps and ranks that the reference does not have, and of lives that were made to forget, are left out.
    """
    known = {(each.rank, each.step): each for each in reference}
    for record in other:
        expected = known.get((record.rank, record.step))
        if expected is not None and record.dropped is None and (found := compare(expected, record)) is not None:
            return found
    return None


def compare(expected: Record, found: Record) -> Difference | None:
    """Everything in which two records of one rank and step differ; None where they are equal."""
    pairs: dict[str, tuple[object, object]] = {
        name: (expected.parts[name], found.parts[name]) for name in expected.parts if name in found.parts
    }
    if len(expected.learning_rates) == len(found.learning_rates) > 0:
        pairs[RATE] = (expected.learning_rates, found.learning_rates)
    # At its first moment a life has taken no step, so it knows neither data nor loss.
    if not (found.is_first or expected.is_first):
        if expected.inputs is not None and found.inputs is not None:
            pairs[INPUTS] = (expected.inputs, found.inputs)
        common = expected.values.keys() & found.values.keys()
        if common:
            # As text: a loss that is NaN both times is the same loss.
            pairs[VALUES] = tuple(str({key: each.values[key] for key in sorted(common)}) for each in (expected, found))  # type: ignore[assignment]
    what = tuple(name for name, (one, two) in pairs.items() if one != two)
    if not what:
        return None
    tensors = tuple(
        key for key, digest in expected.tensors.items() if key in found.tensors and found.tensors[key] != digest
    )
    return Difference(record=found, what=what, equal=tuple(name for name in pairs if name not in what), tensors=tensors)
