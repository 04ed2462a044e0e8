"""rlaunch: takes a distributed training run to its last step, whatever happens to the machines under it."""

__version__ = "0.1.0"
