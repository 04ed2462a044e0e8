"""Schedulers: Slurm by its commands, and a fake one that behaves like it."""
