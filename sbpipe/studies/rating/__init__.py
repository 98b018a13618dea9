"""The making of score files: models trained for a while on everything or on a half, and what each makes of
every example.

One process, no selector: it must not know what the scores are used for.
"""

from sbpipe.studies.rating.bar import Bar
from sbpipe.studies.rating.make import make_scores
from sbpipe.studies.rating.meter import Progress

__all__ = ["Bar", "Progress", "make_scores"]
