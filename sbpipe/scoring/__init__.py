"""Scoring candidates with a forward pass. Sees neither sockets nor policies."""

from sbpipe.scoring.queued import Scored
from sbpipe.scoring.scorer import Scorer

__all__ = ["Scored", "Scorer"]
