"""Runs that never happened: what an interval, a notice or a straggler would cost, played with random failures."""
