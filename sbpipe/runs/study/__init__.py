"""A sweep or a comparison, read from its files: the plan, the cells, and one analysis for both kinds.

A running study, the report and the live page take their numbers from here. Knows neither tables nor pictures.
"""

from sbpipe.runs.study.study import CELLS, PLAN, RESULTS, Cell, Study, read_study

__all__ = ["CELLS", "PLAN", "RESULTS", "Cell", "Study", "read_study"]
