"""Tests that a machine cannot run: left out by name for a user, a failure under CI."""

from __future__ import annotations

import os

import pytest


def is_ci() -> bool:
    return os.environ.get("CI", "").lower() in ("true", "1")


def leave_out_for_the_kernel(what: str, missing: list[str]) -> None:
    """Skip what this machine's kernel cannot do, whatever is installed: the contract's table says so, under CI too."""
    if missing:
        pytest.skip(f"left out without {what}, which needs {'; '.join(missing)}")


def leave_out(what: str, missing: list[str]) -> None:
    """Skip what this machine cannot run, and say why; under CI=true that is a failure."""
    if missing:
        reason = f"left out without {what}, which needs {'; '.join(missing)}"
        if is_ci():
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
