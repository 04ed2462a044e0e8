"""The training script without rlaunch: plain python, torchrun, and a supervisor that sends TERM and later KILL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from integration_bench import TRAINING, RunBench, marked, newest_digest
from waiting import wait_for

from resilient_launch.core.errors import EXIT_TEMPORARY
from resilient_launch.core.events import read_events
from resilient_launch.core.paths import RunPaths

Reference = Callable[[int], str]


@contextmanager
def _started(bench: RunBench, *arguments: str, num_ranks: int = 1) -> Iterator[subprocess.Popen[bytes]]:
    """``train.py`` in a session of its own, alone or under torchrun; its output goes to ``out``."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
    command = [sys.executable, *(torchrun if num_ranks > 1 else []), "train.py", "--run-dir", "own", *arguments]
    with (bench.workdir / "out").open("ab") as out:
        process = subprocess.Popen(
            command, cwd=bench.workdir, env=bench.env, stdout=out, stderr=out, start_new_session=True
        )
    try:
        yield process
    finally:
        for pid in {process.pid, *marked(str(bench.workdir)), *_workers(bench)}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(60)


def _workers(bench: RunBench) -> list[int]:
    """Processes that run the script in the bench's directory."""
    return [pid for pid in marked("train.py") if Path(f"/proc/{pid}/cwd").resolve() == bench.workdir]


def _out(bench: RunBench) -> str:
    return (bench.workdir / "out").read_text()


def _wait_step(bench: RunBench, step: int) -> None:
    wait_for(lambda: f"step {step}\n" in _out(bench), what=f"step {step}")


def _saved(bench: RunBench, step: int) -> list[Path]:
    return list((bench.workdir / "own" / "checkpoints").glob(f"step-{step:08d}.*"))


def _finish(bench: RunBench, num_ranks: int = 1) -> None:
    with _started(bench, num_ranks=num_ranks) as process:
        assert process.wait(120) == 0, _out(bench)[-3000:]


def _resumes(bench: RunBench) -> list[tuple[int, int, str | None]]:
    """(resume step, rework, cause of the last end) of every attempt, in order."""
    events = [event for event in read_events(RunPaths(bench.workdir / "own").events) if event["kind"] == "resume"]
    ordered = sorted(events, key=lambda event: event["attempt"])
    return [(event["resume_step"], event["rework_steps"], event["last_cause"]) for event in ordered]


def test_plain_python_saves_on_a_signal_and_resumes_exactly(bench: RunBench, reference: Reference) -> None:
    for number in (signal.SIGTERM, signal.SIGUSR1):
        step = 30 if number == signal.SIGTERM else 100
        with _started(bench, "--slow-from", str(step), "--slow-lives", "2") as process:
            _wait_step(bench, step)
            process.send_signal(number)
            # A second signal while it saves changes nothing.
            process.send_signal(number)
            assert process.wait(60) == EXIT_TEMPORARY, _out(bench)[-3000:]
    _finish(bench)
    first, second, third = _resumes(bench)
    assert first == (0, 0, None)
    assert 30 <= second[0] < 100 <= third[0]
    assert second[1:] == third[1:] == (0, "yielded")
    assert newest_digest(bench.workdir / "own" / "checkpoints") == reference(1)


def test_a_kill_without_warning_costs_the_steps_since_the_last_save(bench: RunBench, reference: Reference) -> None:
    # It stands at the next step, whenever the kill comes.
    with _started(bench, "--every-steps", "20", "--slow-from", "51", "--slow-s", "600") as process:
        _wait_step(bench, 50)
        wait_for(lambda: _saved(bench, 40), what="the checkpoint of step 40")
        process.kill()
    _finish(bench)
    _, (resume_step, rework_steps, cause) = _resumes(bench)
    assert resume_step >= 40 and resume_step % 20 == 0
    assert 0 <= rework_steps < 20 and cause == "crash"
    assert newest_digest(bench.workdir / "own" / "checkpoints") == reference(1)


def test_torchrun_workers_that_hear_a_signal_save_the_same_step(bench: RunBench, reference: Reference) -> None:
    """The signal reaches one worker only; the next start goes on where both had saved."""
    with _started(bench, "--slow-from", "30", num_ranks=2) as process:
        _wait_step(bench, 30)
        (second,) = [pid for pid in _workers(bench) if b"RANK=1" in _environment(pid)]
        os.kill(second, signal.SIGTERM)
        assert process.wait(90) != 0
    _finish(bench, num_ranks=2)
    assert [rework for _, rework, _ in _resumes(bench)] == [0, 0]
    assert _resumes(bench)[1][0] >= 30
    assert newest_digest(bench.workdir / "own" / "checkpoints") == reference(2)


