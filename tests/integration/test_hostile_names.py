"""Names and arguments that a shell, Slurm or torch would make something else of arrive as written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from integration_bench import RunBench

ROOT_NAME = "-ru ns 'q\" $(touch pwned) `touch pwned` ;touch pwned;#*?&é"
WORKDIR_NAME = "-we ird \"d'q $(touch pwned) $HOME ~"
ARGUMENTS = (
    "",
    " ",
    "-n",
    "--",
    "$$",
    "$HOME",
    "${local_rank}",
    "$(touch pwned)",
    "`touch pwned`",
    "a\nb",
    "tab\there",
    "it's",
    'say "x"',
    "back\\slash",
    "%j",
    "*",
    "é ☃",
    "~",
    "a;b|c&d>e",
)
SCRIPT_NAME = "-train $(touch pwned) 'x'.py"
SCRIPT = """
import json, os, sys
from pathlib import Path
seen = {"argv": sys.argv[1:], "value": os.environ["HOSTILE"], "cwd": os.getcwd()}
Path(os.environ["SEEN"], os.environ["RANK"]).write_text(json.dumps(seen))
"""


@pytest.mark.parametrize("program", ["script", "command"])
def test_paths_arguments_and_variables_arrive_untouched(tmp_path: Path, program: str) -> None:
    bench = RunBench(tmp_path, root_name=ROOT_NAME, workdir_name=WORKDIR_NAME)
    try:
        _check(bench, tmp_path, program)
    finally:
        bench.close()


def _check(bench: RunBench, tmp_path: Path, program: str) -> None:
    (bench.workdir / SCRIPT_NAME).write_text(SCRIPT)
    (tmp_path / "seen").mkdir()
    what: dict[str, object] = {"script": SCRIPT_NAME}
    if program == "command":
        what = {"script": None, "command": [bench.python, "-c", SCRIPT]}
    variables = {"HOSTILE": "".join(ARGUMENTS), "SEEN": str(tmp_path / "seen")}
    config = bench.config(
        "run",
        ARGUMENTS,
        **what,
        workers_per_node=2,
        env=variables,
        sbatch={"comment": 'it\'s $(touch pwned) `touch pwned` "q" #h; touch pwned'},
    )
    shown = bench.rlaunch("submit", str(config), "--dry-run", "--json")
    assert shown.returncode == 0, shown.stderr
    bench.submit(config)
    bench.wait("run")
    for rank in range(2):
        seen = json.loads((tmp_path / "seen" / str(rank)).read_text())
        assert seen == {"argv": list(ARGUMENTS), "value": "".join(ARGUMENTS), "cwd": str(bench.workdir)}
    script = (bench.paths("run").submitit / f"{bench.status('run')['job_id']}_submission.sh").read_text()
    assert script == json.loads(shown.stdout)["sbatch_script"]
    assert not list(tmp_path.rglob("pwned")) and not Path("pwned").exists()
