"""The kinds of events that a run writes, with their fields. Plain data."""

from sbpipe.runs.names.fields import (
    CANDIDATES,
    ESS,
    GUARD,
    LABEL_TRUST,
    PREDICTION_SWING,
    SPANS,
    STAGE_TOTALS,
    STEP,
    STRENGTH,
    SWING,
    TRUST,
    WRONG_LABELS,
    EventKind,
    Field,
)
from sbpipe.runs.names.summary import NUMBERS

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
_PROGRESS = EventKind("progress", ("trainer",), "how the run stands, twice a second; in a long "
                      "run only some stay, the others are in the `recent` file", (
    Field("share", "share", "of the budget that is done", "done"),
    STEP,
    CANDIDATES,
    Field("loss", "loss", "training loss of the last step, mean of the batch", "training loss"),
    Field("error", "share", "last test error", "test error"),
    Field("test_loss", "loss", "last mean loss on the test set", "test loss"),
    Field("metric", "metric", "last mean of `eval.metric` on the test set"),
    Field("metric_name", "text", "the name of its function"),
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
    SWING,
    ESS,
    STRENGTH,
    GUARD,
    TRUST,
    Field("worth_ess", "ratio", "effective share of the last candidates, mean(g)² / mean(g²) of their "
          "residual norms: 1 = all are alike, so selection can gain nothing; null where scores do not tell "
          "the norms", "effective share"),
    Field("worth_ess_error", "ratio", "its standard error"),
))  # fmt: skip
_ONE_STEP = EventKind("step", ("trainer",), "one optimizer step, written a step later", (
    Field("step", "steps", "its number, counted from 0"),
    CANDIDATES,
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
    SWING,
    PREDICTION_SWING,
    ESS,
    STRENGTH,
    GUARD,
    TRUST,
    LABEL_TRUST,
    WRONG_LABELS,
    SPANS,
))  # fmt: skip
_MANY_STEPS = EventKind("steps", ("trainer",), "several optimizer steps of a long run, in place of a `step` "
                        "each; means are over all of them", (
    Field("first", "steps", "the number of the first, counted from 0"),
    Field("step", "steps", "the number of the last"),
    Field("count", "steps", "how many"),
    Field("is_partial", "yes/no", "whether the run ended within them; a resume writes them again, with more"),
    CANDIDATES,
    Field("loss", "loss", "mean of their losses", "training loss"),
    Field("loss_low", "loss", "the lowest"),
    Field("loss_high", "loss", "the highest"),
    Field("rate", "number", "learning rate of the last"),
    Field("keep_probability", "share", "mean"),
    Field("trained", "examples", "in their batches"),
    Field("filled", "examples", "of these, that nobody selected"),
    Field("staleness_mean", "steps", "mean over their selected examples; null where all were filled in",
          "staleness"),
    Field("staleness_max", "steps", "largest of any of them"),
    Field("fast_staleness_mean", "steps", "the same mean for the fast parts (normalisation, biases, head); "
          "null where they come with the rest"),
    Field("age_mean", "steps", "part of the staleness before the selection arrived, mean"),
    Field("queue_mean", "steps", "part of the staleness after the selection arrived, mean"),
    Field("spearman", "correlation", "fidelity, mean of the steps where it is known", "fidelity"),
    Field("score_error", "loss", "mean absolute difference of score and fresh loss, mean of the same steps"),
    SWING,
    PREDICTION_SWING,
    ESS,
    STRENGTH,
    GUARD,
    TRUST,
    LABEL_TRUST,
    WRONG_LABELS,
    STAGE_TOTALS,
))  # fmt: skip
_LAST_STEP = EventKind("last_step", ("trainer",), "one of the last steps of a long run; in the "
                       "`recent` file, twelve in a row every 5 s", (
    Field("step", "steps", "its number, counted from 0"),
    SPANS,
))  # fmt: skip
_EVAL = EventKind("eval", ("trainer",), "the test error was measured", (
    STEP,
    CANDIDATES,
    Field("trained", "examples", "backpropagated so far"),
    Field("elapsed_s", "s", "of training so far, test error included"),
    Field("evaluate_s", "s", "spent measuring the test error so far, this time included: subtract it to get "
          "training time"),
    Field("startup_s", "s", "before the first step"),
    Field("error", "share", "of test examples classified wrongly; null where targets are no classes",
          "test error"),
    Field("loss", "loss", "mean over the test set", "test loss"),
    Field("metric", "metric", "mean of `eval.metric` over the test set; null where there is none"),
    Field("metric_name", "text", "the name of its function"),
    Field("class_errors", "list", "the error of each class; empty where no `scores` event comes with it"),
))  # fmt: skip
_SCORES = EventKind("scores", ("trainer",), "with every `eval`, of many only with some and the last: what "
                    "selection did to the examples", (
    STEP,
    CANDIDATES,
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
        Field("weights", "text", "`shared` memory, `pulled` over the wire, or `direct` between devices"),
        Field("precision", "text", "what it scores its first leases in"),
        Field("irreducible", "text", "digest of the irreducible losses; only with policy `rho`"),
    )),
    EventKind("selection", ("selector",), "one lease answered", (
        Field("lease", "number", "which lease"),
        Field("version", "steps", "of the weights that scored it"),
        Field("candidates", "candidates", "considered"),
        Field("kept", "candidates", "kept"),
        SPANS,
    )),
    EventKind("selections", ("selector",), "several leases of a long run, in place of a `selection` each", (
        Field("lease", "number", "the last of them"),
        Field("version", "steps", "of the weights that scored the last"),
        Field("count", "leases", "how many"),
        Field("candidates", "candidates", "considered"),
        Field("kept", "candidates", "kept"),
        STAGE_TOTALS,
    )),
    EventKind("last_selection", ("selector",), "one of the last leases of a long run; in the `recent` file", (
        Field("lease", "number", "which lease"),
        Field("version", "steps", "of the weights that scored it"),
        Field("candidates", "candidates", "considered"),
        Field("kept", "candidates", "kept"),
        SPANS,
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
        STEP,
        Field("old", "share", "before"),
        Field("new", "share", "from now on"),
        Field("candidates", "candidates", "what the selectors can score in a step's time, with a margin"),
        Field("selectors", "selectors", "that are ready and whose speed is known"),
        Field("reason", "text", "whether the speed or a bound of the policy decides"),
    )),
    EventKind("passing over", ("trainer",), "candidates whose labels are probably wrong are passed over", (
        STEP,
        WRONG_LABELS,
        Field("above", "loss", "that the last score and the score must exceed: the loss of a guess"),
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
    EventKind("left_out", ("trainer", "selector"), "so many of a rare kind came that not all were written", (
        Field("of", "text", "the kind"),
        Field("count", "events", "not written since the last one of that kind"),
    )),
    EventKind("warning", ("trainer", "selector"), "what a user should act on; `sbpipe run` shows it", _TEXT),
    EventKind("note", ("trainer", "selector"), "what was measured and chosen; `sbpipe run` shows it", _TEXT),
    EventKind("restarted", ("supervisor",), "`sbpipe run` starts a role again that has died", _DEATH),
    EventKind("given up", ("supervisor",), "`sbpipe run` goes on without a selector that died", _DEATH),
    EventKind("resumed", ("trainer",), "the run continues from a checkpoint", (STEP,)),
    EventKind("failed", ("trainer",), "the run ends with an error", (Field("error", "text", "the error"),)),
    EventKind("summary", ("trainer",), "the run has ended: the numbers of `summary.json`", tuple(
        Field(number.name, number.unit, number.meaning) for number in NUMBERS.values()
    )),
)  # fmt: skip
KINDS: dict[str, EventKind] = {
    kind.name: kind
    for kind in (
        *(_START, _PROGRESS, _ONE_STEP, _MANY_STEPS, _LAST_STEP, _EVAL, _SCORES),
        *(*_SELECTORS, *_PACE, _AUTO, *_OTHERS),
    )
}
"""Every kind of event, by its name."""
IN_SUMMARY = {
    "error": "eval.error",
    "test_loss": "eval.loss",
    "metric": "eval.metric",
    "metric_name": "eval.metric_name",
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