def _environment(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


def test_a_supervisor_that_stops_torchrun_loses_nothing(bench: RunBench, reference: Reference) -> None:
    """TERM to the top process alone, as a container's supervisor sends it, and KILL for what is left after 30 s."""
    with _started(bench, "--slow-from", "30", num_ranks=2) as process:
        _wait_step(bench, 30)
        process.terminate()
        assert process.wait(30) != 0
    _finish(bench, num_ranks=2)
    assert [rework for _, rework, _ in _resumes(bench)] == [0, 0]
    assert newest_digest(bench.workdir / "own" / "checkpoints") == reference(2)


def test_a_torchrun_restart_within_one_job_goes_on_from_the_checkpoint(bench: RunBench, reference: Reference) -> None:
    # The writer ends with its worker: that dies once it has saved what the next group goes on from.
    dies = (
        "while not list(Path('own/checkpoints').glob('step-00000020.*')): time.sleep(0.01)\n" + 16 * " " + "os._exit(9)"
    )
    (bench.workdir / "train.py").write_text(TRAINING.replace("os._exit(9)", dies))
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    command = [
        sys.executable,
        *torchrun,
        "train.py",
        "--run-dir",
        "own",
        "--every-steps",
        "10",
        "--crash-once-at",
        "25",
    ]
    # torchrun alone keeps one store for all its worker groups, where a restarted one may meet a dead one's addresses.
    env = {**bench.env, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    done = subprocess.run(command, cwd=bench.workdir, env=env, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert newest_digest(bench.workdir / "own" / "checkpoints") == reference(2)
    assert [resume for resume, _, _ in _resumes(bench)] == [0, 20]


def test_a_long_phase_hears_the_signal_by_polling(bench: RunBench) -> None:
    """Evaluation and warm-up poll: a notice that comes there need not wait for their end."""
    (bench.workdir / "train.py").write_text(
        "import sys, time\nimport torch\nimport resilient_launch as rl\n"
        "with rl.attach('own') as run:\n"
        "    model = torch.nn.Linear(2, 2)\n"
        "    state = rl.TrainState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))\n"
        "    run.restore(state)\n"
        "    for step in run.steps(state, until=500):\n"
        "        print(f'step {step}', flush=True)\n"
        "        with run.phase():\n"
        "            while step == 1 and not run.stop_requested():\n"
        "                time.sleep(0.01)\n"
        "        time.sleep(0.02)\n"
    )
    with _started(bench) as process:
        _wait_step(bench, 1)
        process.terminate()
        assert process.wait(60) == EXIT_TEMPORARY, _out(bench)
    paths = RunPaths(bench.workdir / "own")
    phases = [event["phase"] for event in read_events(paths.events) if event["kind"] == "phase"]
    assert "eval" in phases and phases[-2:] == ["step", "leave"]
    (saved,) = paths.checkpoints.glob("step-*")
    assert 2 <= int(saved.name[5:13]) < 500


EVALUATING = """
import itertools, time
import torch
import torch.distributed as dist
import resilient_launch as rl
dist.init_process_group("gloo")
with rl.attach("own") as run:
    state = rl.TrainState(model=torch.nn.Linear(2, 2))
    is_again = run.restore(state) > 0
    for step in run.steps(state, until=100):
        time.sleep(0.02 if is_again or step <= 20 else 0.2)
        if step < 20:
            continue
        with run.once(20, "eval") as is_due:
            if not is_due:
                continue
            for batch in run.polled(range(3) if is_again else itertools.count(), together=True):
                dist.all_reduce(torch.zeros(1))
                if batch == 2:
                    print(f"step {step}", flush=True)
            print(f"evaluated by {run.rank}, again {is_again}", flush=True)
dist.destroy_process_group()
"""


def test_ranks_leave_an_evaluation_at_one_batch_and_begin_it_again_after_the_resume(bench: RunBench) -> None:
    """One of them alone hears the signal, and every batch is a collective."""
    (bench.workdir / "train.py").write_text(EVALUATING)
    with _started(bench, num_ranks=2) as process:
        _wait_step(bench, 20)
        (second,) = [pid for pid in _workers(bench) if b"RANK=1" in _environment(pid)]
        os.kill(second, signal.SIGTERM)
        assert process.wait(90) != 0
    (saved,) = (bench.workdir / "own" / "checkpoints").glob("step-*")
    # Soon after the evaluation, however often it has polled.
    assert 20 < int(saved.name[5:13]) < 60
    _finish(bench, num_ranks=2)
    assert _out(bench).count("again True") == 2, _out(bench)[-3000:]


def test_an_end_amid_an_agreement_is_clean(bench: RunBench) -> None:
    """The last step is done before the ranks agreed on one to save at: finished, and no thread aborts the exit."""
    (bench.workdir / "train.py").write_text(
        "import os, signal, threading\nimport torch\nimport resilient_launch as rl\nimport atexit\n"
        "atexit.register(lambda: print('left:', [thread.name for thread in threading.enumerate()]))\n"
        "with rl.attach('own') as run:\n"
        "    model = torch.nn.Linear(2, 2)\n"
        "    state = rl.TrainState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))\n"
        "    for step in run.steps(state, until=3):\n"
        "        if step == 1:\n"
        "            os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    with _started(bench) as process:
        assert process.wait(60) in (0, EXIT_TEMPORARY), _out(bench)
    assert _out(bench).splitlines()[-1] == "left: ['MainThread']"
