"""The contract's list of what holds names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]


def test_every_id_in_the_list_is_a_test() -> None:
    named = set(re.findall(r"`(test_\w+)`", (TESTS / "contract" / "README.md").read_text()))
    files = [*(TESTS / "contract").glob("test_*.py"), *(TESTS / "unit" / "cluster_fake").glob("test_*.py")]
    known = {name for path in files for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)}
    assert len(named) > 80 and named - known == set()
