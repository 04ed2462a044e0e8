"""Saving in the background: a snapshot in shared memory, and a process of its own that makes it durable."""
