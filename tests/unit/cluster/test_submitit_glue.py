from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_launch.cluster.submitit_glue import SbatchRequest, script_text, submit
from resilient_launch.core.errors import RefusedError, RlaunchError, UnreachableError, UsageError


def _work() -> None:
    """Never called here: only its name is pickled."""


def _request(**more: Any) -> SbatchRequest:
    values: dict[str, Any] = {
        "job_name": "x",
        "folder": Path("/nonexistent/folder"),
        "function": _work,
        "time_s": 600,
        "signal_lead_s": 60,
        "python": "python3",
    }
    return SbatchRequest(**(values | more))


def _options(text: str) -> dict[str, str | bool]:
    """The options of a script, read as sbatch reads them: quotes taken off, no shell."""
    found: dict[str, str | bool] = {}
    for line in text.splitlines():
        if line.startswith("#SBATCH "):
            (word,) = shlex.split(line.removeprefix("#SBATCH "))
            name, has_value, value = word.removeprefix("--").partition("=")
            found[name] = value if has_value else True
    return found


def _sbatch(directory: Path, script: str) -> dict[str, str]:
    path = directory / "bin" / "sbatch"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return {"PATH": f"{path.parent}{os.pathsep}{os.environ['PATH']}"}


def test_every_option_reaches_the_script() -> None:
    text = script_text(
        _request(
            nodes="2-4",
            cpus_per_task=3,
            gpus_per_node=8,
            mem="4096M",
            time_s=61,
            partition="p",
            account="a",
            qos="q",
            signal="B:USR2",
            extra={"comment": "it's", "exclusive": True, "overcommit": False, "nice": 5, "constraint": "a100&ib"},
            setup=("module load x", "export A='b c'"),
            srun_args=("--kill-on-bad-exit=0", "--label"),
            python="env A=1 '/a b/python'",
        )
    )
    assert _options(text) == {
        "job-name": "x",
        "nodes": "2-4",
        "ntasks-per-node": "1",
        "cpus-per-task": "3",
        "gpus-per-node": "8",
        "mem": "4096M",
        "time": "2",
        "partition": "p",
        "account": "a",
        "qos": "q",
        "signal": "B:USR2@60",
        "requeue": True,
        "open-mode": "append",
        "output": "/nonexistent/folder/%j_0_log.out",
        "comment": "it's",
        "exclusive": True,
        "nice": "5",
        "constraint": "a100&ib",
    }
    lines = text.splitlines()
    assert lines.index("module load x") + 1 == lines.index("export A='b c'")
    (srun,) = (line for line in lines if line.startswith("srun "))
    words = shlex.split(srun)
    assert words[:5] == [
        "srun",
        "--unbuffered",
        "--output",
        "/nonexistent/folder/%j_%t_log.out",
        "--kill-on-bad-exit=0",
    ]
    assert words[5:] == [
        "--label",
        "env",
        "A=1",
        "/a b/python",
        "-u",
        "-m",
        "submitit.core._submit",
        "/nonexistent/folder",
    ]


def test_what_is_not_asked_for_is_left_to_the_site() -> None:
    assert set(_options(script_text(_request()))) == {
        "job-name",
        "nodes",
        "ntasks-per-node",
        "time",
        "signal",
        "requeue",
        "open-mode",
        "output",
    }


def test_a_dry_run_needs_no_slurm_and_no_torch_and_touches_nothing(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from resilient_launch.cluster.submitit_glue import SbatchRequest, script_text\n"
        "assert 'submitit' not in sys.modules\n"
        f"print(script_text(SbatchRequest(job_name='x', folder=Path({str(tmp_path / 'f')!r}), function=print,"
        " time_s=60, signal_lead_s=5, python='python3')))\n"
        "assert 'torch' not in sys.modules\n"
    )
    root = str(Path(__file__).resolve().parents[3])
    env = {"PATH": "/nonexistent", "PYTHONPATH": root}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("#!/bin/bash\n") and list(tmp_path.iterdir()) == []


def test_what_is_submitted_is_what_a_dry_run_shows(tmp_path: Path) -> None:
    env = _sbatch(tmp_path, f'cp "$1" {tmp_path}/seen.sh; env >{tmp_path}/env; echo "Submitted batch job 42"')
    request = _request(folder=tmp_path / "a b'c")
    env |= {"SBATCH_ACCOUNT": "a", "SBATCH_QOS": "q", "SBATCH_SIGNAL": "USR2@1", "SLURM_JOB_ID": "7"}
    assert submit(request, env) == "42"
    assert (tmp_path / "seen.sh").read_text() == script_text(request)
    assert {path.name for path in request.folder.iterdir()} == {"42_submission.sh", "42_submitted.pkl"}
    assert (request.folder / "42_submission.sh").read_text() == script_text(request)
    seen = (tmp_path / "env").read_text().splitlines()
    assert "SBATCH_ACCOUNT=a" in seen and "SBATCH_QOS=q" in seen
    assert not any(line.startswith(("SBATCH_SIGNAL", "SLURM_JOB_ID")) for line in seen)
    submit(
        _request(folder=tmp_path / "other", account="b", extra={"reservation": "r"}), env | {"SBATCH_RESERVATION": "s"}
    )
    seen = (tmp_path / "env").read_text().splitlines()
    assert "SBATCH_QOS=q" in seen and not any(line.startswith(("SBATCH_ACCOUNT", "SBATCH_RES")) for line in seen)


