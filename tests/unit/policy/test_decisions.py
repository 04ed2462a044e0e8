"""The documented decision table says what the code does, and the code does what is right in every row."""

import pytest

from resilient_launch.policy.decisions import DOCUMENT, render, rows

EXPECTED = {
    "preemption": ("preempted", "requeue"),
    "end of a preemption's grace": ("preempted", "requeue"),
    "time limit comes near": ("time_limit", "requeue"),
    "time limit": ("time_limit", "requeue"),
    "limit in front of a maintenance": ("maintenance", "requeue"),
    "a person or a site's script": ("yielded", "requeue"),
    "rlaunch yield": ("yielded", "requeue"),
    "rlaunch drain": ("maintenance", "requeue"),
    "rlaunch stop": ("cancelled", "stop"),
    "scancel": ("cancelled", "cancel"),
    "killed after a notice": ("preempted", "requeue"),
    "first node lost, or power cut": ("node_failure", "requeue"),
    "first node lost": ("node_failure", "requeue"),
    "killed without a word at the limit": ("time_limit", "requeue"),
    "killed without a word by a preemption": ("preempted", "requeue"),
    "memory ran out on the batch host": ("out_of_memory", "requeue"),
    "batch script ended by itself": ("crash", "requeue"),
    "last step done": ("finished", "done"),
    "last step done after a notice": ("finished", "done"),
    "worker died": ("crash", "requeue"),
    "node lost": ("node_failure", "requeue"),
    "ranks stood still": ("hang", "requeue"),
    "memory ran out": ("out_of_memory", "requeue"),
    "the same failure without progress": ("crash", "fail"),
    "the same failure, after progress": ("crash", "requeue"),
    "another failure": ("node_failure", "requeue"),
    "same step again and again": ("crash", "fail"),
    "a checkpoint leads nowhere": ("crash", "requeue"),
    "import or syntax error": ("crash", "fail"),
    "wrong usage, or no such command": ("crash", "fail"),
    "exception on every rank": ("crash", "fail"),
}


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.case)
def test_row(row: object) -> None:
    assert (row.cause, row.decision.action) == EXPECTED[row.case]


def test_every_case_has_its_row_once() -> None:
    assert [row.case for row in rows()] == list(EXPECTED)


def test_the_document_is_what_the_code_says() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == render()


def test_what_stops_a_run_says_what_to_do() -> None:
    assert all(row.decision.hint for row in rows() if row.decision.action in ("fail", "stop"))
