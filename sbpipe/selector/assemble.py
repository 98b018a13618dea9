"""Builds a selector from its parts: model, scorer, judge, and the forward pass between them. Knows no trainer
and no link; weights come from the source it is given.
"""

from collections.abc import Callable

import torch
from torch import nn

from sbpipe.config import Config
from sbpipe.data import Data, Order
from sbpipe.data.own_batches import OwnBatches
from sbpipe.data.tree_split import TreeSplit
from sbpipe.errors import PeerRejected
from sbpipe.machine import memory
from sbpipe.models import build_model, parts_of, weigh_model
from sbpipe.models.calling import pair_losses
from sbpipe.models.losses import build_score
from sbpipe.models.residuals import build_residual
from sbpipe.models.stand_in import Losses
from sbpipe.records import Floats, Ids, Manifest
from sbpipe.runs.events import EventLog
from sbpipe.runs.spans import Spans
from sbpipe.scoring import Scorer
from sbpipe.scoring.autotune import Tuning
from sbpipe.scoring.own_scorer import OwnScorer
from sbpipe.scoring.precision import refuse
from sbpipe.selection import ScoreCache, TrainedLosses, build_policy
from sbpipe.selector.answer import Selector
from sbpipe.selector.forward import Candidates, ForwardPass
from sbpipe.selector.job import OwnJob
from sbpipe.selector.judge import Judge
from sbpipe.weights.manifest import build_manifest
from sbpipe.weights.replica import Replica, WeightsSource


def assemble(
    config: Config,
    data: Data,
    source: WeightsSource,
    device: torch.device,
    spans: Spans,
    events: EventLog,
    trained: TrainedLosses | None = None,
    *,
    is_channels_last: bool = False,
) -> tuple[Selector, Manifest]:
    """A selector that scores with weights from `source`, and the layout of its snapshots. The trainer says
    whether kernels of images are channels-last in it.

    With `trained`, it judges by the losses of each example's last training instead of scores.
    """
    refuse(config.selector.precision, device)
    model = _model_of(config, data)
    manifest = build_manifest(model, parts_of(model), config.sync.dtype, is_channels_last=is_channels_last)
    chosen = config.selection
    irreducible = None
    if chosen.traits.needs_irreducible:
        irreducible = data.scores_in(chosen.irreducible, key="selection.irreducible", kind="irreducible")
    judge = _judge_of(config, data.train.num_examples, data.score.targets_of, trained, irreducible)
    if isinstance(data.score, TreeSplit):
        own, batches = _own_scorer_of(config, model, pair_losses(config.loss), device), data.score.candidates
        return _wired(config, batches, own, manifest, judge, source, spans, events), manifest
    scorer = _scorer_of(config, model, device)
    return _wired(config, data.score, scorer, manifest, judge, source, spans, events), manifest


def assemble_own(
    config: Config,
    job: OwnJob,
    batches: OwnBatches,
    source: WeightsSource,
    device: torch.device,
    spans: Spans,
    events: EventLog,
    trained: TrainedLosses | None = None,
    *,
    is_channels_last: bool = False,
) -> tuple[Selector, Manifest]:
    """The same for the job of a user's own loop; its model becomes the selector's."""
    manifest = job.manifest(config.sync.dtype, is_channels_last=is_channels_last)
    scorer = _own_scorer_of(config, job.model, job.losses, device)
    classes = job.data.classes
    judge = _judge_of(
        config, job.data.num_examples, lambda ids: None if classes is None else classes[ids], trained
    )
    return _wired(config, batches, scorer, manifest, judge, source, spans, events), manifest


def _own_scorer_of(config: Config, model: nn.Module, losses: Losses, device: torch.device) -> OwnScorer:
    own = config.selector
    return OwnScorer(
        model,
        losses,
        precision=config.first_precision,
        device=device,
        compiled=own.compile,
        min_agreement=own.min_agreement,
        statistics=own.statistics,
        has_residuals=config.selection.traits.chooses_sets,
    )


def _wired(
    config: Config,
    candidates: Candidates,
    scorer: Scorer | OwnScorer,
    manifest: Manifest,
    judge: Judge,
    source: WeightsSource,
    spans: Spans,
    events: EventLog,
) -> Selector:
    replica = Replica(scorer.model, manifest, scorer.weights_arrived)
    forward = ForwardPass(candidates, scorer, replica, source, spans, events, _tuning_of(config, scorer))
    order = Order.of(config, candidates.num_examples)
    batch_size = config.score_batch_size
    if judge.needs_scores:
        # Real candidates, those of the first lease: value ranges are measured on them.
        forward.rehearse(order.ids(0, 0, min(batch_size, candidates.num_examples)))
    return Selector(order, batch_size, forward, judge, spans, events)


def _model_of(config: Config, data: Data) -> nn.Module:
    """The trainer's model; refused if this host has too little memory for it."""
    num_bytes = weigh_model(config.model, num_classes=data.num_classes, input_shape=data.input_shape)
    available = memory.available_bytes()
    # The model, the program that scores, and a snapshot in transfer.
    if available is not None and 3 * num_bytes > available:
        raise PeerRejected(
            f"model.name = {config.model.name!r} with model.options = {dict(config.model.options)!r}, as the "
            f"trainer has it, takes {num_bytes / 1e9:.1f} GB, three times; {available / 1e9:.1f} GB are left "
            "here. Select on a host with more memory"
        )
    return build_model(
        config.model,
        num_classes=data.num_classes,
        input_shape=data.input_shape,
        seed=config.seed,
        input_dtype=data.input_dtype,
        is_tried=not data.has_trees,
    )


def _scorer_of(config: Config, model: nn.Module, device: torch.device) -> Scorer:
    own = config.selector
    return Scorer(
        model,
        build_score(config.loss, config.selection.score),
        precision=config.first_precision,
        device=device,
        scale=own.scale,
        compiled=own.compile,
        min_agreement=own.min_agreement,
        statistics=own.statistics,
        residual=build_residual(config.loss) if config.selection.traits.chooses_sets else None,
    )


def _tuning_of(config: Config, scorer: Scorer | OwnScorer) -> Tuning | None:
    """What measures the settings that are left to "auto"; None where there are none, or measuring is not
    allowed.
    """
    own = config.selector
    if not config.may_measure or "auto" not in (own.precision, own.batch_size):
        return None
    return Tuning(
        scorer,
        config.score_batch_size,
        has_precision=own.precision == "auto",
        has_batch_size=own.batch_size == "auto",
        least=own.min_agreement,
    )


def _judge_of(
    config: Config,
    num_examples: int,
    classes_of: Callable[[Ids], Ids | None],
    trained: TrainedLosses | None,
    irreducible: Floats | None = None,
) -> Judge:
    chosen = config.selection
    cache = ScoreCache(num_examples, every=chosen.reuse_epochs, by=chosen.reuse_by, keep=chosen.keep_rate)
    return Judge(
        build_policy(chosen),
        cache,
        seed=config.seed,
        floor=chosen.floor,
        trained=trained,
        irreducible=irreducible,
        classes_of=classes_of if chosen.history_by == "class" else None,
    )
