"""Reads what runs wrote: events, settings, summaries, whole or half-written. Never writes, never asks a
process; knows no picture.
"""

from sbpipe.runs.reader import Run, events_in, read_run
from sbpipe.runs.study import Cell, Study, read_study

__all__ = ["Cell", "Run", "Study", "events_in", "read_run", "read_study"]
