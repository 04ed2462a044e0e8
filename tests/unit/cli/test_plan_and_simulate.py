"""What ``rlaunch plan`` and ``rlaunch simulate`` print, and how they refuse."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.dom.minidom
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from resilient_launch.cli.main import app
from resilient_launch.core.errors import EXIT_USAGE, RlaunchError
from resilient_launch.core.events import read_events

PLAN = ("plan", "interval", "--write-cost", "120s", "--mtbf", "3.1h", "--restart", "10m")
JOB = ("simulate", "job", "--write-cost", "120s", "--runs", "20", "--work", "20h")


def rlaunch(*arguments: str) -> str:
    """What a command prints on stdout."""
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def refused(*arguments: str) -> RlaunchError:
    with pytest.raises(RlaunchError) as caught:
        CliRunner().invoke(app, arguments, catch_exceptions=False)
    return caught.value


def test_the_plan_as_json() -> None:
    answer = json.loads(rlaunch(*PLAN, "--notice", "0.75", "--json"))
    assert answer["schema"] == 1
    minutes = {name: round(each["interval_s"] / 60, 2) for name, each in answer["intervals"].items()}
    assert minutes == {"young": 27.28, "daly": 25.96, "exact": 25.96, "notice_first_order": 54.55, "best": 55.48}
    assert answer["intervals"]["best"]["goodput"] == pytest.approx(0.878, abs=5e-4)
    assert answer["flat"]["low_s"] < answer["intervals"]["best"]["interval_s"] < answer["flat"]["high_s"]
    assert answer["warnings"] == []


def test_the_plan_as_text_has_a_bar_for_each_interval() -> None:
    text = rlaunch(*PLAN)
    assert "exact    25m58s    0.8154" in text
    bars = [line for line in text.splitlines() if "###" in line]
    assert len(bars) == 13
    (best,) = [line for line in bars if "25m58s" in line]
    assert best.count("#") == max(line.count("#") for line in bars) > bars[-1].count("#")


def test_mtbf_from_nodes() -> None:
    answer = json.loads(rlaunch(*PLAN[:4], "--nodes", "2048", "--failures-per-1000-node-days", "3.79", "--json"))
    assert answer["inputs"]["mtbf_s"] / 3600 == pytest.approx(3.09, abs=0.005)


def test_a_curve_to_look_at(tmp_path: Path) -> None:
    rlaunch(*PLAN, "--svg", str(tmp_path / "curve.svg"))
    picture = xml.dom.minidom.parse(str(tmp_path / "curve.svg"))
    assert len(picture.getElementsByTagName("polyline")) == 1
    assert "directory" in str(refused(*PLAN, "--svg", str(tmp_path / "none" / "curve.svg")))


@pytest.mark.parametrize(("command", "says"), [(PLAN, "25m58s"), ((*JOB, "--mtbf", "3h", "--interval", "40m"), "40m")])
def test_a_page_to_look_at(command: tuple[str, ...], says: str, tmp_path: Path) -> None:
    rlaunch(*command, "--html", str(tmp_path / "page.html"))
    text = (tmp_path / "page.html").read_text()
    # Nothing but the name of SVG's vocabulary looks like an address.
    assert says in text and "://" not in text.replace("http://www.w3.org/2000/svg", "") and "<script" not in text
    xml.dom.minidom.parseString(text.partition("<body>")[2].join(("<body>", "")).replace("</html>", ""))
    assert "directory" in str(refused(*command, "--html", str(tmp_path / "none" / "page.html")))


def test_where_every_interruption_can_be_saved_no_interval_is_too_long() -> None:
    answer = json.loads(rlaunch(*PLAN, "--notice", "1", "--json"))
    assert answer["intervals"]["best"]["interval_s"] is None
    assert answer["flat"]["high_s"] is None
    assert "never" in rlaunch(*PLAN, "--notice", "1")


def test_absurd_inputs_are_answered_with_a_warning() -> None:
    answer = json.loads(rlaunch("plan", "interval", "--write-cost", "3h", "--mtbf", "1h", "--json"))
    assert "most checkpoints will not complete" in answer["warnings"][0]
    done = CliRunner().invoke(app, ["plan", "interval", "--write-cost", "3h", "--mtbf", "1h"])
    assert "warning: the MTBF (1h) is not above" in done.stderr
    assert "next: a cheaper checkpoint" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "no --write-cost"),
        (("--write-cost", "120s"), "no --mtbf"),
        (("--write-cost", "120", "--mtbf", "3h"), "--write-cost: duration '120', has no unit"),
        (("--write-cost", "nan", "--mtbf", "3h"), "--write-cost: duration 'nan'"),
        (("--write-cost", "0s", "--mtbf", "3h"), "write cost of 0 s"),
        (("--write-cost", "-1s", "--mtbf", "3h"), "--write-cost: duration '-1s'"),
        (("--write-cost", "1s", "--mtbf", "0s"), "MTBF of 0 s"),
        (("--write-cost", "1s", "--mtbf", "3h", "--notice", "75"), "notice of 75"),
        (("--write-cost", "1s", "--mtbf", "3h", "--notice", "nan"), "notice of nan"),
        (("--write-cost", "1s", "--mtbf", "3h", "--nodes", "4"), "--mtbf beside --nodes"),
        (("--write-cost", "1s", "--nodes", "0"), "0 nodes"),
        (("--write-cost", "1s", "--nodes", "9" * 20), "1e+20 nodes"),
        (("--write-cost", "1s", "--nodes", "4", "--failures-per-1000-node-days", "nan"), "nan failures"),
        (("--write-cost", "1s", "--nodes", "4", "--failures-per-1000-node-days", "1e9"), "1e+09 failures"),
        (("--write-cost", "1s", "--mtbf", "3h", "--slowdown", "2"), "slowdown of 2"),
        (("--write-cost", "1s", "--mtbf", "3h", "--drain", "-3s"), "--drain: duration '-3s'"),
        (("--write-cost", "1s", "--mtbf", "3h", "--failures-per-1000-node-days", "5"), "needs the number of nodes"),
        (("--write-cost", "3h", "--mtbf", "9h", "--time-limit", "2h"), "leaves no time to train"),
    ],
)
def test_bad_plans_are_refused(arguments: tuple[str, ...], words: str) -> None:
    error = refused("plan", "interval", *arguments)
    assert words in str(error)
    assert error.hint
    assert error.exit_code == EXIT_USAGE


def test_a_run_that_is_not_there(tmp_path: Path) -> None:
    error = refused("plan", "interval", "nobody", "--root", str(tmp_path))
    assert "run nobody, does not exist" in str(error)


def test_a_simulated_job_as_json_and_its_events(tmp_path: Path) -> None:
    told = tmp_path / "told.jsonl"
    text = rlaunch(*JOB, "--mtbf", "3.1h", "--interval", "30m", "--interval", "2h", "--events", str(told), "--json")
    answer = json.loads(text)
    assert [row["name"] for row in answer["intervals"]] == ["30m", "2h"]
    for row in answer["intervals"]:
        assert sum(row["shares"].values()) == pytest.approx(1)
        assert row["shares"]["useful"] == row["goodput"]
        assert 0 < row["goodput_error"] < 0.1
    kinds = {event["kind"] for event in read_events([told])}
    assert {"attempt", "resume", "window", "checkpoint", "end"} <= kinds


def test_a_known_hazard_is_planned_for() -> None:
    text = rlaunch(*JOB, "--mtbf", "24h", "--preempt-mtbf", "1h", "--preempt-exempt", "2h")
    assert "hazard-aware" in text


def test_failures_from_a_trace(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    trace.write_text("3h  # the first\n\n1h30m\n")
    (row,) = json.loads(rlaunch(*JOB, "--trace", str(trace), "--json"))["intervals"]
    assert row["attempts"] > 1
    trace.write_text("3h\n90\n")
    assert f"{trace}:2: duration '90', has no unit" in str(refused(*JOB, "--trace", str(trace)))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "no --mtbf"),
        (("--mtbf", "3h", "--interval", "0s"), "--interval: 0 s"),
        (("--mtbf", "3h", "--runs", "0"), "0 runs"),
        (("--mtbf", "3h", "--runs", "100000000"), "100,000,000 runs"),
        (("--mtbf", "3h", "--seed", "-1"), "seed -1"),
        (("--mtbf", "3h", "--weibull-shape", "nan"), "Weibull shape nan"),
        (("--mtbf", "3h", "--notice", "2"), "notice of 2"),
        (("--mtbf", "3h", "--time-limit", "11m"), "leaves no time to train"),
        (("--mtbf", "3h", "--trace", "x"), "--trace beside"),
        (("--trace", "/nowhere/trace"), "no such file"),
        (("--mtbf", "3h", "--preempt-mtbf", "0s"), "preemption MTBF of 0 s"),
    ],
)
def test_bad_simulations_are_refused(arguments: tuple[str, ...], words: str) -> None:
    error = refused(*JOB, *arguments)
    assert words in str(error)
    assert error.hint


def test_stragglers() -> None:
    rows: list[dict[str, Any]] = json.loads(rlaunch("simulate", "stragglers", "--json"))["rows"]
    assert len(rows) == 8
    assert [row["formula"] for row in rows if row["num_ranks"] == 512] == pytest.approx([1.226, 1.641], abs=5e-4)
    assert "p(any slow)" in rlaunch("simulate", "stragglers", "--ranks", "8", "--probability", "0.1")
    assert "0 ranks" in str(refused("simulate", "stragglers", "--ranks", "0"))
    assert "1,000,000,000,000 steps" in str(refused("simulate", "stragglers", "--steps", "1000000000000"))


def test_the_command_line_starts_without_numpy() -> None:
    code = "import sys, resilient_launch.cli.main; print(sorted({'numpy', 'torch', 'yaml'} & set(sys.modules)))"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
