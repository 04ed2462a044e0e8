"""Strict YAML into a frozen LaunchConfig."""

from resilient_launch.config.checks import notes
from resilient_launch.config.issues import ConfigErrors, ConfigIssue
from resilient_launch.config.load import as_dict, dump, load, loads
from resilient_launch.config.schema import LaunchConfig

__all__ = ["ConfigErrors", "ConfigIssue", "LaunchConfig", "as_dict", "dump", "load", "loads", "notes"]
