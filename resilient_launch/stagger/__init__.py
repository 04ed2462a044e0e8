"""Turns at shared storage, taken with nothing but files in a directory that the runs share: no daemon, no server.

A turn is advice. Whoever writes at the same time as somebody else is slower, never wrong, so nothing here may keep
anybody from writing: every wait is bounded, and whatever fails counts as a turn after a while.
"""
