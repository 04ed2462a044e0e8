"""What a rehearsal and the workers tell each other, and ends inside a save."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from resilient_launch.job.rehearsal import Instructions, Mishap, Stage
from resilient_launch.lab.rehearse.traces import read_traces

SAVE = """
import errno, os, signal, sys
from pathlib import Path
from resilient_launch.checkpoint.store import write_buffers
from resilient_launch.core.ids import CheckpointId
from resilient_launch.job.mishaps import at_file_of_save

def refuse():
    raise OSError(errno.ENOSPC, "no space")

ends = {"kill": lambda: os.kill(os.getpid(), signal.SIGKILL), "refuse": refuse}
directory = Path(sys.argv[1])
at_file_of_save(directory, 2, num_files=1, end=ends[sys.argv[2]])
for step in (1, 2, 3):
    try:
        write_buffers(directory, CheckpointId(attempt=0, restart=0, step=step), {"a.bin": b"a", "b.bin": b"b"})
    except Exception as error:
        print(type(error).__name__, flush=True)
"""


def test_instructions_survive_the_file_that_they_travel_in(tmp_path: Path) -> None:
    told = Instructions(
        stage=tmp_path,
        steps=40,
        seed_offset=3,
        pace_s=0.5,
        mishaps=(Mishap(kind="kill", step=4), Mishap(kind="gate", step=2, rank=None, attempt=1)),
        drops=("model", "rng"),
    )
    assert Instructions.parse(told.render()) == told


def test_a_mark_is_set_once_and_read_in_order(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.make()
    assert not stage.is_marked("at.2")
    assert stage.mark("at.2", pid=7) and stage.mark("at.1", pid=8) and not stage.mark("at.2", pid=9)
    assert stage.read_marks("at.") == {"at.2": {"pid": 7}, "at.1": {"pid": 8}}
    assert stage.is_marked("at.1") and stage.read_marks("of.") == {}


def test_what_a_worker_traced_is_there_after_a_kill(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom resilient_launch.job.rehearsal import Stage\n"
        "stage = Stage(Path(sys.argv[1]))\nstage.make()\ntrace = stage.trace(1, 2, 3)\n"
        "trace.write(step=4, attempt=1, restart=2, rank=3, pieces=['model'])\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    (record,) = read_traces(tmp_path / "traces")
    assert (record.step, record.life, record.rank, record.pieces) == (4, (1, 2), 3, ("model",))


@pytest.mark.parametrize("end", ["kill", "refuse"])
def test_an_end_comes_inside_the_save_that_is_meant(tmp_path: Path, end: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SAVE, str(tmp_path), end], capture_output=True, text=True, timeout=60, check=False
    )
    names = sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(("step", ".tmp-step")))
    if end == "kill":
        assert done.returncode == -signal.SIGKILL
        torn, whole = names
        assert whole.startswith("step-00000001") and torn.startswith(".tmp-step-00000002")
        assert [path.name for path in (tmp_path / torn).iterdir()] == ["a.bin"]
    else:
        assert (done.returncode, done.stdout) == (0, "CheckpointError\n"), done.stderr
        assert [name.split(".")[0] for name in names] == ["step-00000001", "step-00000003"]
