"""The command line: parses first, imports torch after, so that `--help` answers at once."""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from sbpipe.commands import COMMANDS, add_commands
from sbpipe.config import known_keys
from sbpipe.errors import DeviceError, SbpipeError
from sbpipe.interrupts import STOPPED, raise_again
from sbpipe.process import SAYS
from sbpipe.text import LogFormatter, visible
from sbpipe.version import __version__

_LINES = "\n"
"""An error may quote the lines of a log."""

DESCRIPTION = """\
Train with Selective-Backprop on two devices at once: a selector on a cheap
device scores candidates and keeps the useful ones, a trainer on the main
device trains on them, and hands its weights back as it goes.
"""

EPILOG = """\
first steps
  sbpipe run                            both roles, on what this machine has
  sbpipe doctor                         what this machine has, and what run would choose
  sbpipe run --print-config             every setting, its value and its meaning
  sbpipe run configs/cifar10.toml --keep 0.25 --set optim.lr=0.05

  sbpipe reproduce                      the paper's experiments, to run here

two terminals, or two hosts
  sbpipe trainer --device cuda:0        in one
  sbpipe selector --device cuda:1       in the other, before or after

`sbpipe COMMAND --help` tells more. Exit codes: 0 done, 1 a bug, a missed bar
or failed cells of a study, 2 a mistake in the input, 3 the other role is lost or disagrees, 4 results are
in a spare folder, 5 results are lost, 6 another rank of the trainer is gone, 130 stopped.
"""


def build_parser() -> argparse.ArgumentParser:
    """All commands and flags."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="sbpipe", description=DESCRIPTION, epilog=EPILOG, formatter_class=form
    )
    parser.add_argument("--version", action="version", version=f"sbpipe {__version__}")
    add_commands(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command; exits with its code."""
    parser = build_parser()
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{_setting_meant(unknown[0])}")
    terminal = logging.StreamHandler(sys.stderr)
    terminal.setFormatter(LogFormatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logging.basicConfig(level=logging.INFO, handlers=[terminal])
    raise_again()
    try:
        code = COMMANDS[args.command].run(args)
    except SbpipeError as error:
        print(f"{SAYS}{visible(str(error), keep=_LINES)}", file=sys.stderr)
        code = error.exit_code
    except KeyboardInterrupt:
        print(f"{SAYS}stopped", file=sys.stderr)
        code = STOPPED
    except BrokenPipeError:  # the reader of our output has ended: `sbpipe ... | head`
        # The last flush would raise again, at the interpreter's exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141  # 128 + SIGPIPE, as a shell counts it
    # torch raises RuntimeError for a full device; any other one is a bug and is raised again.
    except (RuntimeError, MemoryError) as error:
        code = _out_of_memory(error)
    _leave(code)


def _setting_meant(argument: str) -> str:
    """A hint if an unknown flag is the name of a setting: `--epochs` means train.epochs."""
    name = argument.lstrip("-").partition("=")[0].replace("-", "_")
    meant = [key for key in known_keys() if name in (key, key.rpartition(".")[2])]
    return f". A setting is given by --set: --set {meant[0]}=VALUE" if argument[:2] == "--" and meant else ""


def _out_of_memory(error: RuntimeError | MemoryError) -> int:
    """The exit code for a device without memory left; any other error is a bug and is raised again."""
    from sbpipe.machine import devices

    if not devices.is_out_of_memory(error):
        raise error
    way_out = "Lower train.batch_size, selector.batch_size or eval.batch_size, or set train.amp"
    print(f"sbpipe: out of memory: {error}. {way_out}", file=sys.stderr)
    return DeviceError.exit_code


def _leave(code: int) -> NoReturn:
    """End the process with this code; if torch is loaded, without the interpreter's tear-down."""
    # torch's threads may still run during the tear-down, and sometimes abort it.
    if "torch" not in sys.modules:
        sys.exit(code)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
