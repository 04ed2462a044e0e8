import json
import math
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from resilient_launch.config import ConfigErrors, LaunchConfig, as_dict, dump, loads, notes
from resilient_launch.config.schema import Best, Every, KillWorker, NodeRange, Preempt, StaggerConfig
from resilient_launch.core.ids import CheckpointId
from resilient_launch.policy.retention import Kept

HEAD = "name: demo\nmodule: pkg.train\n"


def python(code: str, *args: object, **environment: str) -> str:
    """What a fresh interpreter prints."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **environment}
    argv = [sys.executable, "-c", code, *(str(arg) for arg in args)]
    return subprocess.run(argv, env=environment, check=True, capture_output=True, text=True).stdout.strip()


def issues(text: str, *overrides: str, base: Path | None = None) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        loads(text, "a.yaml", overrides, base=base)
    return [f"{issue.key}: {issue.what}, {issue.why}" for issue in caught.value.issues]


def config(text: str = "", *overrides: str) -> LaunchConfig:
    return loads(HEAD + text, "a.yaml", overrides)


def test_defaults() -> None:
    found = config()
    assert (found.nodes, found.workers_per_node, found.gpus_per_node) == (NodeRange(min=1, max=1), 1, 0)
    assert (found.time_s, found.memory_mb, found.partition, found.signal_lead_s) == (None, None, None, 120)
    assert (found.checkpoint.every, found.checkpoint.keep) == (Every(auto=True), 3)
    assert (found.cluster, found.faults, found.python, found.workdir) == ("slurm", (), sys.executable, Path.cwd())


@pytest.mark.parametrize(("nodes", "batch", "ranks", "fitting"), [("3", 16, 6, 6), ("2-4", 12, 8, 24)])
def test_a_global_batch_that_some_number_of_ranks_cannot_share(
    nodes: str, batch: int, ranks: int, fitting: int
) -> None:
    text = f"{HEAD}nodes: {nodes}\nworkers_per_node: 2\nglobal_batch: "
    (found,) = issues(f"{text}{batch}")
    assert found.startswith(f"global_batch: global batch {batch}, {ranks} ranks of ")
    assert loads(f"{text}{fitting}").global_batch == fitting


@pytest.mark.parametrize(
    ("text", "low", "high"), [("3", 3, 3), ("2-4", 2, 4), ("'2 - 4'", 2, 4), ("2-2", 2, 2), ("0002", 2, 2)]
)
def test_nodes(text: str, low: int, high: int) -> None:
    assert config(f"nodes: {text}").nodes == NodeRange(min=low, max=high)


@pytest.mark.parametrize("text", ["0", "0-2", "3-2", "-1", "1.5", "two", "[1]", "{}", "2-", "true"])
def test_not_nodes(text: str) -> None:
    assert len(issues(f"{HEAD}nodes: {text}")) == 1


def test_what_is_kept_beside_the_newest() -> None:
    found = config("checkpoint: {keep_spaced: 5h50m, keep_every_steps: 100, keep_best: 3 highest eval/acc}").checkpoint
    assert (found.keep_spaced_s, found.keep_every_steps) == (350 * 60, 100)
    assert found.keep_best == Best(metric="eval/acc", count=3, is_highest=True)
    assert config("checkpoint: {keep_best: lowest loss}").checkpoint.keep_best == Best(metric="loss")
    items = [
        Kept(id=CheckpointId(0, 0, step), is_verified=True, saved_at=step * 60.0, metrics={"eval/acc": step % 70})
        for step in range(0, 1000, 50)
    ]
    kept = [item.id.step for item, keep in zip(items, found.retention()(items), strict=True) if keep]
    # Every 100th; 350 for the time since the first; the three highest; the three newest.
    assert kept == [0, 100, 200, 300, 350, 400, 500, 550, 600, 700, 800, 850, 900, 950]


def test_what_a_resume_accepts() -> None:
    strict, lax = config().checkpoint, config("checkpoint: {allow: [code, dtype]}").checkpoint
    assert [strict.stops_on(kind) for kind in ("topology", "code")] == [True, True] and not strict.tolerated
    assert [lax.stops_on(kind) for kind in ("topology", "code")] == [True, False] and lax.tolerated == {"dtype"}
    assert not config("checkpoint: {on_topology_change: warn}").checkpoint.stops_on("topology")


def test_clocks_are_text_and_not_base_sixty() -> None:
    assert config("time: 12:30:00").time_s == 12.5 * 3600
    assert config("time: 1-12:00:00").time_s == 36 * 3600


def test_unlimited_is_not_the_sites_default() -> None:
    assert config("time: unlimited").time_s == math.inf
    assert as_dict(config("time: unlimited"))["time"] == "unlimited"
    assert "time" not in as_dict(config())
    assert "Slurm takes it for no limit" in issues(HEAD + "time: 0")[0]


@pytest.mark.parametrize(
    ("time", "lead", "part"),
    [
        ("2m", "2m", "is ≥ the time limit of 2m"),
        ("61s", "2m", "is ≥"),
        ("2m", "60s", "early"),
        ("1m", "1s", "early"),
        ("2m", "59s", ""),
        ("unlimited", "10h", ""),
        ("61s", "59s", ""),
    ],
)
def test_the_signal_lead_must_leave_room_before_it(time: str, lead: str, part: str) -> None:
    text = f"{HEAD}time: {time}\nsignal_lead: {lead}"
    if part:
        (issue,) = issues(text)
        assert issue.startswith("signal_lead: ") and part in issue
    else:
        loads(text)


def test_a_default_lead_that_is_too_long_is_shown_at_the_time() -> None:
    assert issues(HEAD + "time: 1m")[0].startswith("time: signal lead 2m")


def test_rounding_up_to_slurms_minutes_is_noted() -> None:
    assert notes(config("time: 200s")) == ("time: Slurm counts whole minutes, so 3m20s becomes 00:04:00",)
    assert [notes(config(text)) for text in ("time: 4m", "time: unlimited", "")] == [(), (), ()]


@pytest.mark.parametrize(
    ("text", "every"),
    [
        ("auto", Every(auto=True)),
        ("100 steps", Every(steps=100)),
        ("1 step", Every(steps=1)),
        ("{steps: 5}", Every(steps=5)),
        ("{seconds: 5}", Every(seconds=5)),
        ("1h30m", Every(seconds=5400)),
    ],
)
def test_every(text: str, every: Every) -> None:
    assert config(f"checkpoint: {{every: {text}}}").checkpoint.every == every


@pytest.mark.parametrize("text", ["100", "0 steps", "{steps: 0}", "{}", "{steps: 1, seconds: 1}", "steps", "[1]", "0s"])
def test_not_every(text: str) -> None:
    assert issues(f"{HEAD}checkpoint: {{every: {text}}}")[0].startswith("checkpoint.every")


def test_arguments_and_environment_are_exactly_as_written() -> None:
    text = "args: [1e-3, true, 012, 0x10, ~, 'a b', \"\", -x, $(id), '%j']\nenv: {A: 1e-3, B: no, C: null, D: ''}"
    found = config(text)
    assert found.args == ("1e-3", "true", "012", "0x10", "~", "a b", "", "-x", "$(id)", "%j")
    assert found.env == (("A", "1e-3"), ("B", "no"), ("C", "null"), ("D", ""))


def test_line_breaks_are_kept_where_nothing_of_sbatch_sees_them() -> None:
    found = config('env: {A: "a\\nb"}\nargs: ["a\\nb"]\nsetup: ["a\\nb", c]')
    assert (found.env, found.args, found.setup) == ((("A", "a\nb"),), ("a\nb",), ("a", "b", "c"))
    assert config("setup: |\n  a\n\n  b\n").setup == ("a", "", "b")
    for key in ("env: {A: %s}", "args: [%s]", "setup: %s"):
        assert "U+0000" in issues(HEAD + key % '"\\0"')[0]


@pytest.mark.parametrize("code", ["\\n", "\\r", "\\t", "\\0", "\\e", "\\x7f", "\\N", "\\L", "\\ud800"])
@pytest.mark.parametrize(
    "key",
    [
        "name: %s",
        "script: %s",
        "module: %s",
        "workdir: %s",
        "python: %s",
        "partition: %s",
        "account: %s",
        "qos: %s",
        "sbatch: {comment: %s}",
        "code: {exclude: [%s]}",
        "fake: {partitions: [{name: %s}]}",
    ],
)
def test_control_characters_are_refused_wherever_sbatch_may_see_them(key: str, code: str) -> None:
    found = issues(key % f'"a{code}b"')
    assert any("not allowed in this value" in issue for issue in found), found


def test_the_environment_is_not_put_in() -> None:
    assert config("account: $HOME\nargs: ['${HOME}', '~']").account == "$HOME"


def test_a_null_leaves_the_default() -> None:
    assert config("checkpoint:\nmemory: null\ntime: ~\nargs:") == config()


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("checkpoint: {keep: 0}", "at least 1"),
        ("checkpoint: {allow: [codes]}", "one of topology, code, missing, unexpected, shape, dtype"),
        ("checkpoint: {keep_best: loss}", "must be lowest or highest"),
        ("checkpoint: {keep_best: 0 lowest loss}", "must be lowest or highest"),
        ("checkpoint: {keep_spaced: 6}", "no unit"),
        ("checkpoint: {keep_every_steps: 0}", "at least 1"),
        ("checkpoint: {keep: 1.0}", "whole number"),
        ("checkpoint: {keep: '3'}", "whole number"),
        ("checkpoint: {on_code_change: ignore}", "one of stop, warn"),
        ("checkpoint: [3]", "must be a mapping"),
        ("code: {snapshot: no}", "true or false"),
        ("memory: 4GB", "Slurm's units"),
        ("memory: 0M", "all of the node's"),
        ("partition: true", "must be text"),
        ("partition: ' '", "something here"),
        ("signal_lead: 1.5s", "whole seconds"),
        ("signal_lead: 20h", "at most 18h12m15s"),
        ("args: a b", "must be a list"),
        ("args: [[a]]", "must be one value"),
        ("args: [a, ]\nsetup: {a: b}", "must be shell lines"),
        ("env: {A: [1]}", "must be one value"),
        ("env: {A: }", "must be text"),
        ("env: {PET_X: 1, RLAUNCH_X: 1}", "belongs to rlaunch"),
        ("sbatch: {exclusive: false}", "not wanted"),
        ("sbatch: {comment: }", "must be a value"),
        ("cluster: kubernetes", "one of slurm, fake"),
        ("fake: {like: '23.02'}", "22.05, 24.11"),
        ("fake: {partitions: []}", "one at least"),
        ("fake: {partitions: [{name: a}, {name: a}]}", "its own name"),
        ("fake: {partitions: [{tier: 1}]}", "a partition has a name"),
    ],
)
def test_a_bad_value_is_one_issue(text: str, part: str) -> None:
    (issue,) = issues(HEAD + text)
    assert part in issue


@pytest.mark.parametrize(
    "option",
    ["requeue", "no-requeue", "open-mode", "signal", "output", "error", "nodes", "ntasks", "ntasks-per-node", "time",
     "job-name", "array", "wait", "parsable", "test-only", "wrap", "partition", "account", "qos", "mem", "chdir",
     "export", "gpus-per-node", "cpus-per-task", "job_name", "--mem", "no_requeue"],
)  # fmt: skip
def test_sbatch_options_that_rlaunch_sets(option: str) -> None:
    (issue,) = issues(f"{HEAD}sbatch: {{{option}: x}}")
    assert "reserved option" in issue


def test_other_sbatch_options_go_as_written() -> None:
    found = config("sbatch: {constraint: 'a100&ib', nice: 010, exclusive: true, gres: 'nvme:1', time-min: 10}")
    assert found.sbatch == (
        ("constraint", "a100&ib"), ("nice", "010"), ("exclusive", True), ("gres", "nvme:1"), ("time-min", "10")
    )  # fmt: skip


def test_exactly_one_program() -> None:
    assert issues("name: a") == ["script: no script, module or command, one of them says what to run"]
    assert len(issues("name: a\nmodule: b\ncommand: [c]\nscript: d.py", base=Path("/"))) >= 2
    assert loads("name: a\ncommand: [bash, -c, 'exit 3']").command == ("bash", "-c", "exit 3")
    assert "no program" in issues("name: a\ncommand: []")[0]
    assert "dotted name" in issues("name: a\nmodule: -m.x")[0]


def test_as_dict_is_json() -> None:
    found = config("nodes: 2-4\ncluster: fake\nsbatch: {exclusive: true}\nfaults: [{at: {step: 3}, do: preempt}]")
    again = json.loads(json.dumps(as_dict(found)))
    assert (again["nodes"], again["sbatch"], again["faults"]) == (
        "2-4",
        {"exclusive": True},
        [{"at": {"step": 3}, "do": "preempt"}],
    )


def test_the_fake_cluster_grows_with_the_run() -> None:
    found = config(
        "nodes: 2-6\nworkers_per_node: 4\ncpus_per_worker: 2\ngpus_per_node: 1\nmemory: 16G\nfake: {gpus: 4}"
    )
    assert (found.fake.num_nodes, found.fake.cpus, found.fake.gpus, found.fake.memory_mb) == (6, 8, 4, 16384)
    assert found.cpus_per_node == 8


def test_only_the_fewest_nodes_must_fit() -> None:
    assert config("cluster: fake\nnodes: 2-6\nfake: {nodes: 2}").fake.num_nodes == 2
    assert issues(HEAD + "cluster: fake\nnodes: 3-6\nfake: {nodes: 2}")[0].startswith("nodes: the run asks for 3 nodes")
    assert config("cluster: slurm\nnodes: 3\nfake: {nodes: 2}").nodes.min == 3


def test_a_partition_of_the_fake_cluster() -> None:
    assert "partition 'hi'" in issues(HEAD + "cluster: fake\npartition: high,hi")[0]
    assert config("cluster: fake\npartition: high").partition == "high"
    assert config("partition: gpu").partition == "gpu"


def test_faults() -> None:
    text = "cluster: fake\nworkers_per_node: 2\nfaults:\n- {at: {step: 0}, do: preempt}\n"
    text += "- {at: {after: 2m}, do: kill-worker, rank: 1, signal: sigterm}"
    first, second = config(text).faults
    assert isinstance(first, Preempt) and first.at.step == 0
    assert isinstance(second, KillWorker) and (second.at.after_s, second.rank, second.signal) == (120, 1, "TERM")


def test_faults_need_the_fake_cluster() -> None:
    text = HEAD + "cluster: fake\nfaults: [{at: {step: 0}, do: preempt}]"
    assert "cluster is slurm" in issues(text, "cluster=slurm")[0]
    assert loads(text, overrides=["cluster=slurm", "faults=[]"]).faults == ()


@pytest.mark.parametrize(
    ("override", "key", "part"),
    [
        ("checkpoint.keep", "", "must be a key"),
        ("=3", "", "must be a key"),
        ("a..b=3", "", "must be a key"),
        ("checkpoint.kep=3", "checkpoint.kep", "did you mean keep?"),
        ("what=3", "what", "not part of a configuration"),
        ("keep=3", "keep", "it is called checkpoint.keep"),
        ("nodes=x", "nodes", "must be a number of nodes"),
        ("nodes=[1", "nodes", "expected ',' or ']'"),
        ("args.7=3", "args.7", "the list has 2 elements"),
        ("args.-1=3", "args.-1", "the list has 2 elements"),
        ("name.x=3", "name.x", "has no key x"),
        ("qos=a\n---\nb", "qos", "one document"),
        ("checkpoint={keep: 1, keep: 2}", "checkpoint", "first given"),
        ("qos=!!str 3", "qos", "no tags"),
    ],
)
def test_an_override_is_checked_and_shown_as_itself(override: str, key: str, part: str) -> None:
    with pytest.raises(ConfigErrors) as caught:
        loads(HEAD + "args: [a, b]", "a.yaml", [override])
    (issue,) = caught.value.issues
    assert (issue.file, issue.line, issue.key) == (f"--set {override}", None, key) and part in issue.why
    assert str(caught.value).count("\n") == 1


def test_overrides_replace_in_order_and_make_what_is_missing() -> None:
    text = "args: &x [a, b]\nsetup: *x\nfaults: [{at: {step: 1}, do: preempt}]\ncluster: fake"
    found = config(
        text,
        "args.0=c=d",
        "args.1=1e-3",
        "checkpoint.keep=5",
        "checkpoint.keep=6",
        "faults.0.at.step=9",
        "time=12:30:00",
    )
    assert (found.args, found.setup) == (("c=d", "1e-3"), ("a", "b"))
    assert (found.checkpoint.keep, found.faults[0].at.step, found.time_s) == (6, 9, 45000)
    assert config("memory: 4G", "memory=").memory_mb is None


def test_errors_of_the_file_and_of_overrides_come_together() -> None:
    found = issues("name: a b\nmodule: c\n", "nodes=x", "zz=1")
    assert [issue.split(":")[0] for issue in found] == ["name", "nodes", "zz"]
    found = issues("name: [\n", "=1")
    assert len(found) == 2


def test_errors_survive_pickling_and_know_their_exit_code() -> None:
    with pytest.raises(ConfigErrors) as caught:
        loads("a: 1")
    copy = pickle.loads(pickle.dumps(caught.value))  # made here
    assert copy.issues == caught.value.issues and str(copy) == str(caught.value) and copy.exit_code == 2
    assert len(copy.issues) == 3 and str(copy).count("error: ") == 2


def test_the_caret_stands_under_its_value_after_tabs_and_in_long_lines() -> None:
    with pytest.raises(ConfigErrors) as caught:
        loads(HEAD + "env: {A: 'x\ty', RANK: 1}")
    excerpt, caret = str(caught.value).split("\n")[1:3]
    assert caret.index("^") == excerpt.index("RANK") and "\t" in caret
    with pytest.raises(ConfigErrors) as caught:
        loads(HEAD + "sbatch: {comment: " + "x" * 5000 + ", exclusive: false}")
    excerpt, caret = str(caught.value).split("\n")[1:3]
    assert excerpt[caret.index("^") :].startswith("false") and len(excerpt) < 250


def test_escape_sequences_never_reach_the_terminal() -> None:
    with pytest.raises(ConfigErrors) as caught:
        loads(HEAD + '"\\e[31mred": 1\nname: "\\e[2J"')
    assert "\x1b" not in str(caught.value)


def test_importing_is_light() -> None:
    code = "import sys, resilient_launch.config; print(*{'torch', 'submitit', 'typer', 'numpy'} & set(sys.modules))"
    assert python(code) == ""


def test_a_stagger_group_is_a_directory_relative_to_the_workdir(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    found = loads(f"{HEAD}workdir: code\nstagger: {{group: ../shared, writers: 3, max_wait: 5m}}", base=tmp_path)
    shared = found.stagger
    assert (shared.group, shared.writers, shared.max_wait_s) == (tmp_path / "shared", 3, 300.0)
    assert loads(dump(found), frozen=True) == found
    assert config("stagger: {group: /s, writers: auto}").stagger == StaggerConfig(group=Path("/s"))
    assert config().stagger.group is None


@pytest.mark.parametrize("text", ["writers: 0", "writers: many", "writers: 65", "max_wait: 60", "group: ''", "k: 2"])
def test_not_a_stagger_group(text: str) -> None:
    assert len(issues(f"{HEAD}stagger: {{{text}}}")) == 1
