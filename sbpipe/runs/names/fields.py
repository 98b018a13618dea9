"""What an event is made of, and the fields that several kinds share: unit and meaning. Plain data.

A field whose unit is a list or a map is no curve; a field that applies to some runs only is null in others.
"""

from typing import Literal, NamedTuple

from sbpipe.runs.names.stages import Role


class Field(NamedTuple):
    """One field of an event."""

    name: str
    unit: str
    meaning: str
    label: str = ""
    """What pictures call it, where it is drawn."""


class EventKind(NamedTuple):
    """One kind of event."""

    name: str
    roles: tuple[Role | Literal["supervisor"], ...]
    meaning: str
    fields: tuple[Field, ...]


STAMP = (
    Field("t", "s", "wall clock"),
    Field("clock", "s", "this host's monotonic clock; one clock for all processes of a host"),
    Field("role", "text", "`trainer`, `selector` or `supervisor`"),
    Field("kind", "text", "the kind"),
)
"""What every event has."""

STEP = Field("step", "steps", "optimizer steps done")
CANDIDATES = Field("candidates", "candidates", "candidates considered so far")
# Kept from the formatter here and below: one field a line reads as a table.
SWING = Field(
    "swing", "ratio", "variance of the class shares of the last 32 train batches over what chance gives: 1 = "
    "calm; to 4 = selection follows classes, as fresh selection does; above 6 = it over-corrects between "
    "classes, because its feedback comes late. Known after 8 batches", "swing",
)  # fmt: skip
PREDICTION_SWING = Field(
    "prediction_swing", "ratio", "the same for the classes that the selector's model predicts for its "
    "candidates, which no policy has chosen: the model itself swings between classes", "prediction swing",
)  # fmt: skip
STRENGTH = Field(
    "strength", "ratio", "how sharply the policy selects now: 0 = uniformly, 1 = plain Selective-Backprop",
    "strength",
)  # fmt: skip
ESS = Field(
    "ess", "ratio", "effective sample size of the importance weights of a batch, (sum w)² / (n sum w²): "
    "1 = every example counts alike, 0.5 = half of the batch is lost to weighing", "effective sample size",
)  # fmt: skip
GUARD = Field(
    "guard", "ratio", "1 = open; less = selection is mixed towards uniform, because the loop swung or the "
    "effective sample size fell", "guard",
)  # fmt: skip
SPANS = Field(
    "spans", "map", "`{stage: [start, duration, start, duration, ...]}` since the last such event, at most "
    "64 of each, in seconds on `clock`; stages are listed below",
)  # fmt: skip
STAGE_TOTALS = Field(
    "stages", "map", "`{stage: [times, seconds]}` since the last such event, in all; stages are listed below",
)  # fmt: skip
TRUST = Field(
    "trust", "ratio", "1 = scores are trusted; 0 = selection is uniform, because scores say nothing about "
    "fresh losses, are all alike, or come from a model that predicts one class. Of a policy that is not "
    "steered: what it would be", "trust",
)  # fmt: skip
LABEL_TRUST = Field(
    "label_trust", "ratio", "1 = labels are trusted; less = selection is mixed towards uniform, because many "
    "labels look wrong. Of a policy that is not steered: what it would be", "trust in labels",
)  # fmt: skip
WRONG_LABELS = Field(
    "wrong_labels", "ratio", "largest share of wrong labels that was evident so far, by where the selector's "
    "model ranks the labels of candidates; null where it is no classifier of five classes or more, or knows "
    "too little yet",
    "wrong labels",
)  # fmt: skip
LOOP = {
    field.name: field
    for field in (SWING, PREDICTION_SWING, STRENGTH, ESS, GUARD, TRUST, LABEL_TRUST, WRONG_LABELS)
}
"""Whether the loop is stable, by field; null where one does not apply or is not yet known."""
