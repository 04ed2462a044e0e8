"""A run whose checkpoints are published by their manifests alone: killed, preempted, and equal to the whole one."""

import json
from collections.abc import Callable

import pytest
from integration_bench import TRAINING, RunBench

pytestmark = pytest.mark.slow


def test_a_run_on_storage_without_rename_ends_as_the_undisturbed_one(
    bench: RunBench, reference: Callable[[int], str]
) -> None:
    # However late the preemption comes, its save is followed by the two that are kept.
    log = "run.log(step, loss=loss.item())"
    assert log in TRAINING
    slowly = f"{log}; time.sleep(0.5 if run.attempt == 0 and step >= 150 else 0.0)"
    (bench.workdir / "train.py").write_text(TRAINING.replace(log, slowly))
    faults = [{"at": {"step": 60}, "do": "kill-worker", "rank": 1}, {"at": {"step": 150}, "do": "preempt"}]
    config = bench.config(
        "manifests",
        ["--step-s", "0.02"],
        workers_per_node=2,
        checkpoint={"every": "40 steps", "commit_by": "manifest", "keep": 2, "digest": "sha256"},
        faults=faults,
    )
    done = bench.rlaunch("submit", str(config), "--wait")
    assert done.returncode == 0, bench.trace("manifests")
    assert bench.digest("manifests") == reference(2)
    assert [int(event["attempt"]) for event in bench.events("manifests", "resume")] == [0, 0, 1]
    directory = bench.paths("manifests").checkpoints
    left = list(directory.iterdir())
    # The two that are to be kept, and the one that training was resumed from.
    assert len(left) == 3
    # Nothing has ever moved, and nothing but whole checkpoints is left.
    assert all((path / ".begun").exists() and (path / "MANIFEST.json").exists() for path in left)
    assert {json.loads((path / "MANIFEST.json").read_bytes())["digest_algorithm"] for path in left} == {"sha256"}
    verified = bench.rlaunch("ckpt", "verify", "manifests", "--json")
    assert verified.returncode == 0
    assert json.loads(verified.stdout)["is_intact"] is True
