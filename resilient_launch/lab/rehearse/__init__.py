"""Rehearsals of a user's own job: interrupted on the fake cluster, and compared with itself uninterrupted."""
