"""docs/events.md, rendered from the declared names. Pure."""

from collections.abc import Iterable, Sequence

from sbpipe.runs.density import EVALUATIONS, STEPS
from sbpipe.runs.names.events import KINDS
from sbpipe.runs.names.fields import STAMP, EventKind, Field
from sbpipe.runs.names.files import FILES
from sbpipe.runs.names.stages import STAGES
from sbpipe.runs.names.summary import GROUPS, Number
from sbpipe.runs.storm import ALWAYS

_HEAD = """\
<!-- Generated from sbpipe/runs/names/ by `python -m sbpipe.runs.names > docs/events.md`. -->
# What a run writes

Everything sbpipe shows, in the terminal, on the live page, in reports and to trackers, is made from these
files; nothing else is asked of a running process."""
_EVENTS = """\
One JSON object per line, appended and flushed line by line: a kill cuts at most the last line. A number that
was not finite is `null`. After a resume the file continues with a `resumed` event; steps after the checkpoint
appear a second time, and the later ones count.

A run may go on for weeks: what it writes grows with the logarithm of its length. The first {dense:,} steps
have an event each, and so have the {singles} steps after every further doubling; for the rest of a doubling
stand {windows:,} `steps` events, with sums and means over every step. A window that a checkpoint cuts goes on
after the resume. The same holds for the leases of each selector. Every evaluation is written; from number
{evals} on only some say what they found of each class. Of a rare kind (a selector lost, an answer refused,
a warning, ...) the first {always:,} of a process are written, then one a minute, with a `left_out` event that
counts the others. What only matters now is in the `recent` files, which begin anew when they are long.

Every event has:"""
_STAGES = """\
How a role spends its time. `work` counts as busy, `wait` as idle, `overhead` as neither; `apart` is left out
of all ratios; `side` runs in a thread beside the loop; `processor` is processor time, not a stretch of the
clock."""
_SWING = """\
A run warns once that its loop swings when `swing` was above 2 and `prediction_swing` above 35 in 80 of the
last 128 steps, the first 96 steps not counted; where `prediction_swing` is null, when `swing` was above 6.
Both grow with the batch; the bounds were measured at 128."""
_SUMMARY = """\
`summary.json` is flat. Units: `share` lies between 0 and 1; `ratio` and `correlation` have none. A number
that does not apply to a run is null."""


def page() -> str:
    """The whole page."""
    parts = [
        _HEAD,
        _table(("file", "what"), ((f"`{name}`", meaning) for name, meaning in FILES.items())),
        f"## Events\n{_events()}",
        _fields(STAMP),
        *(_kind(kind) for kind in KINDS.values()),
        f"## Stages\n{_STAGES}",
        _table(
            ("stage", "role", "counts as", "meaning"),
            ((f"`{stage.name}`", stage.role, stage.nature, stage.meaning) for stage in STAGES),
        ),
        f"## Summary\n{_SUMMARY}",
        *(f"### {title}\n{_fields(numbers)}" for title, numbers in GROUPS.items()),
    ]
    return "\n\n".join(parts) + "\n"


def _events() -> str:
    return _EVENTS.format(**STEPS._asdict(), evals=EVALUATIONS.dense, always=ALWAYS)


def _kind(kind: EventKind) -> str:
    title = f"### `{kind.name}` ({', '.join(kind.roles)})\n{kind.meaning[0].upper()}{kind.meaning[1:]}."
    if kind.name == "summary":
        return title  # its fields are the table at the end of the page
    return f"{title}\n\n{_fields(kind.fields)}" + (f"\n\n{_SWING}" if kind.name == "step" else "")


def _fields(fields: Iterable[Field | Number]) -> str:
    return _table(("name", "unit", "meaning"), ((f"`{one.name}`", one.unit, one.meaning) for one in fields))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join([_row(head), _row(["---"] * len(head)), *map(_row, rows)])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
