"""What storage, a device or the user's own code can do to a save in the background: it fails, everywhere, and alone."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from leaving_out import leave_out
from ranks_training import checkpointer, path_of
from real_ranks import Rank, Ranks
from test_background import DEADLINE_S, Place
from waiting import wait_for

from resilient_launch.checkpoint.background.saving import Background
from resilient_launch.checkpoint.train_state import TrainState
from resilient_launch.core.errors import CheckpointError


@contextmanager
def failing(pid: int, call: str, error: str) -> Iterator[None]:
    """The process's next calls of ``call`` fail."""
    with tempfile.NamedTemporaryFile("r", dir="/tmp") as said:
        inject = f"--inject={call}:error={error}"
        tracer = subprocess.Popen(["strace", "-f", "-p", str(pid), "-o", "/dev/null", inject], stderr=said.fileno())
        try:
            wait_for(lambda: "attached" in Path(said.name).read_text(), what="strace")
            yield
        finally:
            tracer.terminate()
            tracer.wait(DEADLINE_S)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        ("pwrite64", "EIO", "Input/output error"),
        ("pwrite64", "EDQUOT", "quota exceeded"),
        ("fsync", "EIO", "Input/output error"),
        ("mkdir", "EROFS", "Read-only file system"),
        ("rename", "ESTALE", "Stale file handle"),
    ],
)
def test_an_error_of_the_storage_reaches_the_loop_and_the_next_save_works(
    tmp_path: Path, call: str, error: str, text: str
) -> None:
    leave_out("errors in a running writer", [] if shutil.which("strace") and os.getuid() == 0 else ["strace and root"])
    place = Place(tmp_path / "checkpoints")
    first = place.begin().wait(DEADLINE_S)
    with failing(place.writer(), call, error), pytest.raises(CheckpointError) as caught:
        place.begin(timeout_s=float(DEADLINE_S)).wait(DEADLINE_S)
    said = str(caught.value)
    assert re.search(text, said) and "rank 0" in said and str(place.directory) in said
    assert place.names() == [str(first.id)] or call == "rename"
    third = place.begin().wait(DEADLINE_S)
    assert {str(first.id), str(third.id)} <= set(place.names())
    place.checkpointer.close(DEADLINE_S)


class Fragile:
    """A part of the user's own that can't always say what its state is."""

    def __init__(self) -> None:
        self.is_broken = False

    def state_dict(self) -> dict[str, Any]:
        if self.is_broken:
            raise ValueError("the reader has lost its place")
        return {"place": 1}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def fail_in_the_state(me: Rank, directory: Path, in_background: bool) -> str:
    background = Background(me.board(f"{directory} 0"), rank=me.rank, world_size=me.world_size)
    saver = checkpointer(me, directory, background=background, save_timeout_s=600.0)
    part = Fragile()
    torch.manual_seed(1)
    state = TrainState(model=torch.nn.Linear(7, 7, bias=False), reader=part)
    state.step = 1
    part.is_broken = me.rank == 1
    said = "no error"
    try:
        saver.begin_save(state, in_foreground=not in_background).wait(DEADLINE_S)
    except CheckpointError as error:
        said = str(error)
    part.is_broken = False
    state.step = 2
    saver.begin_save(state, in_foreground=not in_background).wait(DEADLINE_S)
    saver.close(DEADLINE_S)
    return said


@pytest.mark.parametrize("in_background", [True, False])
def test_what_one_ranks_state_raises_is_told_to_all_at_once(
    two_ranks: Ranks, tmp_path: Path, in_background: bool
) -> None:
    # Nobody waits for the save's own limit: it is longer than a test may take.
    for said in two_ranks.values(fail_in_the_state, tmp_path, in_background):
        assert "rank 1: ValueError: the reader has lost its place" in said
    assert [path.name for path in tmp_path.iterdir() if path.name != "LATEST"] == [path_of(tmp_path, 2).name]
