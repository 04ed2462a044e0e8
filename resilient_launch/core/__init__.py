"""What every other room stands on: ids, causes, errors, durable file I/O, events, paths. Standard library only."""
