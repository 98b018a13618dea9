"""The kinds of events that a run writes, with their fields: unit and meaning. Plain data.

A field whose unit is a list or a map is no curve; a field that applies to some runs only is null in others.
"""

from typing import Literal, NamedTuple

from sbpipe.runs.names.stages import Role
from sbpipe.runs.names.summary import NUMBERS


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

_STEP = Field("step", "steps", "optimizer steps done")
_CANDIDATES = Field("candidates", "candidates", "candidates considered so far")
# Kept from the formatter here and below: one field a line reads as a table.
_SWING = Field(
    "swing", "ratio", "variance of the class shares of the last 32 train batches over what chance gives: 1 = "
    "calm; to 4 = selection follows classes, as fresh selection does; above 6 = it over-corrects between "
    "classes, because its feedback comes late. Known after 8 batches", "swing",
)  # fmt: skip
_PREDICTION_SWING = Field(
    "prediction_swing", "ratio", "the same for the classes that the selector's model predicts for its "
    "candidates, which no policy has chosen: the model itself swings between classes", "prediction swing",
)  # fmt: skip
_STRENGTH = Field(
    "strength", "ratio", "how sharply the policy selects now: 0 = uniformly, 1 = plain Selective-Backprop",
    "strength",
)  # fmt: skip
_ESS = Field(
    "ess", "ratio", "effective sample size of the importance weights of a batch, (sum w)² / (n sum w²): "
    "1 = every example counts alike, 0.5 = half of the batch is lost to weighing", "effective sample size",
)  # fmt: skip
_GUARD = Field(
    "guard", "ratio", "1 = open; less = selection is mixed towards uniform, because the loop swung or the "
    "effective sample size fell", "guard",
)  # fmt: skip
_SPANS = Field(
    "spans", "map", "`{stage: [start, duration, start, duration, ...]}` since the last such event, at most "
    "64 of each, in seconds on `clock`; stages are listed below",
)  # fmt: skip
_TRUST = Field(
    "trust", "ratio", "1 = scores are trusted; 0 = selection is uniform, because scores say nothing about "
    "fresh losses, are all alike, or come from a model that predicts one class. Of a policy that is not "
    "steered: what it would be", "trust",
)  # fmt: skip
_LABEL_TRUST = Field(
    "label_trust", "ratio", "1 = labels are trusted; less = selection is mixed towards uniform, because many "
    "labels look wrong. Of a policy that is not steered: what it would be", "trust in labels",
)  # fmt: skip
_WRONG_LABELS = Field(
    "wrong_labels", "ratio", "largest share of wrong labels that was evident so far, by where the selector's "
    "model ranks the labels of candidates; null where it is no classifier of five classes or more, or knows "
    "too little yet",
    "wrong labels",
)  # fmt: skip
LOOP = {
    field.name: field
    for field in (
        _SWING, _PREDICTION_SWING, _STRENGTH, _ESS, _GUARD, _TRUST, _LABEL_TRUST, _WRONG_LABELS,
    )
}  # fmt: skip
"""Whether the loop is stable, by field; null where one does not apply or is not yet known."""

