"""What is measured: each runs as ``python -m benchmarks.NAME [--json] [--quick]``."""
