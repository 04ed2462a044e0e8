"""Workers forked from a process that has their imports: as good as started by themselves, or not forked at all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from job_children import wait_until

from resilient_launch.job.nursery import why_not
from resilient_launch.job.program import Program
from resilient_launch.job.stacks import state_of

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
TELL = """
import json, os, pickle, random, sys
from multiprocessing import get_context


class Local:
    pass


def told(pipe):
    pipe.send(__name__)


if __name__ == "__main__":
    import decimal

    unclosed = open(f"unclosed.{os.environ['RANK']}", "w")
    unclosed.write("kept")
    spawn = get_context("spawn")
    here, there = spawn.Pipe()
    child = spawn.Process(target=told, args=(there,))
    child.start()
    said = {
        "argv": sys.argv,
        "path": sys.path[0],
        "extra": os.environ["EXTRA"] in sys.path,
        "leaks": [name for name in os.environ if name == "ONLY_THE_AGENT"],
        "decimal": "fractions" in sys.modules,
        "pickled": type(pickle.loads(pickle.dumps(Local()))).__name__,
        "main": sys.modules["__main__"].__dict__ is globals(),
        "file": __file__,
        "session": os.getsid(0) == os.getpid(),
        "parent": os.getppid(),
        "random": random.random(),
        "spawned": here.recv(),
        "spec": __spec__,
    }
    child.join()
    print(json.dumps(said), flush=True)
"""


@pytest.fixture(autouse=True)
def code(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()


def _start(directory: Path, module: str, *envs: dict[str, str], **more: str) -> subprocess.Popen[str]:
    """The helper in ``directory``, with ``code/script.py`` and a nursery that has imported ``module``."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(ROOT)]), **more}
    command = [
        sys.executable,
        "-m",
        "nursery_child",
        str(directory / "code" / "script.py"),
        module,
        *map(json.dumps, envs),
    ]
    return subprocess.Popen(command, cwd=directory, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _talk(process: subprocess.Popen[str]) -> tuple[list[int | None], list[int | None]]:
    """(process ids, exit codes) of its workers."""
    assert process.stdout is not None
    pids = json.loads(process.stdout.readline())
    codes, _ = process.communicate("\n", timeout=60)
    return pids, json.loads(codes)


def test_a_forked_worker_is_as_one_that_was_started_by_itself(tmp_path: Path) -> None:
    (tmp_path / "code" / "script.py").write_text(TELL)
    more = f"{tmp_path / 'more'}{os.pathsep}{ROOT}"
    ranks = [{"RANK": rank, "PYTHONPATH": more, "EXTRA": str(tmp_path / "more")} for rank in ("0", "1")]
    process = _start(tmp_path, "fractions", *ranks)
    _, codes = _talk(process)
    logs = [(tmp_path / f"log.{rank}").read_text() for rank in range(2)]
    assert codes == [0, 0], logs
    said = [json.loads(log.splitlines()[-1]) for log in logs]
    script = str(tmp_path / "code" / "script.py")
    for rank, each in enumerate(said):
        assert each["argv"] == [script, "--one", "two words"]
        assert (each["path"], each["extra"], each["file"]) == (str(tmp_path / "code"), True, script)
        assert each["decimal"] and each["main"] and each["session"] and each["pickled"] == "Local"
        assert (each["spawned"], each["spec"]) == ("__mp_main__", None)
        # The agent's own child, not the nursery's: it can be waited for like any other.
        assert each["parent"] == process.pid
        # The interpreter shut down in its usual order: nothing that was written is lost.
        assert (tmp_path / f"unclosed.{rank}").read_text() == "kept"
    assert said[0]["random"] != said[1]["random"]


def test_exit_codes_signals_and_tracebacks_are_those_of_the_script(tmp_path: Path) -> None:
    (tmp_path / "code" / "script.py").write_text(
        "import os, sys, time\n"
        "if os.environ['RANK'] == '0':\n    sys.exit(7)\n"
        "if os.environ['RANK'] == '1':\n    raise ValueError('no such luck')\n"
        "print('up', flush=True)\ntime.sleep(600)\n"
    )
    process = _start(tmp_path, "fractions", *({"RANK": str(rank)} for rank in range(3)))
    assert process.stdout is not None and process.stdin is not None
    pids = json.loads(process.stdout.readline())
    wait_until(lambda: (tmp_path / "log.2").exists() and "up" in (tmp_path / "log.2").read_text(), 60)
    # ps shows what it stands for, as far as there is room.
    shown = Path(f"/proc/{pids[2]}/cmdline").read_bytes().split(b"\0")
    assert shown[:2] == [os.fsencode(sys.executable), os.fsencode(tmp_path / "code" / "script.py")]
    os.kill(pids[2], signal.SIGKILL)
    codes, _ = process.communicate("\n", timeout=60)
    assert json.loads(codes) == [7, 1, -signal.SIGKILL]
    log = (tmp_path / "log.1").read_text()
    assert log.endswith("ValueError: no such luck\n") and f'File "{tmp_path / "code" / "script.py"}", line 5' in log


def test_a_run_with_a_module_of_its_own_under_an_imported_name_is_not_forked(tmp_path: Path) -> None:
    (tmp_path / "code" / "script.py").write_text("import fractions\nprint(fractions.__file__)\n")
    (tmp_path / "code" / "fractions.py").touch()
    pids, _ = _talk(_start(tmp_path, "fractions", {"RANK": "0"}))
    assert pids == [None] and not (tmp_path / "log.0").exists()


def test_a_module_that_cannot_be_imported_costs_the_nursery_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "code" / "script.py").touch()
    pids, codes = _talk(_start(tmp_path, "no_such_module", {"RANK": "0"}))
    assert (pids, codes) == ([None], [None])


