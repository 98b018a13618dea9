"""`sbpipe score`: a number per training example, for `data.prune` or policy rho (`selection.irreducible`)."""

import argparse
from pathlib import Path
from typing import NamedTuple

from sbpipe.commands.settings import add_settings, resolve_or_print
from sbpipe.config import Config
from sbpipe.errors import ConfigError
from sbpipe.machine import cores

HELP = (
    "scores of all training examples, made before training: el2n for data.prune, irreducible for policy rho"
)
DESCRIPTION = """\
Trains models for a while and leaves one number per training example in a file.
Each finished model is kept beside it, in FILE.parts/: give the same command
again to resume after a stop, or with more --models to add to them. Nothing
runs beside it, so it computes on all cores unless train.threads is set.

  sbpipe score el2n --out el2n.npz                       then, to train on the harder 70 %:
  sbpipe run --set data.prune=el2n.npz --set data.prune_share=0.3

  sbpipe score irreducible --out irreducible.npz         then, to prefer what is learnable:
  sbpipe run --policy rho --set selection.irreducible=irreducible.npz
"""


class _Kind(NamedTuple):
    help: str
    models: str
    num_models: int
    epochs: str


KINDS = {
    "el2n": _Kind(
        "|softmax(outputs) - onehot|, the mean over models trained for a few epochs: how hard an example is "
        "early on (Paul et al. 2021)",
        "models, each with seeds of its own (5)",
        5,
        "epochs that each is trained, its schedule included (2)",
    ),
    "irreducible": _Kind(
        "the loss under a model that was trained on the other half: what no other example teaches "
        "(Mindermann et al. 2022)",
        "pairs of models, one for each half (1)",
        1,
        "epochs that each is trained on its half (train.epochs)",
    ),
}
_EL2N_EPOCHS = 2.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of this command: a kind of scores, and those of each kind."""
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    for name, kind in KINDS.items():
        own = kinds.add_parser(name, help=kind.help, description=kind.help)
        add_settings(own)
        own.add_argument(
            "--out", type=Path, required=True, metavar="FILE", help="where to leave the scores (.npz)"
        )
        own.add_argument("--models", type=int, default=kind.num_models, metavar="N", help=kind.models)
        own.add_argument("--epochs", type=float, metavar="E", help=kind.epochs)
        own.add_argument("--device", metavar="NAME", help="the device to train on, e.g. cuda:0 (auto)")


def run(args: argparse.Namespace) -> int:
    """Train missing models, and write the file."""
    config, _ = resolve_or_print(args)
    if config is None:
        return 0
    epochs = _checked(args, config)
    # Both before torch is imported, as for a role. Without a second role all cores are used by default.
    if cores.computes_on_cpu(config.train.device):
        cores.keep_memory()
    if config.train.threads:
        cores.pin(cores.share("trainer", config.train.threads))
    from sbpipe.studies.rating import ProgressLine, make_scores

    file = make_scores(
        args.kind, config, args.out, models=args.models, epochs=epochs, tell=ProgressLine(args.kind)
    )
    low, high = float(file.scores.min()), float(file.scores.max())
    print(
        f"{args.kind} of {len(file.scores):,} examples, {low:.4g} to {high:.4g}, mean "
        f"{float(file.scores.mean()):.4g}: {args.out}"
    )
    return 0


def _checked(args: argparse.Namespace, config: Config) -> float:
    """The epochs to train; refuses impossible numbers."""
    if args.models < 1:
        raise ConfigError(
            "--models", args.models, "must be at least 1", "It is how many models the scores are the mean of"
        )
    # EL2N is a score of early training, the irreducible loss is one of a whole training.
    epochs: float = (
        args.epochs
        if args.epochs is not None
        else _EL2N_EPOCHS
        if args.kind == "el2n"
        else config.train.epochs
    )
    if not 0.0 < epochs <= 1e9:
        raise ConfigError(
            "--epochs", epochs, "must be above 0", "Early scores need about a tenth of a whole training"
        )
    return epochs
