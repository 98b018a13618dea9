"""`sbpipe export`: a trained model as files that others can use."""

import argparse
from pathlib import Path

HELP = "the trained model of a run as safetensors or ONNX, with a card and a program that loads it"
DESCRIPTION = """\
Writes the model of a run's newest checkpoint, or of one checkpoint, into a folder:

  model.safetensors   the weights
  card.json           model, options, classes, shape and normalisation of its inputs
  load.py             rebuilds the model and predicts:  python load.py inputs.npy
  model.onnx          with --onnx: the network, for programs without torch

  sbpipe export runs/demo
  sbpipe export runs/demo/checkpoints/step-200.pt --out models/demo --onnx
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of this command."""
    parser.add_argument("source", type=Path, metavar="RUN", help="a run directory, or a checkpoint")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write (export/ in RUN)")
    parser.add_argument("--onnx", action="store_true", help="model.onnx too (pip install 'sbpipe[onnx]')")


def run(args: argparse.Namespace) -> int:
    """Export, and print the folder."""
    from sbpipe.export import export

    done = export(args.source, args.out, with_onnx=args.onnx)
    print(f"exported: {done.folder}   (the weights after {done.step:,} steps)")
    return 0
