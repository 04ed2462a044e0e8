"""A page is shared memory: what one process writes, the other reads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from resilient_launch.core.causes import Cause, Notice
from resilient_launch.job.page import Action, Outcome, Page, Phase, Reason

FIELDS = {
    "pid": 7,
    "phase": int(Phase.SAVE),
    "step": 2**40,
    "resume_step": 3,
    "outcome": int(Outcome.STOPPED),
    "saved_step": 5,
    "beat_mono": 1.5,
    "step_s": 0.25,
    "saved_mono": 9.75,
    "done_round": 4,
    "hold": 11,
    "hold_round": 2,
    "word": 6,
    "action": int(Action.SAVE_AND_STOP),
    "reason": int(Reason.REQUEST),
    "deadline": 1e9,
    "notice_cause": 2,
    "notice_deadline": 12.5,
}


def test_fresh_pages_say_that_nothing_has_begun(tmp_path: Path) -> None:
    for page in (Page.create(tmp_path / "page"), Page.private()):
        assert (page.step, page.resume_step, page.saved_step, page.hold) == (-1, -1, -1, -1)
        assert (page.word, page.action, page.outcome, page.phase) == (0, Action.NONE, Outcome.NONE, Phase.INIT)
        assert page.notice is None and page.beat_mono > 0


def test_no_two_fields_share_a_place(tmp_path: Path) -> None:
    page = Page.create(tmp_path / "page")
    for name, value in FIELDS.items():
        setattr(page, name, value)
    assert {name: getattr(page, name) for name in FIELDS} == FIELDS
    assert {name: getattr(Page.open(tmp_path / "page"), name) for name in FIELDS} == FIELDS


def test_another_process_sees_a_write(tmp_path: Path) -> None:
    page = Page.create(tmp_path / "page")
    code = (
        "import sys; from pathlib import Path; from resilient_launch.job.page import Page\n"
        "page = Page.open(Path(sys.argv[1])); page.step = 41 + page.word"
    )
    page.word = 1
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "page")], check=True, timeout=60)
    assert page.step == 42


def test_only_the_owner_may_read_it_and_a_taken_name_is_refused(tmp_path: Path) -> None:
    Page.create(tmp_path / "page")
    assert (tmp_path / "page").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        Page.create(tmp_path / "page")


@pytest.mark.parametrize("cause", list(Cause))
@pytest.mark.parametrize("deadline", [None, 1_800_000_000.5])
def test_a_notice_comes_through(cause: Cause, deadline: float | None) -> None:
    page = Page.private()
    page.set_notice(Notice(cause=cause, deadline=deadline, source="SIGTERM"))
    assert page.notice is not None
    assert (page.notice.cause, page.notice.deadline) == (cause, deadline)
