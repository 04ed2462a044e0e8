"""A worker that is killed, and its group that goes on from the nodes' memory, or from shared storage where it must."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from integration_bench import TRAINING, RunBench

from resilient_launch.core.events import read_events

pytestmark = pytest.mark.slow
CHECKPOINT = {"every": "80 steps", "local_every_steps": 7}
KILL = "os._exit(9)"
LOSE = "[path.unlink() for path in Path(os.environ['RLAUNCH_PAGE_DIR']).glob('writer.*.label')]; " + KILL
LOG = "run.log(step, loss=loss.item())"
assert LOG in TRAINING
# Whatever ends the first group finds the save of step 80 on shared storage, and the next one far away.
PATIENT = TRAINING.replace(
    LOG,
    LOG
    + """
            if run.restart == 0 and step >= 101:
                saved = Path(os.environ["RLAUNCH_RUN_DIR"], "checkpoints", "step-00000080.a0000.r0")
                while not saved.exists():
                    time.sleep(0.01)
                time.sleep(0.5)
""",
)


def resumes(bench: RunBench, name: str) -> list[dict[str, Any]]:
    found = [event for event in read_events(bench.paths(name).events) if event["kind"] == "resume"]
    return sorted(found, key=lambda event: int(event["restart"]))


def test_a_killed_worker_on_one_of_two_nodes_goes_on_from_memory(
    bench: RunBench, reference: Callable[[int], str]
) -> None:
    (bench.workdir / "train.py").write_text(PATIENT)
    faults = [{"at": {"step": 101}, "do": "kill-worker", "rank": 1}]
    config = bench.config("killed", ["--step-s", "0.02"], nodes=2, checkpoint=CHECKPOINT, faults=faults)
    done = bench.rlaunch("submit", str(config), "--wait")
    assert done.returncode == 0, bench.trace("killed")
    assert bench.digest("killed") == reference(2)
    _, again = resumes(bench, "killed")
    assert again["tier"] == "local"
    # Newer than what shared storage has, and no older than the last copy before the kill.
    assert again["resume_step"] >= 98
    assert again["resume_step"] % 7 == 0
    assert "complete on every rank; the newest on shared storage is step-00000080.a0000.r0" in again["tier_why"]
    said = bench.rlaunch("status", "killed").stdout
    assert re.search(r"attempt 0, worker group 1: went on from step \d+ in the nodes' memory: complete", said)
    assert "in the nodes' memory" in re.sub(r"\s+", " ", bench.rlaunch("report", "killed").stdout)


def test_a_node_that_lost_its_copies_sends_all_to_shared_storage(
    bench: RunBench, reference: Callable[[int], str]
) -> None:
    (bench.workdir / "train.py").write_text(PATIENT.replace(KILL, LOSE))
    args = ["--step-s", "0.02", "--crash-once-at", "101"]
    bench.submit(bench.config("lost", args, nodes=2, checkpoint=CHECKPOINT))
    bench.wait("lost")
    assert bench.digest("lost") == reference(2)
    _, again = resumes(bench, "lost")
    assert (again["tier"], again["resume_step"]) == ("shared", 80)
    assert "rank 0 has no snapshot in memory" in again["tier_why"]