_START = EventKind("start", ("trainer",), "a trainer's process begins", (
    Field("mode", "text", "how the roles are clocked"),
    Field("policy", "text", "`selection.policy`"),
    Field("keep", "share", "`selection.keep`; of `auto`, the rate it starts from"),
    Field("interval", "steps", "between two publishes"),
    Field("fast_interval", "steps", "between two publishes of the fast parts; 0: with the rest"),
    Field("batch_size", "examples", "of a train batch"),
    Field("seed", "number", "the seed"),
    Field("digest", "text", "digest of the settings"),
    Field("total_candidates", "candidates", "the budget, if it is one of epochs"),
    Field("total_steps", "steps", "the budget, if it is one of steps"),
    Field("total_s", "s", "the budget, if it is one of time"),
    Field("num_examples", "examples", "in the train set"),
    Field("num_classes", "classes", "of the data"),
    Field("devices", "devices", "held by the run"),
))  # fmt: skip
_PROGRESS = EventKind("progress", ("trainer",), "twice a second: how the run stands", (
    Field("share", "share", "of the budget that is done", "done"),
    _STEP,
    _CANDIDATES,
    Field("loss", "loss", "training loss of the last step, mean of the batch", "training loss"),
    Field("error", "share", "last test error", "test error"),
    Field("keep_rate", "share", "of the candidates so far that were kept", "keep rate"),
    Field("keep", "share", "the keep rate that leases aim at now", "keep rate aimed at"),
    Field("fill", "share", "of the examples trained so far that nobody selected: filled in, because "
          "selection was late", "filled"),
    Field("staleness", "steps", "of the selected examples trained so far, mean", "staleness"),
    Field("idle", "share", "of its time so far that the trainer waited", "trainer idle"),
    Field("selector_idle", "share", "of their time so far that the selectors waited", "selector idle"),
    Field("selectors", "selectors", "that are ready", "selectors"),
    Field("queue", "examples", "kept and waiting to be trained", "queue"),
    Field("candidates_per_s", "candidates/s", "considered per second of training so far", "throughput"),
    Field("elapsed_s", "s", "of training so far, test error included", "time"),
    Field("left_s", "s", "of training left, as estimated", "left"),
    _SWING,
    _ESS,
    _STRENGTH,
    _GUARD,
    _TRUST,
    Field("worth_ess", "ratio", "effective share of the last candidates, mean(g)² / mean(g²) of their "
          "residual norms: 1 = all are alike, so selection can gain nothing; null where scores do not tell "
          "the norms", "effective share"),
    Field("worth_ess_error", "ratio", "its standard error"),
))  # fmt: skip
_ONE_STEP = EventKind("step", ("trainer",), "one optimizer step, written a step later", (
    Field("step", "steps", "its number, counted from 0"),
    _CANDIDATES,
    Field("loss", "loss", "mean of the batch", "training loss"),
    Field("rate", "number", "learning rate"),
    Field("keep_probability", "share", "mean over the batch"),
    Field("fill", "share", "of the batch that nobody selected: filled in, because selection was late",
          "filled"),
    Field("staleness_mean", "steps", "mean over the selected part of the batch; null where all was filled",
          "staleness"),
    Field("staleness_max", "steps", "largest of the batch"),
    Field("fast_staleness_mean", "steps", "the same mean for the fast parts (normalisation, biases, head); "
          "null where they come with the rest"),
    Field("age_mean", "steps", "part of the staleness before the selection arrived, mean"),
    Field("queue_mean", "steps", "part of the staleness after the selection arrived, mean"),
    Field("spearman", "correlation", "fidelity: rank correlation of the batch's scores with its fresh losses",
          "fidelity"),
    Field("score_error", "loss", "mean absolute difference of score and fresh loss"),
    Field("class_counts", "list", "examples of each class in the batch; empty where targets are no classes"),
    _SWING,
    _PREDICTION_SWING,
    _ESS,
    _STRENGTH,
    _GUARD,
    _TRUST,
    _LABEL_TRUST,
    _WRONG_LABELS,
    _SPANS,
))  # fmt: skip
_EVAL = EventKind("eval", ("trainer",), "the test error was measured", (
    _STEP,
    _CANDIDATES,
    Field("trained", "examples", "backpropagated so far"),
    Field("elapsed_s", "s", "of training so far, test error included"),
    Field("evaluate_s", "s", "spent measuring the test error so far, this time included: subtract it to get "
          "training time"),
    Field("startup_s", "s", "before the first step"),
    Field("error", "share", "of test examples classified wrongly; null where targets are no classes",
          "test error"),
    Field("loss", "loss", "mean over the test set", "test loss"),
    Field("class_errors", "list", "the error of each class"),
))  # fmt: skip
_SCORES = EventKind("scores", ("trainer",), "with every `eval`: what selection did to the examples", (
    _STEP,
    _CANDIDATES,
    Field("quantiles", "list", "percentiles 0 to 100 of the last `selection.history` scores; empty where "
          "the policy needs none"),
    Field("class_considered", "list", "candidates of each class since the last such event"),
    Field("class_kept", "list", "of these, kept"),
    Field("times_kept", "list", "how many examples were kept 0, 1, 2, ... times, of those considered"),
))  # fmt: skip
_SELECTORS = (
    EventKind("selector", ("trainer",), "a selector came, changed its precision, or went", (
        Field("selector", "text", "its id"),
        Field("state", "text", "`ready`, `rejected`, `lost` (died, hung or failed) or `left`"),
        Field("device", "text", "its device and precision, when it is ready or scores in another one"),
        Field("pulls_weights", "yes/no", "whether it gets weights over the wire, not in shared memory"),
        Field("reason", "text", "why it went, or what changed"),
    )),
    EventKind("expired", ("trainer",), "leases taken back from a selector that was lost", (
        Field("selector", "text", "its id"),
        Field("leases", "leases", "how many"),
    )),
    EventKind("fenced", ("trainer",), "an answer refused", (
        Field("selector", "text", "its id"),
        Field("lease", "number", "which lease"),
        Field("reason", "text", "why"),
    )),
    EventKind("built", ("selector",), "a selector is ready to answer leases", (
        Field("selector", "text", "its id"),
        Field("device", "text", "what it scores on"),
        Field("data", "text", "fingerprint of the data"),
        Field("model", "text", "digest of the model's layout"),
        Field("weights", "text", "`shared` memory, or `pulled` over the wire"),
        Field("precision", "text", "what it scores its first leases in"),
        Field("irreducible", "text", "digest of the irreducible losses; only with policy `rho`"),
    )),
    EventKind("selection", ("selector",), "one lease answered", (
        Field("lease", "number", "which lease"),
        Field("version", "steps", "of the weights that scored it"),
        Field("candidates", "candidates", "considered"),
        Field("kept", "candidates", "kept"),
        _SPANS,
    )),
    EventKind("check", ("selector",), "some candidates scored in fp32 too", (
        Field("version", "steps", "of the weights"),
        Field("precision", "text", "what it scores in"),
        Field("agreement", "correlation", "rank correlation of both scores"),
    )),
    EventKind("statistics", ("selector",), "some candidates scored in evaluation mode and with batch "
              "statistics too; means of the last three such checks", (
        Field("version", "steps", "of the weights"),
        Field("evaluation_loss", "loss", "mean loss in evaluation mode"),
        Field("batch_loss", "loss", "mean loss with batch statistics"),
        Field("agreement", "correlation", "rank correlation of both"),
        Field("are_estimated", "yes/no", "whether BatchNorm layers score with statistics of candidates from "
              "here on, because evaluation mode is blind"),
    )),
)  # fmt: skip
_PACE = (
    EventKind("fill", ("trainer",), "train batches begin or cease to be filled without a selector's word", (
        Field("state", "text", "`begins` or `ends`: 16 batches in a row were whole in time"),
        Field("reason", "text", "`starting` (none is ready yet), `no selector` (none is left) or "
              "`selector late`"),
        Field("step", "steps", "of the first such batch, or of the batch that ends it"),
        Field("batches", "batches", "filled, wholly or in part, until it ended"),
        Field("examples", "examples", "filled in until it ended"),
    )),
    EventKind("keep", ("trainer",), "the keep rate that leases aim at has changed (`keep = auto`)", (
        _STEP,
        Field("old", "share", "before"),
        Field("new", "share", "from now on"),
        Field("candidates", "candidates", "what the selectors can score in a step's time, with a margin"),
        Field("selectors", "selectors", "that are ready and whose speed is known"),
        Field("reason", "text", "whether the speed or a bound of the policy decides"),
    )),
)  # fmt: skip
_AUTO = EventKind("auto", ("trainer",), "a setting that is `auto` was decided anew", (
    Field("key", "text", "the setting: `sync.interval` or `sync.depth`"),
    Field("old", "number", "what was in use"),
    Field("new", "number", "what is in use from now on"),
    Field("reason", "text", "what was measured"),
))  # fmt: skip
_DEATH = (
    Field("child", "text", "the role, and which of its processes"),
    Field("code", "number", "its exit code; negative: the signal that killed it"),
    Field("step", "steps", "of the newest checkpoint by then"),
)
_TEXT = (Field("text", "text", "the message"),)
_OTHERS = (
    EventKind("warning", ("trainer", "selector"), "what a user should act on; `sbpipe run` shows it", _TEXT),
    EventKind("note", ("trainer", "selector"), "what was measured and chosen; `sbpipe run` shows it", _TEXT),
    EventKind("restarted", ("supervisor",), "`sbpipe run` starts a role again that has died", _DEATH),
    EventKind("given up", ("supervisor",), "`sbpipe run` goes on without a selector that died", _DEATH),
    EventKind("resumed", ("trainer",), "the run continues from a checkpoint", (_STEP,)),
    EventKind("failed", ("trainer",), "the run ends with an error", (Field("error", "text", "the error"),)),
    EventKind("summary", ("trainer",), "the run has ended: the numbers of `summary.json`", tuple(
        Field(number.name, number.unit, number.meaning) for number in NUMBERS.values()
    )),
)  # fmt: skip
KINDS: dict[str, EventKind] = {
    kind.name: kind
    for kind in (_START, _PROGRESS, _ONE_STEP, _EVAL, _SCORES, *_SELECTORS, *_PACE, _AUTO, *_OTHERS)
}
"""Every kind of event, by its name."""
IN_SUMMARY = {
    "error": "eval.error",
    "step": "steps",
    "candidates": "candidates",
    "keep_rate": "keep_rate",
    "keep": "keep.last",
    "fill": "fill.share",
    "staleness": "staleness.mean",
    "idle": "trainer.idle_ratio",
    "selector_idle": "selector.idle_ratio",
    "candidates_per_s": "candidates_per_s",
    "elapsed_s": "train_s",
    "swing": "selection.swing",
    "ess": "selection.ess",
    "strength": "selection.strength",
    "guard": "selection.guard",
    "trust": "selection.trust",
    "worth_ess": "worth.ess",
    "worth_ess_error": "worth.ess_error",
}
"""Fields of `progress` that the summary holds too, under these names."""


def field_of(kind: str, name: str) -> Field:
    """A field of a kind of event."""
    return next(field for field in KINDS[kind].fields if field.name == name)
