"""`python -m sbpipe` is `sbpipe`."""

from sbpipe.cli import main

main()
