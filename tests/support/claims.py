"""Made-up results to judge claims on, and the project's comparisons as plans."""

from collections.abc import Sequence
from pathlib import Path

from sbpipe.config import Config, resolve
from sbpipe.runs.curve import Point
from sbpipe.studies.comparison_plan import plan_comparison
from sbpipe.studies.plan import Plan
from sbpipe.studies.reproduce.findings import Finding

CONFIGS = Path(__file__).parents[2] / "configs"


def comparison(path: Path) -> Plan:
    """The plan of a comparison's file."""
    return plan_comparison(path, settings={}, seeds=None)


def of_arm(plan: Plan, arm: str, task: str | None = None) -> Config:
    """The settings of an arm's first cell."""
    return resolve(next(cell.settings for cell in plan.cells if cell.arm == arm and cell.task == task))


def curves(*ends: float, pace_s: float = 1.0) -> dict[int | None, list[Point]]:
    """One run per final error: it halves its distance to the end at each of four evaluations."""
    shares = (0.5, 0.25, 0.125, 0.0)
    return {
        seed: [
            Point((k + 1) * pace_s, end + share * (1 - end), candidates=100.0 * (k + 1))
            for k, share in enumerate(shares)
        ]
        for seed, end in enumerate(ends)
    }


def verdicts(findings: Sequence[Finding]) -> list[str]:
    """Whether each part of a claim held."""
    return [finding.verdict for finding in findings]
