"""Data-parallel training without selection: torch's own DDP, as the baseline that a second device must beat.

The first replica runs the ordinary loop and owns the run; it tells the others which batch comes next. They
must not know about leases, selection or run directories.
"""
