"""Made-up results to judge claims on, and the project's comparisons as plans."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sbpipe.config import Config, resolve, toml_value
from sbpipe.runs.curve import Point
from sbpipe.studies.comparison_plan import plan_comparison
from sbpipe.studies.plan import Plan
from sbpipe.studies.reproduce.findings import Finding

Named = Mapping[str, Any]
CONFIGS = Path(__file__).parents[2] / "configs"


TINY: dict[str, Any] = {
    "mode": "inline",
    "model.options": {"width": 4},
    "data.examples": 200,
    "data.test_examples": 50,
    "train.batch_size": 16,
}
"""Settings of a run that takes a moment."""


def comparison(path: Path) -> Plan:
    """The plan of a comparison's file."""
    return plan_comparison(path, settings={}, seeds=None)


def comparison_of(folder: Path, text: str, **flags: Any) -> Plan:
    """The plan of a comparison's file of this text."""
    path = folder / "arms.toml"
    path.write_text(text)
    return plan_comparison(path, **{"settings": {}, "seeds": None} | flags)


def comparison_text(
    seeds: int, base: Named, arms: Mapping[str, Named], tasks: Mapping[str, Named] | None = None
) -> str:
    """A comparison's file: what all cells share, and what each arm and each task sets, by their names."""
    lines = [f"seeds = {seeds}", "[base]", *_lines(base)]
    for word, entries in (("tasks", tasks or {}), ("arms", arms)):
        for name, settings in entries.items():
            lines += [f"[[{word}]]", f"name = {toml_value(name)}", *_lines(settings)]
    return "\n".join(lines)


def _lines(settings: Named) -> list[str]:
    return [f"{key} = {toml_value(value)}" for key, value in settings.items()]


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
