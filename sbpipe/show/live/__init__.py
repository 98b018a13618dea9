"""Follows runs on a page or in a terminal. Reads files only, so it can neither slow nor break a run."""
