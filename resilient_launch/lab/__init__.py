"""Fault schedules and comparisons of what they led to."""
