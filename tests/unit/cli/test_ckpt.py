"""The commands about checkpoints, over runs whose checkpoints were saved for real and then hurt."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_bench import CommandLine, add_attempt, job, make_run, set_verdict

from resilient_launch.checkpoint.checkpointer import Checkpointer
from resilient_launch.checkpoint.train_state import TrainState
from resilient_launch.core.paths import RunPaths

NAMES = [f"step-{step:08d}.a0000.r0" for step in (10, 20, 30)]


def new_state(seed: int = 1) -> tuple[torch.nn.Module, TrainState]:
    torch.manual_seed(seed)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, TrainState(model=model, optimizer=optimizer)


def save_all(paths: RunPaths, *, run_id: str = "x", steps: Iterable[int] = (10, 20, 30)) -> torch.nn.Module:
    """Checkpoints of these steps, between which the weights change."""
    model, state = new_state()
    saver = Checkpointer(paths.checkpoints, run_id=run_id, keep=9)
    for step in steps:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.5)
        state.step = step
        saver.save(state, reason="steps")
    return model


@pytest.fixture
def paths(line: CommandLine) -> RunPaths:
    found = make_run(line.root)
    save_all(found)
    return found


def answer(line: CommandLine, *arguments: str, code: int = 0) -> dict[str, Any]:
    done = line.run("ckpt", *arguments, "--json")
    assert done.returncode == code, done.stderr
    value = json.loads(done.stdout)
    assert value["schema"] == 1
    return dict(value)


# ls


def test_ls_says_why_each_one_would_be_used_or_not(line: CommandLine, paths: RunPaths) -> None:
    (paths.checkpoints / NAMES[2] / "MANIFEST.json").write_bytes(b"{}")
    (paths.checkpoints / f"{NAMES[0]}.corrupt").mkdir()
    (paths.checkpoints / f".tmp-{NAMES[0]}-00ff").mkdir()
    rows = {row["name"]: row for row in answer(line, "ls", "run")["checkpoints"]}
    assert [rows[name]["standing"] for name in reversed(NAMES)] == ["damaged", "chosen", "older"]
    assert rows[NAMES[0]]["why"] == f"older than {NAMES[1]}; used if that is damaged"
    assert rows[NAMES[1]]["parent"] == NAMES[0] and rows[NAMES[1]]["num_bytes"] > 0
    assert rows[f"{NAMES[0]}.corrupt"]["standing"] == "quarantined"
    assert rows[f".tmp-{NAMES[0]}-00ff"]["standing"] == "unfinished"
    text = line.run("ckpt", "ls", "run").stdout
    assert "manifest is damaged" in text and "10.a0.r0" in text and len(text.splitlines()) == 6


def test_ls_sees_with_the_eyes_of_the_attempt_that_runs(line: CommandLine, paths: RunPaths) -> None:
    """What an older attempt publishes after the claim is not used, although it is the newest by step."""
    add_attempt(paths, resume_step=0, steps=30, cause="crash")
    add_attempt(paths, resume_step=30, steps=1, cause=None, restart=1)
    _, state = new_state()
    state.step = 40
    Checkpointer(paths.checkpoints, run_id="x", keep=9).save(state)
    rows = answer(line, "ls", "run")["checkpoints"]
    assert (rows[0]["step"], rows[0]["standing"]) == (40, "fenced")
    assert rows[0]["why"] == "published by attempt 0 after attempt 1 had been claimed"
    assert (rows[1]["step"], rows[1]["standing"]) == (30, "chosen")


def test_ls_explains_a_larger_step_of_an_earlier_life(line: CommandLine, paths: RunPaths) -> None:
    _, state = new_state()
    state.step = 15
    Checkpointer(paths.checkpoints, run_id="x", attempt=1, keep=9).save(state)
    rows = answer(line, "ls", "run")["checkpoints"]
    assert [row["step"] for row in rows] == [15, 30, 20, 10]
    assert rows[1]["why"].startswith("of an earlier life than step-00000015.a0001.r0")


def test_a_scripts_own_run_directory_will_do(line: CommandLine) -> None:
    found = RunPaths.of("alone", line.root)
    save_all(found, run_id="alone")
    assert [row["standing"] for row in answer(line, "ls", "alone")["checkpoints"]] == ["chosen", "older", "older"]
    assert line.run("ckpt", "ls", "nobody").returncode == 102


# verify


def flip_a_bit(path: Path) -> None:
    data = bytearray((path / "shard-r00000.bin").read_bytes())
    data[5] ^= 4
    (path / "shard-r00000.bin").write_bytes(data)


def truncate(path: Path) -> None:
    os.truncate(path / "shard-r00000.bin", 7)


def lengthen(path: Path) -> None:
    with (path / "shard-r00000.bin").open("ab") as file:
        file.write(b"x")


def remove_a_shard(path: Path) -> None:
    (path / "shard-r00000.bin").unlink()


def replace_by_another_runs(path: Path) -> None:
    other = RunPaths(path.parent.parent.with_name("other"))
    save_all(other, run_id="somebody else", steps=range(1, 9))
    for file in path.iterdir():
        file.unlink()
        file.write_bytes((other.checkpoints / path.name / file.name).read_bytes())


def break_the_manifest(path: Path) -> None:
    text = (path / "MANIFEST.json").read_text()
    (path / "MANIFEST.json").write_text(text.replace('"reason": "steps"', '"reason": "steqs"'))


HURTS: dict[str, Callable[[Path], None]] = {
    "bit-flipped": flip_a_bit,
    "truncated": truncate,
    "too long": lengthen,
    "shard-missing": remove_a_shard,
    "foreign": replace_by_another_runs,
    "manifest-damaged": break_the_manifest,
}


def test_verify_tells_what_is_wrong_and_exits_with_1(line: CommandLine) -> None:
    paths = make_run(line.root)
    save_all(paths, steps=range(1, 9))
    for step, hurt in enumerate(HURTS.values(), 2):
        hurt(paths.checkpoints / f"step-{step:08d}.a0000.r0")
    found = answer(line, "verify", "run", code=1)
    assert not found["is_intact"]
    verdicts = [row["verdict"] for row in reversed(found["checkpoints"])]
    assert verdicts == ["intact", *HURTS, "intact"]
    for row in found["checkpoints"]:
        assert all(problem["why"] and problem["kind"] == row["verdict"] for problem in row["problems"])
        assert bool(row["problems"]) == (row["verdict"] != "intact")
    # Looking changed nothing; what is asked for alone is judged alone.
    assert len(list(paths.checkpoints.glob("step-*.r0"))) == 8
    assert answer(line, "verify", "run", "1", "newest")["is_intact"]


def test_verify_of_an_intact_run(line: CommandLine, paths: RunPaths) -> None:
    found = answer(line, "verify", "run")
    assert found["is_intact"] and all(row["verdict"] == "intact" for row in found["checkpoints"])
    done = line.run("ckpt", "verify", "run")
    # No bar where there is no terminal.
    assert (done.returncode, done.stderr) == (0, "") and len(done.stdout.splitlines()) == 3


# show, diff


def test_show_tells_lineage_and_contents(line: CommandLine, paths: RunPaths) -> None:
    found = answer(line, "show", "run", "--tensors")
    assert found["manifest"]["step"] == 30 and found["standing"] == "chosen"
    assert [each["name"] for each in found["lineage"]] == [NAMES[1], NAMES[0]]
    assert found["entries"]["model"] == {"num_tensors": 2, "num_elements": 8, "num_bytes": 32}
    assert found["tensors"]["model/weight"] == {"dtype": "float32", "shape": [2, 3], "num_chunks": 1}
    text = line.run("ckpt", "show", "run", "20").stdout
    assert text.startswith(f"{NAMES[1]}: older") and f"lineage    {NAMES[1]} <- {NAMES[0]}" in text


def test_diff_names_the_tensors_that_differ(line: CommandLine, paths: RunPaths) -> None:
    found = answer(line, "diff", "run", "10", code=1)
    (bias, weight) = found["tensors"]
    assert (bias["key"], weight["key"], weight["kind"]) == ("model/bias", "model/weight", "values")
    assert weight["num_different"] == 6 and weight["max_abs_difference"] == pytest.approx(1.0)
    assert {"place": "train/step", "first": 10, "second": 30} in found["values"]
    text = line.run("ckpt", "diff", "run", "10", "30").stdout
    assert "model/weight  values      float32[2, 3]: 6 of 6 elements, by 1 at most" in text

    other = make_run(line.root, "other")
    save_all(other)
    same = line.run("ckpt", "diff", "run", "20", "20", "--of", "other")
    assert same.returncode == 0 and ": the same (" in same.stdout


# gc


def test_gc_says_first_and_removes_only_when_told(line: CommandLine, paths: RunPaths) -> None:
    flip_a_bit(paths.checkpoints / NAMES[2])
    (paths.checkpoints / f"{NAMES[0]}.corrupt").mkdir()
    (paths.checkpoints / f".tmp-{NAMES[0]}-00ff").mkdir()
    before = line.tree()
    rows = {row["name"]: row for row in answer(line, "gc", "run", "--keep", "1")["checkpoints"]}
    assert line.tree() == before
    # The newest is kept by retention, the one before it because it is the newest that verifies.
    assert [rows[name]["goes"] for name in NAMES] == [True, False, False]
    assert rows[NAMES[1]]["why"] == "the newest that verifies"
    assert line.run("ckpt", "gc", "run", "--keep", "1", "--delete").returncode == 0
    left = {path.name for path in paths.checkpoints.iterdir()}
    assert left == {NAMES[1], NAMES[2], f"{NAMES[0]}.corrupt", "LATEST"}
    answer(line, "gc", "run", "--keep", "1", "--delete", "--quarantined")
    assert {path.name for path in paths.checkpoints.iterdir()} == {NAMES[1], NAMES[2], "LATEST"}


def test_gc_leaves_all_where_none_verifies(line: CommandLine, paths: RunPaths) -> None:
    for name in NAMES:
        flip_a_bit(paths.checkpoints / name)
    found = answer(line, "gc", "run", "--keep", "1", "--delete")
    assert not any(row["goes"] for row in found["checkpoints"])
    assert {row["why"] for row in found["checkpoints"]} == {"no checkpoint verifies: everything stays"}


def test_gc_spares_what_a_running_attempt_writes(line: CommandLine, paths: RunPaths) -> None:
    add_attempt(paths, resume_step=0, steps=1, cause=None)
    (paths.checkpoints / f".tmp-{NAMES[0]}-00ff").mkdir()
    rows = {row["name"]: row for row in answer(line, "gc", "run")["checkpoints"]}
    assert not rows[f".tmp-{NAMES[0]}-00ff"]["goes"]


# export


def test_export_writes_one_file_for_inference(line: CommandLine, paths: RunPaths) -> None:
    done = answer(line, "export", "run")
    target = line.work / "run-30.safetensors"
    assert (done["path"], done["num_tensors"]) == (str(target), 2)
    again = line.run("ckpt", "export", "run")
    assert again.returncode == 2 and "exists already" in again.stderr
    none = line.run("ckpt", "export", "run", "10", "--entry", "ema")
    assert none.returncode == 2 and "one of: model, optimizer, train" in none.stderr


def test_a_step_that_is_not_there(line: CommandLine, paths: RunPaths) -> None:
    done = line.run("ckpt", "show", "run", "11")
    assert done.returncode == 1 and "try: one of the steps 30, 20, 10" in done.stderr


# resume --from

OVER = job("TIMEOUT")


def test_resume_starts_a_lineage_from_an_older_checkpoint(line: CommandLine, paths: RunPaths) -> None:
    set_verdict(paths, "failed")
    line.slurm("scontrol", f'case "$1" in requeue) echo "$@" >>{line.directory}/asked;; *) {OVER};; esac')
    done = line.run("resume", "run", "--from", "20")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "run: goes on from step 20, 1 checkpoints left behind; requeued job 7\n"
    assert (line.directory / "asked").read_text() == "requeue 7\n" and not paths.verdict.exists()
    rows = answer(line, "ls", "run")["checkpoints"]
    assert [row["standing"] for row in rows] == ["passed over", "chosen", "older"]
    assert rows[0]["why"] == f"left behind: training was told to go on from {NAMES[1]}"
    # Back to the one that was left behind, and nothing is started; a finished run can be submitted again.
    set_verdict(paths, "finished")
    back = line.run("resume", "run", "--from", NAMES[2], "--no-start")
    assert back.stdout == "run: goes on from step 30, 0 checkpoints left behind; not started\n"
    assert (line.directory / "asked").read_text() == "requeue 7\n"
    assert json.loads(paths.verdict.read_bytes())["state"] == "stopped"
    assert answer(line, "ls", "run")["checkpoints"][0]["standing"] == "chosen"


def test_resume_refuses_what_is_no_ground_to_stand_on(line: CommandLine, paths: RunPaths) -> None:
    flip_a_bit(paths.checkpoints / NAMES[0])
    line.slurm("scontrol", job("RUNNING"))
    damaged = line.run("resume", "run", "--from", "10")
    assert damaged.returncode == 1 and "is bit-flipped" in damaged.stderr
    running = line.run("resume", "run", "--from", "20")
    assert running.returncode == 1 and "try: rlaunch stop run" in running.stderr
    line.slurm("scontrol", f'case "$1" in requeue) echo "no" >&2; exit 1;; *) {OVER};; esac')
    line.slurm("sbatch", "echo 'sbatch: error: no' >&2; exit 1")
    assert line.run("resume", "run", "--from", "20").returncode != 0
    # Whatever was refused, the newest is still what a resume would use.
    assert answer(line, "ls", "run")["checkpoints"][0]["standing"] == "chosen"


# push, pull


def test_a_checkpoint_goes_to_another_place_and_comes_back(line: CommandLine, paths: RunPaths) -> None:
    url = f"file://{line.directory}/archive"
    assert answer(line, "push", "run", url, "20")["is_new"] and answer(line, "push", "run", url)["is_new"]
    again = line.run("ckpt", "push", "run", url)
    assert again.returncode == 0 and "is there already" in again.stdout
    # The scratch file system was purged.
    for name in NAMES:
        shutil.rmtree(paths.checkpoints / name)
    flip_a_bit(line.directory / "archive" / NAMES[2])
    done = line.run("ckpt", "pull", "run", url)
    assert done.returncode == 0 and done.stdout.startswith(f"{NAMES[1]}: "), done.stderr
    assert f"{NAMES[2]} is damaged there" in done.stderr
    assert answer(line, "verify", "run")["is_intact"]
    missing = line.run("ckpt", "pull", "run", url, "10")
    assert missing.returncode == 1 and "one of the steps 30, 20" in missing.stderr
