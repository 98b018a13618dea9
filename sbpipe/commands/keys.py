"""`sbpipe keys`: keys for roles on different hosts, one for each selector, revocable while a run goes on."""

import argparse
from pathlib import Path

HELP = "make, add, revoke or list the keys of selectors on other hosts"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of this command."""
    parser.add_argument(
        "folder", type=Path, metavar="DIR", help="the trainer's keys; made if nothing else is said"
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title="what to do with the keys in DIR")
    for action, words in (
        ("add", "make the key of a further selector; trainers at work let it in at once"),
        ("revoke", "let a key in no more; trainers at work cut its connections"),
    ):
        actions.add_parser(action, help=words).add_argument(
            "name", metavar="NAME", help="what the key is called"
        )
    actions.add_parser("list", help="the keys that are let in")
    actions.add_parser(
        "rotate",
        help="give the trainer itself a new key; trainers at work use it at once, and tell their selectors",
    )


def run(args: argparse.Namespace) -> int:
    """Do it, and print which file goes where."""
    from sbpipe.link import keys

    folder: Path = args.folder
    if args.action == "add":
        path = keys.add_selector(folder, args.name)
        print(
            f"{path}  goes to the selector {args.name}: sbpipe selector --keys {path.name} --connect tcp://HOST:5570"
        )
    elif args.action == "revoke":
        keys.revoke_selector(folder, args.name)
        print(
            f"{args.name} is let in no more; trainers that use {folder} cut its connections within a second"
        )
    elif args.action == "rotate":
        renewed = keys.rotate_trainer(folder)
        print(
            f"the trainer's key is new; trainers that use {folder} listen under it within seconds, and tell "
            "selectors that are connected. Copy to the selectors' hosts, for those that are started later:"
        )
        print("\n".join(str(path) for path in renewed) or "(no selector's file is in this folder)")
    elif args.action == "list":
        print("\n".join(keys.allowed_names(folder)) or "none")
    else:
        trainer, selector = keys.make_keys(folder)
        print(
            f"{trainer}   stays with the trainer:  sbpipe trainer --keys {folder} --bind tcp://0.0.0.0:5570"
        )
        print(
            f"{selector}  goes to a selector:      sbpipe selector --keys {selector.name} --connect tcp://HOST:5570"
        )
        print(f"a key for each further selector:  sbpipe keys {folder} add NAME")
    return 0