@pytest.mark.parametrize(
    ("script", "error", "words"),
    [
        ('echo "sbatch: error: Batch job submission failed: No partition" >&2; exit 1', RefusedError, "No partition"),
        ('echo "sbatch: error: Unable to contact slurm controller" >&2; exit 1', UnreachableError, "contact"),
        ("echo what", RlaunchError, "names no job"),
    ],
)
@pytest.mark.parametrize("existed", [False, True])
def test_a_failed_submission_leaves_nothing(
    tmp_path: Path, script: str, error: type[RlaunchError], words: str, existed: bool
) -> None:
    folder = tmp_path / "folder"
    if existed:
        folder.mkdir()
    with pytest.raises(error, match=words):
        submit(_request(folder=folder), _sbatch(tmp_path, script))
    assert folder.exists() == existed and list(tmp_path.glob("folder/*")) == []


def test_no_sbatch_on_path(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match="sbatch not found on PATH"):
        submit(_request(folder=tmp_path / "f"), {"PATH": "/nonexistent"})
    assert list(tmp_path.iterdir()) == []


def test_a_job_that_could_not_find_its_pickle_is_cancelled(tmp_path: Path) -> None:
    # The folder's place is taken by a file while sbatch runs, so nothing can be renamed in it any more.
    folder = tmp_path / "folder"
    env = _sbatch(tmp_path, f'mv {folder} {tmp_path}/moved; touch {folder}; echo "Submitted batch job 42"')
    (tmp_path / "bin" / "scancel").write_text(f"#!/bin/sh\necho $* >{tmp_path}/cancelled\n")
    (tmp_path / "bin" / "scancel").chmod(0o755)
    with pytest.raises(OSError):
        submit(_request(folder=folder), env)
    assert (tmp_path / "cancelled").read_text() == "42\n"


@pytest.mark.parametrize("character", ["\n", "\r", "\x00", "\x1b", "\x7f", "\x85", "\udcff"])
@pytest.mark.parametrize(
    ("option", "build"),
    [
        ("job-name", lambda text: {"job_name": text}),
        ("folder", lambda text: {"folder": Path(f"/nonexistent/{text}")}),
        ("mem", lambda text: {"mem": text}),
        ("partition", lambda text: {"partition": text}),
        ("account", lambda text: {"account": text}),
        ("qos", lambda text: {"qos": text}),
        ("signal", lambda text: {"signal": text}),
        ("comment", lambda text: {"extra": {"comment": text}}),
        ("setup[1]", lambda text: {"setup": ("ok", text)}),
        ("srun_args[0]", lambda text: {"srun_args": (text,)}),
        ("python", lambda text: {"python": text}),
    ],
)
def test_control_characters_are_refused_by_name(character: str, option: str, build: Any) -> None:
    with pytest.raises(UsageError) as caught:
        script_text(_request(**build(f"a{character}b")))
    assert caught.value.where == option
    str(caught.value).encode()


@pytest.mark.parametrize("folder", ["/a%jb/c", "/a/100%", "/a\\b"])
def test_a_path_that_slurm_would_rewrite_is_refused(folder: str) -> None:
    with pytest.raises(UsageError, match="folder"):
        script_text(_request(folder=Path(folder)))


@pytest.mark.parametrize(
    "more",
    [
        {"extra": {"requeue": True}},
        {"extra": {"output": "x"}},
        {"extra": {"no-requeue": True}},
        {"extra": {"array": "1-3"}},
        {"extra": {"wrap": "x"}},
        {"extra": {"--comment": "x"}},
        {"extra": {"a b": "x"}},
        {"extra": {"a\n": "x"}},
        {"extra": {"A": "x"}},
        {"extra": {"comment": ""}},
        {"extra": {"comment": "a\\b"}},
        {"job_name": ""},
        {"nodes": 0},
        {"nodes": "a"},
        {"nodes": "1-"},
        {"time_s": 0},
        {"time_s": 60, "signal_lead_s": 60},
        {"signal_lead_s": 0},
        {"time_s": 10**6, "signal_lead_s": 70000},
    ],
)
def test_what_sbatch_would_take_amiss_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        script_text(_request(**more))


@pytest.mark.parametrize(
    ("time_s", "line"), [(float("inf"), "#SBATCH --time=UNLIMITED"), (61, "#SBATCH --time=2"), (None, None)]
)
def test_time_limit_in_slurms_words(time_s: float | None, line: str | None) -> None:
    lines = [each for each in script_text(_request(time_s=time_s)).splitlines() if "--time" in each]
    assert lines == ([] if line is None else [line])


PRINTABLE = st.text(st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="\\"), min_size=1)


@given(name=PRINTABLE, comment=PRINTABLE, folder=PRINTABLE.map(lambda text: text.replace("%", "")))
def test_any_text_is_one_option_and_one_word(name: str, comment: str, folder: str) -> None:
    path = Path("/nonexistent") / folder.replace("\u2028", "").replace("\u2029", "").lstrip("/")
    text = script_text(_request(job_name=name, extra={"comment": comment}, folder=path, setup=("mark=1",)))
    options = [line for line in text.split("\n") if line.startswith("#SBATCH --")]
    values = dict(shlex.split(line)[1].removeprefix("--").partition("=")[::2] for line in options)
    assert (values["job-name"], values["comment"], values["output"]) == (name, comment, f"{path}/%j_0_log.out")
    (srun,) = (line for line in text.split("\n") if line.startswith("srun "))
    assert shlex.split(srun)[3] == f"{path}/%j_%t_log.out" and shlex.split(srun)[-1] == str(path)
