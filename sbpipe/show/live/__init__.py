"""Follows runs while they go on and shows them on a page or in a terminal. Reads files only, so it can
neither slow nor break a run.
"""
