"""A run's files: their names, who may write them, and readers that cope with half-written files."""

from sbpipe.runs.reader import Run, read_run
from sbpipe.runs.study import Cell, Study, read_study

__all__ = ["Cell", "Run", "Study", "read_run", "read_study"]
