"""What a step loop leaves on its page for the watchdog: phases, and the largest gap of each."""

import time
from pathlib import Path

import pytest
import torch

from resilient_launch.checkpoint.train_state import TrainState
from resilient_launch.config.schema import CheckpointConfig, Every
from resilient_launch.job.page import Page, Phase
from resilient_launch.job.run import Run
from resilient_launch.job.workplace import Workplace


@pytest.fixture
def page(tmp_path: Path) -> Page:
    return Page.create(tmp_path / "page")


@pytest.fixture
def run(tmp_path: Path, page: Page) -> Run:
    for name in ("events", "checkpoints"):
        (tmp_path / name).mkdir()
    return Run(Workplace(tmp_path, page, CheckpointConfig(every=Every(steps=1000))))


def gap_s(page: Page, phase: Phase) -> float:
    return page.floats[Page.largest_gap_s[phase]]


def wait(seconds: float) -> None:
    """What is tested is that time passed."""
    time.sleep(seconds)


def test_a_loop_of_ones_own_goes_through_the_phases(run: Run, page: Page) -> None:
    state = TrainState(model=torch.nn.Linear(1, 1))
    assert page.phase == Phase.INIT and page.pid > 0
    seen, first_gaps_s = [], []
    for pause_s in (0.0, 0.05, 0.02, 0.0):
        run.boundary(state)
        seen.append(Phase(page.phase))
        first_gaps_s.append(gap_s(page, Phase.FIRST_STEP))
        wait(pause_s)
        state.advance()
    assert seen == [Phase.FIRST_STEP, Phase.STEP, Phase.STEP, Phase.STEP]
    # No later step counts for the first one, however long either took on a busy machine.
    assert gap_s(page, Phase.STEP) >= 0.05 and first_gaps_s[1] > 0.0
    assert set(first_gaps_s[1:]) == {gap_s(page, Phase.FIRST_STEP)}


def test_each_phase_keeps_its_own_largest_gap(run: Run, page: Page) -> None:
    state = TrainState(model=torch.nn.Linear(1, 1))
    for _ in range(3):
        run.boundary(state)
        state.advance()
    # What the first save is prepared with after the first step belongs to no step.
    prepared_s = gap_s(page, Phase.SAVE)
    began = time.monotonic()
    with run.phase():
        assert page.phase == Phase.EVAL
        stepped_s = gap_s(page, Phase.STEP)
        wait(0.03)
        run.heartbeat()
        wait(0.06)
        run.stop_requested()
        wait(0.03)
    total_s = time.monotonic() - began
    assert page.phase == Phase.STEP
    # Whatever a busy machine adds to one wait, the other two were no part of it.
    assert 0.06 <= gap_s(page, Phase.EVAL) <= total_s - 0.06
    assert gap_s(page, Phase.STEP) == stepped_s and gap_s(page, Phase.SAVE) == prepared_s


def test_polling_within_a_step_makes_it_no_shorter(run: Run, page: Page) -> None:
    """Else the emergency save would be agreed on for a step far ahead."""
    state = TrainState(model=torch.nn.Linear(1, 1))
    for _ in range(3):
        run.boundary(state)
        state.advance()
    wait(0.2)
    assert list(run.polled(range(3))) == [0, 1, 2]
    run.boundary(state)
    assert page.step_s >= 0.2


class Slow:
    """A part of the state that takes its time."""

    def state_dict(self) -> dict[str, int]:
        wait(0.1)
        return {}

    def load_state_dict(self, state_dict: dict[str, int]) -> None: ...


def test_a_save_is_no_part_of_its_step(run: Run, page: Page) -> None:
    state = TrainState(model=torch.nn.Linear(1, 1), slow=Slow())
    with run:
        for step in run.steps(state, until=4):
            if step == 2:
                page.floats[Page.largest_gap_s[Phase.SAVE]] = page.floats[Page.largest_gap_s[Phase.STEP]] = 0.0
                began = time.monotonic()
                run.checkpoint(state)
        total_s = time.monotonic() - began
        assert page.phase == Phase.STEP
    assert gap_s(page, Phase.SAVE) >= 0.1 and 0.0 < gap_s(page, Phase.STEP) <= total_s - 0.1
    assert page.phase == Phase.LEAVE
