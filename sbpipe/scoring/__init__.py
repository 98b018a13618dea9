"""Scoring candidates with a forward pass. Sees neither sockets nor policies."""

from sbpipe.scoring.scorer import Scored, Scorer

__all__ = ["Scored", "Scorer"]
