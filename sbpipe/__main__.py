"""`python -m sbpipe` is `sbpipe`: the command line, which handles Ctrl-C from the first import on."""

from sbpipe.interrupts import leave_at_once


def main() -> None:
    """Run the command that the arguments name."""
    leave_at_once()
    from sbpipe.cli import main as run_command

    run_command()


if __name__ == "__main__":
    main()
