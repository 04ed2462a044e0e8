"""From a configuration to a frozen SubmitPlan, and from a plan to a job."""

from resilient_launch.launch.clusters import connect
from resilient_launch.launch.plan import SubmitPlan, make_plan
from resilient_launch.launch.submit import submit

__all__ = ["SubmitPlan", "connect", "make_plan", "submit"]
