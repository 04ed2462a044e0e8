"""Runnable examples that ship with the package."""
