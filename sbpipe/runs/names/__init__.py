"""The one place that names what a run writes: files, events, stages and numbers, with unit and meaning.

Writers, readers, pictures, trackers and docs/events.md take names from here. Knows no run and no picture.
`python -m sbpipe.runs.names > docs/events.md` writes that page.
"""

from sbpipe.runs.names.events import IN_SUMMARY, KINDS, field_of
from sbpipe.runs.names.fields import LOOP, EventKind, Field
from sbpipe.runs.names.stages import (
    LOOP_STAGES,
    SELECTOR_STAGES,
    SIDE_STAGES,
    STAGE_LABELS,
    STAGES,
    Stage,
    stages_of,
)
from sbpipe.runs.names.summary import NUMBERS, TROUBLE, Number

__all__ = [
    "IN_SUMMARY",
    "KINDS",
    "LOOP",
    "LOOP_STAGES",
    "NUMBERS",
    "SELECTOR_STAGES",
    "SIDE_STAGES",
    "STAGES",
    "STAGE_LABELS",
    "TROUBLE",
    "EventKind",
    "Field",
    "Number",
    "Stage",
    "field_of",
    "stages_of",
]
