"""What runs on the simulated cluster: classes of jobs, the nodes' failure rate, and the storage they share."""

from __future__ import annotations

from dataclasses import dataclass, replace

from resilient_launch.policy.stagger import Sharer, joint_periods_s, young_period_s


@dataclass(frozen=True, kw_only=True)
class JobClass:
    """``count`` jobs of ``nodes`` nodes each, which write a checkpoint in ``write_s`` seconds when nobody else does."""

    name: str
    count: int
    nodes: int
    write_s: float


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A steady mix of jobs: whatever ends is replaced by the like.

    ``system_mtbf_s`` is the time between two failures anywhere on ``nodes`` nodes; ``writers`` is how many turns there
    are at a time.
    """

    name: str
    nodes: int
    system_mtbf_s: float
    classes: tuple[JobClass, ...]
    writers: int = 1

    @property
    def sharers(self) -> list[Sharer]:
        """Every job, class by class."""
        return [
            Sharer(weight=job.nodes, write_s=job.write_s, mtbf_s=self.system_mtbf_s * self.nodes / job.nodes)
            for job in self.classes
            for _ in range(job.count)
        ]

    @property
    def names(self) -> list[str]:
        return [f"{job.name}-{number}" for job in self.classes for number in range(job.count)]

    def periods_s(self, kind: str) -> list[float]:
        """The period of every job: ``own`` optimum, or ``joint``."""
        sharers = self.sharers
        return joint_periods_s(sharers) if kind == "joint" else [young_period_s(s.write_s, s.mtbf_s) for s in sharers]


_CIELO = Workload(
    name="cielo 40 GB/s, MTBF 1h",
    nodes=17_784,
    system_mtbf_s=3600.0,
    classes=(
        JobClass(name="a", count=8, nodes=1024, write_s=1310.72),
        JobClass(name="b", count=11, nodes=256, write_s=378.88),
        JobClass(name="c", count=2, nodes=2048, write_s=5734.4),
        JobClass(name="d", count=1, nodes=1875, write_s=1275.0),
    ),
)
CIELO_ROWS = ((40, 1), (80, 1), (160, 1), (40, 8), (40, 24))
"""Storage bandwidth in GB/s and system MTBF in hours of the five rows that are usually compared."""


def cielo(bandwidth_gb_per_s: float, mtbf_h: float) -> Workload:
    """The workload of Los Alamos' Cielo, as Herault et al. (2018) use it."""
    return replace(
        _CIELO,
        name=f"cielo {bandwidth_gb_per_s:g} GB/s, MTBF {mtbf_h:g}h",
        system_mtbf_s=3600.0 * mtbf_h,
        classes=tuple(replace(job, write_s=job.write_s * 40 / bandwidth_gb_per_s) for job in _CIELO.classes),
    )
