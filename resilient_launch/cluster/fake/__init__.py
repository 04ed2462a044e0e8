"""An embedded Slurm: its commands on PATH over one state directory, with real processes and real signals."""
