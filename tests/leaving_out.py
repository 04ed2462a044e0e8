"""Tests that a machine cannot run: left out by name for a user, a failure under CI."""

from __future__ import annotations

import os

import pytest


def leave_out(what: str, missing: list[str]) -> None:
    """Skip what this machine cannot run, and say why; under CI=true that is a failure."""
    if missing:
        reason = f"left out without {what}, which needs {'; '.join(missing)}"
        if os.environ.get("CI", "").lower() in ("true", "1"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
