"""Rehearsals take minutes each, so they are no part of make test: make rehearse."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every one of them runs several jobs, one after another."""
    for item in items:
        item.add_marker(pytest.mark.slow)
        item.add_marker(pytest.mark.timeout(1200))
