"""Prints docs/events.md."""

import sys

from sbpipe.runs.names.markdown import page

sys.stdout.write(page())
