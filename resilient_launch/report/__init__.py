"""What happened to a run, told from its files."""
