"""Score files: models trained for a while on everything or on a half, and what each says of every example.

One process, no selector: it must not know what the scores are used for.
"""

from sbpipe.studies.rating.make import make_scores
from sbpipe.studies.rating.meter import Progress
from sbpipe.studies.rating.progress_line import ProgressLine

__all__ = ["Progress", "ProgressLine", "make_scores"]