def test_the_nursery_ends_with_its_agent(tmp_path: Path) -> None:
    (tmp_path / "code" / "script.py").touch()
    process = _start(tmp_path, "fractions", {"RANK": "0"})
    assert process.stdout is not None and process.stdin is not None
    process.stdout.readline()
    # The worker is over by itself, and waits to be waited for.
    wait_until(lambda: len(_alive(process.pid)) == 1, 60)
    (nursery,) = _alive(process.pid)
    process.kill()
    process.wait()
    wait_until(lambda: not Path(f"/proc/{nursery}").exists(), 60)
    process.stdout.close()
    process.stdin.close()


def _alive(parent: int) -> list[int]:
    """Children of a process that have not ended."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(pid) for pid in children if state_of(int(pid))]


SCRIPT = Program(python=sys.executable, script="train.py")


@pytest.mark.parametrize(
    ("program", "variables", "word"),
    [
        (SCRIPT, [], ""),
        (SCRIPT, ["PYTHONPATH", "OMP_NUM_THREADS", "NCCL_DEBUG"], ""),
        (SCRIPT, ["LD_PRELOAD"], "LD_PRELOAD"),
        (SCRIPT, ["PYTHONHASHSEED"], "PYTHONHASHSEED"),
        (Program(python="/usr/bin/python-of-another", script="train.py"), [], "another interpreter"),
        (Program(python=sys.executable, command=("./train",)), [], "not a Python script"),
    ],
)
def test_what_may_be_forked(program: Program, variables: list[str], word: str) -> None:
    found = why_not(program, variables, os.environ)
    assert word in found and bool(word) == bool(found)


def test_the_command_line_of_a_worker_that_starts_by_itself() -> None:
    assert SCRIPT.argv == [sys.executable, "train.py"]
    module = Program(python="python", module="pkg.train", args=("-x",))
    assert module.argv == ["python", "-P", "-m", "pkg.train", "-x"]
    assert Program(python="python", command=("./train", "a"), args=("b",)).argv == ["./train", "a", "b"]
