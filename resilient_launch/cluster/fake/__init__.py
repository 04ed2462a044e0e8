"""A Slurm of real processes and real signals on one machine."""
