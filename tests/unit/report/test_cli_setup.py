"""doctor, init, check and config, as a user runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from resilient_launch.config import as_dict, load
from resilient_launch.config.json_schema import json_schema
from resilient_launch.report.surroundings import probe_mount

GOLDEN = Path(__file__).parents[2] / "golden" / "config"
QUICKSTART = Path(__file__).parents[3] / "configs" / "quickstart.yaml"


def rlaunch(*arguments: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    code = "from resilient_launch.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "utf-8", **env},
    )


def test_init_writes_what_check_accepts_and_refuses_to_overwrite(tmp_path: Path) -> None:
    first = rlaunch("init", str(tmp_path / "new run"), PATH="/usr/bin:/bin")
    assert first.returncode == 0, first.stderr
    config = tmp_path / "new run" / "rlaunch.yaml"
    assert load(config).name == "new-run"
    assert rlaunch("check", str(config)).returncode == 0
    compile((tmp_path / "new run" / "train.py").read_text(), "train.py", "exec")
    again = rlaunch("init", str(tmp_path / "new run"))
    assert again.returncode == 2
    assert "is there already" in again.stderr
    assert rlaunch("init", str(tmp_path / "new run"), "--force").returncode == 0


def test_check_tells_everything_about_all_files() -> None:
    files = [str(GOLDEN / "several.yaml"), str(GOLDEN / "misspelt_key.yaml"), "/nowhere.yaml"]
    text = rlaunch("check", *files)
    assert text.returncode == 2
    as_json = json.loads(rlaunch("check", *files, "--output-format", "json").stdout)
    assert as_json["schema"] == 1
    assert {issue["file"] for issue in as_json["issues"]} == set(files)
    github = rlaunch("check", *files, "--output-format", "github").stdout.splitlines()
    assert len(github) == len(as_json["issues"]) == text.stdout.count("error: ")
    assert all(line.startswith("::error file=") for line in github)
    assert rlaunch("check", *files, "--output-format", "xml").returncode == 2


def test_config_show_tells_where_each_value_came_from(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text("name: a\nmodule: json.tool\nnodes: 3\nenv: {SECRET: hunter2}\n")
    done = rlaunch("config", "show", str(config), "--set", "checkpoint.keep=7", "--json")
    rows = {row["key"]: row for row in json.loads(done.stdout)["values"]}
    assert rows["nodes"]["from"] == f"{config}:3"
    assert rows["checkpoint.keep"]["from"] == "--set checkpoint.keep=7"
    assert rows["restart.max_crashes"]["from"] == "default"
    assert "hunter2" not in done.stdout


def test_schema_accepts_what_we_ship_and_write_and_knows_every_key() -> None:
    schema = json.loads(rlaunch("config", "schema").stdout)
    assert schema == json.loads(json.dumps(json_schema()))
    assert check(yaml.safe_load(QUICKSTART.read_text()), schema, "") == []
    assert check(json.loads(json.dumps(as_dict(load(QUICKSTART)))), schema, "") == []
    assert check({"name": "a", "chekpoint": {}}, schema, "") == ["chekpoint: unknown"]
    assert check({"name": "a", "code": {"snapshot": "no"}}, schema, "") == ["code.snapshot: kind"]


KINDS: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "boolean": bool,
    "number": (int, float),
}


def check(value: Any, schema: dict[str, Any], key: str) -> list[str]:
    """The part of JSON Schema that ours uses."""
    if "anyOf" in schema:
        return min((check(value, each, key) for each in schema["anyOf"]), key=len)
    if "enum" in schema:
        return [] if value in schema["enum"] else [f"{key}: enum"]
    wanted = schema.get("type", [])
    kinds = [KINDS[kind] for kind in ([wanted] if isinstance(wanted, str) else wanted)]
    if not any(isinstance(value, kind) for kind in kinds):
        return [f"{key}: kind"]
    found: list[str] = []
    if isinstance(value, dict) and "properties" in schema:
        for name, item in value.items():
            inner = f"{key}.{name}" if key else name
            if name not in schema["properties"]:
                found.append(f"{inner}: unknown")
            else:
                found += check(item, schema["properties"][name], inner)
    if isinstance(value, list) and "items" in schema:
        found += [line for item in value for line in check(item, schema["items"], key)]
    return found


def test_doctor_says_what_follows_from_each_finding(tmp_path: Path) -> None:
    done = rlaunch("doctor", "--root", str(tmp_path), "--json", PATH="/usr/bin:/bin")
    findings = {each["what"]: each for each in json.loads(done.stdout)["findings"]}
    assert findings["Python"]["verdict"] == "good"
    assert findings["exclusive create, rename"]["verdict"] == "good"
    assert all(each["consequence"] for each in findings.values() if each["verdict"] == "bad")
    assert not list(tmp_path.iterdir())


def test_doctor_without_slurm_says_that_nothing_can_be_submitted(tmp_path: Path) -> None:
    done = rlaunch("doctor", "--cluster", "--root", str(tmp_path), PATH=str(tmp_path))
    assert done.returncode == 1
    assert "✗ Slurm: scontrol not found on PATH" in done.stdout
    assert "nothing can be submitted from here" in done.stdout


def test_a_mount_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    probe = probe_mount(tmp_path / "a" / "b")
    assert (probe.directory, probe.error) == (tmp_path, "")
    assert probe.hard_links and probe.fsync_s is not None
    seen = probe.behaviour
    assert seen is not None and seen.flock_excludes and seen.exclusive_create_is_honest and seen.rename_is_atomic
    assert list(tmp_path.iterdir()) == []
    assert probe_mount(Path("/proc/1")).error


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_start_up_imports_nothing_heavy(option: str) -> None:
    code = (
        "import sys\nfrom resilient_launch.cli.main import app\n"
        f"try: app(['{option}'])\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'submitit', 'yaml', 'rich.table'} & set(sys.modules)\nassert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
