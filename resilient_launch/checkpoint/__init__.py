"""Checkpoints: a torch-free store, and the training state that goes into it."""
