"""Whatever is wrong with what the user gave: one clear message, the documented exit code, and nothing left behind."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from cli_bench import GOOD, CommandLine, make_run

BAD_CONFIGURATIONS = {
    "unknown key": ("name: run\nscript: train.py\nfrobnicate: 1\n", "frobnicate"),
    "misspelt key": ("name: run\nscript: train.py\nworkers_per_nod: 2\n", "did you mean workers_per_node"),
    "misspelt section key": ("name: run\nscript: train.py\ncheckpoint: {evry: 5m}\n", "checkpoint.evry"),
    "wrong type": (GOOD + "nodes: many\n", "nodes"),
    "duplicate key": (GOOD + "name: again\n", "name"),
    "unquoted clock": ("name: run\nscript: train.py\ntime: 12:30:00x\n", "time"),
    "bare number of time": ("name: run\nscript: train.py\ntime: 90\n", "has no unit"),
    "missing script": ("name: run\nscript: trian.py\n", "trian.py"),
    "no program": ("name: run\n", "no script, module or command"),
    "two programs": (GOOD + "module: pkg.train\n", "only one of"),
    "signal lead at the time limit": (GOOD + "signal_lead: 10m\n", "signal_lead"),
    "does not fit the fake cluster": (GOOD + "cluster: fake\nnodes: 3\nfake: {nodes: 2}\n", "nodes"),
    "newline in a comment": (GOOD + 'sbatch: {comment: "a\\nrm -rf /"}\n', "sbatch.comment"),
    "control character in an account": (GOOD + 'account: "a\\x07"\n', "account"),
    "percent in the working directory": (GOOD + "workdir: w%j\n", "%"),
    "reserved option": (GOOD + "sbatch: {output: x}\n", "reserved option"),
    "run name that is a path": ("name: ../run\nscript: train.py\n", "run name"),
    "run name like an option": ("name: -run\nscript: train.py\n", "run name"),
    "tab": ("name: run\n\tscript: train.py\n", "indent with spaces"),
    "not a mapping": ("- name\n", "mapping"),
    "empty": ("", "no name"),
    "faults on a real cluster": (GOOD + "faults: [{at: {step: 1}, do: preempt}]\n", "faults"),
}


def _assert_message(done: subprocess.CompletedProcess[str], code: int, words: str) -> None:
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert done.stderr.startswith("error: ") or "Usage:" in done.stderr, done.stderr
    assert words in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and done.stdout == ""


@pytest.mark.parametrize("name", BAD_CONFIGURATIONS)
def test_a_bad_configuration_is_refused(line: CommandLine, name: str) -> None:
    text, words = BAD_CONFIGURATIONS[name]
    path = line.config(text.replace("signal_lead: 30s\n", "", 1) if text.count("signal_lead") > 1 else text)
    before = line.tree()
    done = line.run("submit", path)
    _assert_message(done, 2, words)
    assert f"error: {path}:" in done.stderr
    assert line.tree() == before


def test_all_mistakes_are_shown_at_once_with_their_places(line: CommandLine) -> None:
    path = line.config("name: run\nscript: train.py\nnodes: many\ntime: 90\nfrob: 1\n")
    done = line.run("submit", path, "--set", "checkpoint.keep=none", "--set", "x")
    _assert_message(done, 2, f"error: {path}:3:8: nodes")
    for words in (
        f"error: {path}:4:7: time",
        f"error: {path}:5:1: frob",
        "error: --set checkpoint.keep=none",
        "--set x",
    ):
        assert words in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("submit", "nothing.yaml"), 2, "no such file"),
        (("submit", "."), 2, "directory"),
        (("submit",), 2, "CONFIG"),
        (("submit", "good.yaml", "--frob"), 2, "--frob"),
        (("submit", "good.yaml", "--cluster", "pbs"), 2, "cluster"),
        (("submit", "good.yaml", "--set", "frob=1"), 2, "frob"),
        (("submit", "good.yaml", "--root", "bad%j"), 2, "%"),
        (("submit", "binary.yaml"), 2, "binary.yaml"),
        (("status", "nobody"), 102, "no run 'nobody'"),
        (("logs", "nobody"), 102, "no run 'nobody'"),
        (("cancel", "nobody"), 102, "no run 'nobody'"),
        (("wait", "nobody"), 102, "no run 'nobody'"),
        (("status", "../x"), 2, "run name"),
        (("logs", "run", "--attempt", "x"), 2, "--attempt"),
        (("wait", "run", "--timeout", "soon"), 2, "--timeout"),
        (("frob",), 2, "frob"),
    ],
)
def test_a_bad_argument_is_refused(line: CommandLine, arguments: tuple[str, ...], code: int, words: str) -> None:
    (line.work / "good.yaml").write_text(GOOD)
    (line.work / "binary.yaml").write_bytes(b"\xff\xfe\x00name")
    before = line.tree()
    _assert_message(line.run(*arguments), code, words)
    assert line.tree() == before


def test_without_sbatch_the_scheduler_is_unreachable(line: CommandLine) -> None:
    before = line.tree()
    done = line.run("submit", line.config())
    _assert_message(done, 3, "sbatch not found on PATH")
    assert [path for path in line.tree() if path not in before] in (
        [],
        ["runs"],
        ["work/c.yaml"],
        ["runs", "work/c.yaml"],
    )


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        ("echo 'sbatch: error: Batch job submission failed: Invalid account' >&2; exit 1", 1, "Invalid account"),
        (
            "echo 'sbatch: error: Unable to contact slurm controller (connect failure)' >&2; exit 1",
            3,
            "does not answer",
        ),
        ("echo 'Welcome to the site'", 1, "it names no job"),
    ],
)
def test_what_sbatch_says_is_passed_on_and_nothing_is_left(
    line: CommandLine, answer: str, code: int, words: str
) -> None:
    line.slurm("sbatch", answer)
    path = line.config()
    before = line.tree()
    _assert_message(line.run("submit", path), code, words)
    assert [each for each in line.tree() if each not in before] in ([], ["runs"])


def test_a_refused_resubmission_leaves_the_run_as_it_was(line: CommandLine) -> None:
    """Its verdict above all: a run that failed has still failed when sbatch does not take it again."""
    line.slurm("sbatch", "echo 'Submitted batch job 7'")
    line.slurm("squeue", "exit 0")
    path = line.config()
    assert line.run("submit", path, "--parsable").stdout == "7\n"
    (line.root / "run" / "verdict.json").write_text('{"state": "failed", "why": "boom"}')
    before = line.tree()
    line.slurm("sbatch", "echo 'sbatch: error: Invalid qos specification' >&2; exit 1")
    _assert_message(line.run("submit", path), 1, "Invalid qos")
    assert line.tree() == before
    assert (line.root / "run" / "verdict.json").read_text() == '{"state": "failed", "why": "boom"}'


@pytest.mark.parametrize("root", ["file", "/proc/nothing/runs", "/sys/kernel/runs", "work/train.py/runs"])
def test_a_root_that_cannot_hold_runs_is_refused(line: CommandLine, root: str) -> None:
    line.slurm("sbatch", "echo 'Submitted batch job 7'")
    (line.directory / "file").touch()
    place = root if root.startswith("/") else str(line.directory / root)
    path = line.config()
    before = line.tree()
    _assert_message(line.run("submit", path, "--root", place), 2, "run directory")
    assert line.tree() == before


def test_memory_of_one_node_is_no_shared_storage(line: CommandLine) -> None:
    mounts = [mount.split() for mount in Path("/proc/self/mounts").read_text().splitlines()]
    place = next((Path(point) for _, point, kind, *_ in mounts if kind == "tmpfs" and os.access(point, os.W_OK)), None)
    if place is None:
        pytest.skip("this machine has no tmpfs that may be written to")
    line.slurm("sbatch", "echo 'Submitted batch job 7'")
    root = place / f"rlaunch-{os.getpid()}"
    done = line.run("submit", line.config(GOOD + "nodes: 2\n"), "--root", str(root))
    _assert_message(done, 2, "lies on tmpfs, which other nodes do not see")
    assert not root.exists()


def test_a_directory_that_is_not_a_run_is_left_alone(line: CommandLine) -> None:
    line.slurm("sbatch", "echo 'Submitted batch job 7'")
    (line.root / "run").mkdir(parents=True)
    (line.root / "run" / "thesis.txt").write_text("all of it")
    _assert_message(line.run("submit", line.config()), 1, "exists and is not a run")
    assert (line.root / "run" / "thesis.txt").read_text() == "all of it"
    assert sorted(path.name for path in (line.root / "run").iterdir()) == ["thesis.txt"]


@pytest.mark.parametrize("command", ["status", "logs", "cancel", "wait"])
@pytest.mark.parametrize("text", ["", "{", "[]", '{"id": 1}', '{"jobs": 3, "id": "x"}', "\xff"])
def test_a_damaged_run_record_is_named(line: CommandLine, command: str, text: str) -> None:
    paths = make_run(line.root)
    paths.run.write_bytes(text.encode("latin-1"))
    _assert_message(line.run(command, "run"), 1, "run.json")


def test_the_arguments_of_a_bad_fake_directory(line: CommandLine) -> None:
    """The fake cluster's directory holds something else."""
    (line.root / ".fake").mkdir(parents=True)
    (line.root / ".fake" / "mine").touch()
    before = line.tree()
    done = line.run("submit", line.config(), "--cluster", "fake")
    _assert_message(done, 2, "not a fake cluster")
    assert [each for each in line.tree() if each not in before] in ([], ["work/c.yaml"])


def test_faults_need_somebody_who_drives_them(line: CommandLine) -> None:
    text = GOOD + "cluster: fake\nfaults: [{at: {step: 1}, do: preempt}]\n"
    before = [*line.tree(), "work/c.yaml"]
    _assert_message(line.run("submit", line.config(text)), 2, "--wait")
    assert sorted(before) == line.tree()


def test_a_missing_interpreter_is_named(line: CommandLine, tmp_path: Path) -> None:
    _assert_message(line.run("submit", line.config(GOOD + "python: /no/python\n")), 2, "/no/python")
