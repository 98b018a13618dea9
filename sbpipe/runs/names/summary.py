"""The numbers that a run leaves in summary.json: name, label, unit, meaning. Plain data.

The unit says how a number is shown: `share` as a percentage, `s` as a duration, others as they are.
"""

from typing import NamedTuple

from sbpipe.runs.names.stages import LOOP_STAGES, STAGES


class Number(NamedTuple):
    """One entry of the summary."""

    name: str
    label: str
    """What a person is shown; two or three words."""
    unit: str
    meaning: str


_VERDICT = (
    Number("verdict.headline", "verdict", "text", "which part of the promise was got: not slower than plain "
           "training, not worse than random selection, better"),
    Number("verdict.loop", "loop", "text", "whether the loop waited, and for what"),
    Number("verdict.scores", "scores", "text", "whether scores said anything about fresh losses"),
    Number("verdict.worth", "worth", "text", "what is known of the gain"),
    Number("verdict.lost", "lost", "text", "what was lost on the way"),
    Number("verdict.knob", "knob", "text", "the setting that would help most"),
)  # fmt: skip
_RUN = (
    Number("status", "status", "text", "`finished`, `stopped` or `failed`"),
    Number("mode", "mode", "text", "how the roles were clocked"),
    Number("policy", "policy", "text", "`selection.policy`"),
    Number("seed", "seed", "number", "the seed"),
    Number("config.digest", "settings digest", "text", "digest of every setting that changes the training"),
    Number("wall_s", "wall time", "s", "from the start of the trainer's process to its end"),
    Number("startup_s", "start-up", "s", "before the first step"),
    Number("train_s", "training time", "s", "from the first step to the last, test error included"),
    Number("steps", "steps", "steps", "optimizer steps"),
    Number("trained", "examples trained", "examples", "examples backpropagated: steps times batch size"),
    Number("candidates", "candidates", "candidates", "examples considered for training"),
    Number("kept", "kept", "candidates", "candidates kept"),
    Number("leftover", "left over", "examples", "kept examples that did not fill a last batch"),
    Number("keep_rate", "keep rate", "share", "kept / candidates"),
    Number("candidates_per_s", "throughput", "candidates/s", "candidates considered per second of training"),
    Number(
        "devices", "devices", "devices", "devices held during the run: what device-seconds are counted by"
    ),
    Number("ranks", "ranks", "processes", "processes that trained, each on its share of every batch"),
    Number("device.trainer", "trainer device", "text", "what the trainer ran on"),
    Number("device.selector", "selector device", "text", "what the selectors ran on"),
    Number("eval.error", "test error", "share", "share of test examples classified wrongly, at the end"),
    Number("eval.loss", "test loss", "loss", "mean loss on the test set, at the end"),
    Number(
        "eval.metric",
        "own metric",
        "metric",
        "mean of `eval.metric` on the test set, at the end; null where there is none",
    ),
    Number("eval.metric_name", "metric's name", "text", "the name of its function"),
)
_LOOP_MEANINGS = {stage.name: stage.meaning for stage in STAGES if stage.role == "trainer"}
_TRAINER = (
    Number(
        "trainer.busy_ratio",
        "trainer busy",
        "share",
        "of its time in stages of work; of an accelerator, by its own clock: all that it computed, without "
        "the gaps of `trainer.gap_ratio`",
    ),
    Number(
        "trainer.busy_error",
        "error of busy",
        "share",
        "how far off `trainer.busy_ratio` may be: a standard error, from how much the few steps differ in "
        "which gaps were measured; with fewer than two of them all the time in which there may have been "
        "gaps, and with none of them busy is a sum of stages. 0 on a CPU",
    ),
    Number(
        "trainer.gap_ratio",
        "gaps",
        "share",
        "of its time without work for an accelerator although the loop had a batch, where the host launches "
        "slower than the device computes; an estimate from a few steps before which the device was held "
        "back. 0 on a CPU, in a user's own loop, and on devices that cannot be made to sleep",
    ),
    Number(
        "trainer.launch_ratio",
        "launch-bound",
        "share",
        "of its time in stages of work that the device had done when the host had launched them: there the "
        "host sets the pace; 0 on a CPU",
    ),
    Number(
        "trainer.idle_ratio",
        "trainer idle",
        "share",
        "of its time without a batch to train on; an accelerator that still computes meanwhile is not idle",
    ),
    Number(
        "trainer.wait_view_ratio",
        "trainer loads",
        "share",
        "of its time without a batch to train on, because "
        "the next one was chosen but not loaded yet: the part of `trainer.idle_ratio` that no selector can "
        "help",
    ),
    Number(
        "trainer.selection_ratio",
        "selection's own work",
        "share",
        "of its time that went to selection's own work: weighing, steering, publishing and events; where the "
        "thread that talks to selectors computes on the loop's cores, that thread's processor time too",
    ),
    Number("trainer.step_ms", "train step", "ms", "mean forward, backward and optimizer of a step"),
    Number("trainer.steer_ms", "steering", "ms", "mean weighing and steering of a step, in the loop"),
    Number(
        "trainer.view_ms", "load a batch", "ms", "mean loading and augmenting of a train batch, side thread"
    ),
    Number("trainer.dispatch_ms", "dispatch", "ms", "processor time of the dispatcher per step, side thread"),
    Number("trainer.log_ms", "logging", "ms", "mean writing of events per step, in the loop"),
    Number(
        "trainer.after_ms",
        "after a step",
        "ms",
        "processor time per step of the thread that steers and writes events beside the loop; 0 without one",
    ),
    *(
        Number(f"trainer.{name}_s", f"trainer {name}", "s", f"total: {_LOOP_MEANINGS[name]}")
        for name in LOOP_STAGES
    ),
)
_SELECTOR = (
    Number("selectors", "selectors", "selectors", "the most that were ready at the same time"),
    Number(
        "selector.busy_ratio",
        "selector busy",
        "share",
        "of the selectors' time in the stages below, gaps between an accelerator's kernels included",
    ),
    Number("selector.idle_ratio", "selector idle", "share", "the rest of their time"),
    Number("selector.busy_s", "selector busy", "s", "total: view, score, select, apply and measure"),
    Number("selector.view_s", "selector view", "s", "total: candidates loaded and augmented"),
    Number("selector.score_s", "selector score", "s", "total: forward pass of candidates"),
    Number(
        "selector.score_cpu_s", "selector score, core", "s", "of this, time on a core; 0 on other devices"
    ),
    Number("selector.select_s", "selector select", "s", "total: keep probabilities and choice"),
    Number("selector.tune_s", "selector measure", "s", "total: what is left to `auto` measured"),
    Number(
        "selector.apply_s", "selector apply", "s", "total: new weights applied and made ready for scoring"
    ),
    Number("selector.scored", "scored", "candidates", "candidates that went through a selector's model"),
    Number("selector.lost", "selectors lost", "selectors", "selectors that died, hung or failed"),
)
_SELECTION = (
    Number("fill.share", "filled", "share", "of the examples trained that were taken from the line without a "
           "selector's word, because that was not there in time"),
    Number("fill.starting", "filled at the start", "examples", "filled in before a selector was ready"),
    Number("fill.alone", "filled alone", "examples", "filled in while no selector was left"),
    Number("fill.late", "filled late", "examples", "filled in because the selectors were late"),
    Number("keep.last", "keep rate aimed at", "share", "by the last leases: `selection.keep`, or what `auto` "
           "had come to"),
    Number("keep.at_bound", "keep rate's bound", "text", "where `selection.keep` = `auto` had come to: "
           "`least` or `most`, what the policy takes, or `between`; null where the rate follows nothing"),
    Number("staleness.mean", "staleness", "steps", "between scoring an example and training on it, mean"),
    Number("staleness.p95", "staleness p95", "steps", "the same, 95th percentile"),
    Number("staleness.max", "staleness max", "steps", "the same, largest"),
    Number("staleness.age_mean", "age at scoring", "steps", "part of it before the selection arrived, mean"),
    Number("staleness.queue_mean", "time in queue", "steps", "part of it after the selection arrived, mean"),
    Number("staleness.fast_mean", "fast staleness", "steps", "the same mean for the fast parts of the "
           "weights; null where they come with the rest"),
    Number("fidelity.spearman", "fidelity", "correlation", "rank correlation of scores with fresh losses on "
           "trained examples"),
    Number("fidelity.mean_error", "score error", "loss", "mean absolute difference of score and fresh loss"),
    Number("selection.swing", "swing", "ratio", "geometric mean over the run of a step's `swing`"),
    Number("selection.prediction_swing", "prediction swing", "ratio", "geometric mean of `prediction_swing`"),
    Number("selection.ess", "effective sample size", "ratio", "mean of `ess`"),
    Number("selection.strength", "strength", "ratio", "mean of `strength`"),
    Number("selection.guard", "guard", "ratio", "mean of `guard`"),
    Number("selection.trust", "trust", "ratio", "mean of `trust`"),
    Number("selection.doubt", "doubt", "text", "why scores were not trusted, the first time; null where they "
           "were"),
    Number("selection.label_trust", "trust in labels", "ratio", "mean of `label_trust`"),
    Number("selection.label_doubt", "doubt in labels", "text", "why labels were not trusted, the first time; "
           "null where they were"),
    Number("selection.wrong_labels", "wrong labels", "ratio", "the last `wrong_labels`"),
    Number("selection.passed_over", "passed over", "candidates", "by selectors, because their labels are "
           "probably wrong: scored above a guess in the epoch before and again"),
    Number("worth.ess", "effective share", "ratio", "mean(g)² / mean(g²) of the residual norms of the last "
           "candidates: 1 = all alike, selection can gain nothing; null where scores do not tell the norms"),
    Number("worth.ess_error", "its error", "ratio", "standard error of `worth.ess`"),
    Number("scoring.precision", "precision", "text", "what selectors scored in at last; several where they "
           "differ"),
    Number("scoring.precision_asked", "precision asked for", "text", "`selector.precision`"),
    Number("scoring.agreement", "scoring agreement", "correlation", "rank correlation of coarse scores with "
           "fp32 at the same image size; null where scores are exact"),
    Number("scoring.scale_agreement", "scale agreement", "correlation", "rank correlation of scores of "
           "smaller images with those of full size"),
    Number("scoring.checks", "scoring checks", "checks", "how often scores were compared with fp32"),
    Number("scoring.failed_checks", "failed checks", "checks", "without a result: not finite, or all alike"),
    Number("scoring.overflowed", "overflowed", "candidates", "scores that were not finite"),
    Number("scoring.estimated", "estimated", "candidates", "candidates scored with BatchNorm statistics that "
           "were estimated on candidates, because evaluation mode was blind"),
    Number("scoring.evaluation_loss", "loss, evaluation mode", "loss", "mean over the last candidates that "
           "were scored both ways; null where there are no BatchNorm layers, or no check was due"),
    Number("scoring.batch_loss", "loss, batch statistics", "loss", "the same with batch statistics"),
    Number("scoring.statistics_agreement", "statistics agreement", "correlation", "rank correlation of the "
           "two"),
    Number("scoring.refresh_ms", "refresh", "ms", "mean folding, casting or quantising of new weights"),
)  # fmt: skip
_WEIGHTS = (
    Number("sync.published", "published", "snapshots", "snapshots offered"),
    Number("sync.skipped", "skipped", "snapshots", "snapshots not taken, because no slot was free"),
    Number("sync.applied", "applied", "snapshots", "snapshots that selectors scored with"),
    Number("sync.snapshot_ms", "publish", "ms", "mean cost of a snapshot to the loop"),
    Number("sync.apply_ms", "apply", "ms", "mean time to put a snapshot into a selector's model"),
    Number("sync.transfer_ms", "transfer", "ms", "mean time of a snapshot over the wire; 0 in shared memory"),
    Number("sync.bytes_per_s", "weights sent", "bytes/s", "snapshots offered per second of training"),
    Number("sync.fast_published", "fast published", "snapshots", "snapshots of the fast parts alone"),
    Number("sync.fast_skipped", "fast skipped", "snapshots", "of these, not taken"),
    Number("sync.fast_publish_ms", "publish fast parts", "ms", "mean cost of one; null where there was none"),
    Number("sync.fast_bytes", "fast parts", "bytes", "size of one; null where they come with the rest"),
    Number("weights.bytes", "weights", "bytes", "size of a snapshot"),
    Number("weights.digest", "weights digest", "text", "digest of the final weights"),
)
_LEASES = (
    Number("lease.selected", "leases selected", "leases", "leases answered and accepted"),
    Number("lease.trained", "leases trained", "leases", "leases whose kept examples were all trained on"),
    Number("lease.expired", "leases expired", "leases", "taken back from selectors that were lost"),
    Number("lease.fenced", "leases fenced", "leases", "answers refused, because the lease was no longer out"),
    Number(
        "lease.fallback",
        "leases fallback",
        "leases",
        "answered by the trainer itself, because no selector was there",
    ),
    Number("link.dropped", "messages dropped", "messages", "messages refused by the wire's checks"),
    Number(
        "restarts.trainer",
        "trainer restarts",
        "restarts",
        "how often `sbpipe run` started a dead trainer again",
    ),
    Number("restarts.selector", "selector restarts", "restarts", "the same of selectors, summed"),
    Number("checkpoint.failed", "checkpoints failed", "checkpoints", "checkpoints that could not be written"),
    Number(
        "checkpoint.spare",
        "spare folder",
        "text",
        "the folder with the last checkpoint, where the run directory did not take it; null where it did",
    ),
    Number("events.lost", "events lost", "events", "events that could not be written"),
)
GROUPS: dict[str, tuple[Number, ...]] = {
    "The verdict": _VERDICT,
    "The run": _RUN,
    "The trainer": _TRAINER,
    "The selectors, summed": _SELECTOR,
    "Selection": _SELECTION,
    "Weights transfer": _WEIGHTS,
    "Leases and faults": _LEASES,
}
NUMBERS: dict[str, Number] = {number.name: number for group in GROUPS.values() for number in group}
"""Every number of the summary, by its name."""
TROUBLE = (
    "restarts.trainer",
    "restarts.selector",
    "selector.lost",
    "lease.expired",
    "lease.fenced",
    "lease.fallback",
    "link.dropped",
    "checkpoint.failed",
    "events.lost",
)
"""Counts that are 0 in a run without trouble."""
