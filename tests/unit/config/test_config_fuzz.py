"""Arbitrary input gives ConfigErrors or a configuration; every configuration reads back from its own dump."""

import json
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from resilient_launch.config import ConfigErrors, as_dict, dump, loads
from resilient_launch.config.sections import ELSEWHERE, TOP

GOLDEN = Path(__file__).parents[2] / "golden" / "config"
SYNTAX = [
    ": ",
    "\n",
    "- ",
    "{",
    "}",
    "[",
    "]",
    ", ",
    "&a ",
    "*a ",
    "!!int ",
    "'",
    '"',
    "|\n ",
    "#",
    "\t",
    "%",
    "---",
    "?",
]
PLAIN = ["12:30:00", "10m", "100 steps", "2-4", "true", "~", "1e3", "\ufeff", "\r\n", "at", "do", "step", "preempt"]
PIECES = [*TOP, *ELSEWHERE, *SYNTAX, *PLAIN, "kill-worker", "rank", "low", "\\"]


def must_be_tidy(text: str, *overrides: str) -> None:
    try:
        config = loads(text, "a.yaml", overrides, base=GOLDEN)
    except ConfigErrors as error:
        assert error.issues and str(error)
    else:
        assert loads(dump(config), frozen=True) == config


@settings(deadline=None, max_examples=100)
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=40).map("".join))
def test_arbitrary_text(text: str) -> None:
    must_be_tidy(text)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.text(max_size=30) | st.builds("{}={}".format, st.sampled_from([*TOP]), st.text(max_size=20)), max_size=3
    )
)
def test_arbitrary_overrides(overrides: list[str]) -> None:
    must_be_tidy("name: a\nmodule: b", *overrides)


KEY = st.sampled_from(PIECES) | st.text(max_size=5)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10) | st.sampled_from(PIECES),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(PIECES) | st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(deadline=None, max_examples=100)
@given(st.dictionaries(st.sampled_from([*TOP]), VALUES, max_size=6))
def test_arbitrary_values_under_known_keys(values: dict[str, Any]) -> None:
    must_be_tidy(yaml.safe_dump({"name": "a", "module": "b", **values}))


WORD = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=12).filter(str.strip)
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
NAME = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
DURATION = st.integers(1, 10**9).map(lambda count: f"{count}ms") | st.sampled_from(["10m", "1-12:00:00", "2h30m"])
SECONDS = st.integers(1, 60000).map(lambda count: f"{count}s")
AT = st.builds(lambda step: {"step": step}, st.integers(0, 10**9)) | st.builds(lambda after: {"after": after}, DURATION)
FAULT = st.one_of(
    st.builds(lambda at, verb: {"at": at, "do": verb}, AT, st.sampled_from(["preempt", "cancel", "time-limit"])),
    st.builds(lambda at: {"at": at, "do": "kill-worker", "rank": 0, "signal": "TERM"}, AT),
    st.builds(lambda at, limit: {"at": at, "do": "time-limit", "in": limit}, AT, SECONDS),
)
PARTITION = st.fixed_dictionaries(
    {"name": NAME},
    optional={"tier": st.integers(0, 9), "preempt": st.sampled_from(["off", "requeue"]), "grace": SECONDS},
)
PARTITIONS = st.lists(PARTITION, min_size=1, max_size=3, unique_by=lambda partition: partition["name"])
CONFIG = st.fixed_dictionaries(
    {"name": NAME, "cluster": st.just("fake")},
    optional={
        "args": st.lists(TEXT, max_size=3),
        "env": st.dictionaries(st.from_regex("X_[A-Z]{1,5}", fullmatch=True), TEXT, max_size=3),
        "setup": TEXT | st.lists(TEXT, max_size=3),
        "nodes": st.integers(1, 4) | st.sampled_from(["1-4", "2-4"]),
        "workers_per_node": st.integers(1, 9),
        "gpus_per_node": st.integers(0, 8),
        "memory": st.integers(1, 9999).map(lambda count: f"{count}M"),
        "time": st.integers(6, 999).map(lambda count: f"{count}h") | st.just("unlimited"),
        "account": WORD,
        "qos": WORD,
        "sbatch": st.dictionaries(st.sampled_from(["comment", "mail-type", "constraint"]), WORD | st.just(True)),
        "checkpoint": st.fixed_dictionaries(
            {},
            optional={
                "every": SECONDS | st.sampled_from(["7 steps", "auto"]),
                "keep": st.integers(1, 9),
                "allow": st.lists(st.sampled_from(["topology", "code", "dtype"]), max_size=2),
                "keep_spaced": SECONDS,
                "keep_every_steps": st.integers(1, 999),
                "keep_best": st.sampled_from(["lowest loss", "highest acc", "3 lowest eval/loss"]),
                "failures_per_1000_node_days": st.floats(0.001, 1000).map(lambda rate: round(rate, 3)),
                "preempt_exempt": SECONDS,
            },
        ),
        "fake": st.fixed_dictionaries(
            {"partitions": st.lists(PARTITION, min_size=1, max_size=3, unique_by=lambda p: p["name"])}
        ),
        "faults": st.lists(FAULT, max_size=3),
        "code": st.fixed_dictionaries({"exclude": st.lists(WORD, max_size=3)}),
    },
)


@settings(deadline=None, max_examples=60)
@given(CONFIG, st.sampled_from([{"module": "pkg.train"}, {"script": "train.py"}, {"command": ["a b", "", "\n"]}]))
def test_good_configurations_read_back_equal(values: dict[str, Any], program: dict[str, Any]) -> None:
    config = loads(yaml.safe_dump({**values, **program}), base=GOLDEN)
    text = dump(config)
    assert loads(text, frozen=True) == config
    assert dump(loads(text, frozen=True)) == text
    assert json.loads(json.dumps(as_dict(config))) == as_dict(config)
    assert yaml.safe_load(text) == as_dict(config), "stock YAML reads something else"
