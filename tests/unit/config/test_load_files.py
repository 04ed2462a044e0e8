"""Configurations as files: where their paths start, and what is said of those that are missing or unreadable."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from resilient_launch.config import ConfigErrors, dump, load, loads
from resilient_launch.core.errors import UsageError

HEAD = "name: demo\nmodule: pkg.train\n"


def python(code: str, *args: object, **environment: str) -> str:
    """What a fresh interpreter prints."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **environment}
    argv = [sys.executable, "-c", code, *(str(arg) for arg in args)]
    return subprocess.run(argv, env=environment, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("pass\n")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "eval.py").write_text("pass\n")
    (tmp_path / "empty.py").touch()
    return tmp_path


def write(here: Path, text: str) -> Path:
    path = here / "a.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "workdir", "script"),
    [
        ("script: train.py", ".", "train.py"),
        ("script: ./sub/../train.py", ".", "train.py"),
        ("script: '{here}/sub/eval.py'", ".", "sub/eval.py"),
        ("script: eval.py\nworkdir: sub", "sub", "eval.py"),
        ("script: eval.py\nworkdir: sub/../sub/", "sub", "eval.py"),
        ("script: ../train.py\nworkdir: sub\ncode: {{snapshot: false}}", "sub", "{here}/train.py"),
    ],
)
def test_paths_start_at_the_file(here: Path, text: str, workdir: str, script: str) -> None:
    found = load(write(here, "name: a\n" + text.format(here=here)))
    assert (found.workdir, found.script) == (here / workdir, script.format(here=here))


@pytest.mark.parametrize(
    ("text", "key", "why", "hint"),
    [
        ("script: trian.py", "script", "does not exist", "train.py"),
        ("script: sub/evil.py", "script", "does not exist", "eval.py"),
        ("script: sub", "script", "is a directory", "sub/eval.py"),
        ("script: empty.py", "script", "is empty", "train.py"),
        ("script: /dev/null", "script", "lies outside workdir", "code: {snapshot: false}"),
        ("script: /dev/null\ncode: {snapshot: false}", "script", "is not a regular file", "train.py"),
        ("script: train.py/x", "script", "not a directory", ""),
        ("script: ../train.py\nworkdir: sub", "script", "lies outside workdir", "workdir: "),
        ("script: train%j.py", "script", "Slurm expands %", "without %"),
        ("module: a\nworkdir: nowhere", "workdir", "does not exist", "sub"),
        ("module: a\nworkdir: train.py", "workdir", "is not a directory", ""),
        ("module: a\nworkdir: a%b", "workdir", "Slurm expands %", "without %"),
        ("module: a\npython: ./train.py", "python", "cannot be executed", "python3"),
        ("module: a\npython: venv/bin/python", "python", "does not exist", "python3"),
    ],
)
def test_files_that_are_not_there(here: Path, text: str, key: str, why: str, hint: str) -> None:
    with pytest.raises(ConfigErrors) as caught:
        load(write(here, f"name: a\n{text}"))
    (issue,) = caught.value.issues
    assert issue.key == key and why in issue.why and hint in issue.hint and issue.line


@pytest.mark.parametrize("name", [b"50%j", b"a\nb", b"a\xffb"])
def test_a_directory_that_cannot_be_a_working_directory(tmp_path: Path, name: bytes) -> None:
    directory = tmp_path / os.fsdecode(name)
    directory.mkdir()
    with pytest.raises(ConfigErrors) as caught:
        load(write(directory, HEAD))
    assert [issue.key for issue in caught.value.issues] == ["workdir"]
    str(caught.value).encode()


AS_NOBODY = """
import os, sys
from pathlib import Path
from resilient_launch.config import load
if os.geteuid() == 0:
    os.seteuid(65534)
try:
    load(Path(sys.argv[1]))
except Exception as error:
    print(error)
"""


@pytest.mark.parametrize("name", ["train.py", "a.yaml"])
def test_files_that_may_not_be_read(here: Path, name: str) -> None:
    path = write(here, "name: a\nscript: train.py")
    for directory in (here, *here.parents[: len(here.parents) - 2]):
        directory.chmod(directory.stat().st_mode | 0o755)
    (here / name).chmod(0)
    shown = python(AS_NOBODY, path)
    assert "permission denied" in shown and "try: " in shown


def test_home_is_put_in_for_the_working_directory_alone(here: Path) -> None:
    code = "import sys, pathlib, resilient_launch.config as c; print(c.load(pathlib.Path(sys.argv[1])).workdir)"
    for text, expected in (("~", here), ("~/sub", here / "sub"), ("'~'", here)):
        assert python(code, write(here, f"{HEAD}workdir: {text}"), HOME=str(here)) == str(expected)


def test_no_configuration_file(here: Path) -> None:
    (here / "quickstart.yaml").touch()
    with pytest.raises(UsageError, match="no such file") as caught:
        load(here / "quikstart.yaml")
    assert "quickstart.yaml" in caught.value.hint
    with pytest.raises(UsageError, match="is a directory"):
        load(here)


def test_a_frozen_configuration_needs_nothing_but_itself(here: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    found = load(write(here, "name: a\nscript: train.py\npython: ./train.py\nfaults: []"), ["python=python3"])
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "config.yaml"
    elsewhere.write_text(dump(found))
    (here / "train.py").unlink()
    assert load(elsewhere, frozen=True) == found
    with pytest.raises(ConfigErrors, match="does not exist"):
        load(elsewhere)
    with pytest.raises(ConfigErrors, match="must be absolute"):
        loads(HEAD, frozen=True)
