"""Many jobs that checkpoint to one storage system, simulated event by event, under one strategy or another."""
