"""Every message as a user sees it: tests/golden/config/<case>.yaml must give <case>.txt.

RLAUNCH_UPDATE_GOLDEN=1 writes the texts anew.
"""

import os
import sys
from pathlib import Path

import pytest

from resilient_launch.config import ConfigErrors, dump, load

GOLDEN = Path(__file__).parents[2] / "golden" / "config"
CASES = sorted(path.stem for path in GOLDEN.glob("*.yaml"))
ACCEPTED = {"clock_unquoted"}


def shown(path: Path) -> str:
    try:
        text = dump(load(path))
    except ConfigErrors as error:
        text = f"error: {error}\n"
        assert error.exit_code == 2
    return text.replace(str(GOLDEN), "<here>").replace(sys.executable, "<python>").replace("<here>/", "")


@pytest.mark.parametrize("case", CASES)
def test_messages(case: str) -> None:
    expected = GOLDEN / f"{case}.txt"
    text = shown(GOLDEN / f"{case}.yaml")
    if os.environ.get("RLAUNCH_UPDATE_GOLDEN"):
        expected.write_text(text)
    assert text == expected.read_text()
    assert text.startswith("error: ") != (case in ACCEPTED)


@pytest.mark.parametrize("case", sorted(set(CASES) - ACCEPTED))
def test_every_issue_has_a_place_and_something_to_try(case: str) -> None:
    with pytest.raises(ConfigErrors) as caught:
        load(GOLDEN / f"{case}.yaml")
    for issue in caught.value.issues:
        assert issue.line and issue.column and issue.source_line and issue.what and issue.why and issue.hint
    places = [(issue.line, issue.column) for issue in caught.value.issues]
    assert places == sorted(places)


def test_a_suggested_hint_repairs_the_file(tmp_path: Path) -> None:
    text = (GOLDEN / "lead_beyond_limit.yaml").read_text()
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(ConfigErrors) as caught:
        load(path)
    for hint in caught.value.issues[0].hint.split(", or "):
        key, value = hint.split(": ")
        load(path, [f"{key}={value}"])
