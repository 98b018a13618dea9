"""Makes score files: models are trained for a while on all or half of the data, and rate every example.

It is one process without a selector. It must not know what the scores are used for.
"""

from sbpipe.studies.rating.make import make_scores
from sbpipe.studies.rating.meter import Progress
from sbpipe.studies.rating.progress_line import ProgressLine

__all__ = ["Progress", "ProgressLine", "make_scores"]
