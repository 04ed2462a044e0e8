"""Strict YAML into a frozen LaunchConfig."""
