"""`sbpipe reproduce`: the paper's and the posters' experiments, scaled to this machine, and their outcome."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sbpipe.studies.plan import Plan
    from sbpipe.studies.reproduce.experiment import Comparison, Experiment, Measurement
    from sbpipe.studies.reproduce.results_page import Entry

HELP = "the paper's experiments, scaled to this machine: each claim, what was measured, whether it held"
DESCRIPTION = """\
Without names, lists the experiments: what each shows and claims, what it
needs, about how long it takes. With names, runs them and prints for each part
of the claim what was measured here, with n and spread, and whether it held.
Claims that do not hold here are printed as such, and the exit code is still 0.
Runs are resumable cells as of `sbpipe compare`: give the same command again to
resume after a stop.

  sbpipe reproduce                      the list
  sbpipe reproduce fig5 fig18 --quick   the embedded data only, a minute
  sbpipe reproduce all                  all of them, about two hours
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of this command."""
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="experiments to run, or all (none: list them)"
    )
    parser.add_argument("--quick", action="store_true", help="small versions, on the embedded data only")
    parser.add_argument(
        "--seeds", metavar="N", help="how many seeds, or which ones, of the comparisons: 3 or 0,1,2"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/reproduce"),
        metavar="DIR",
        help="where to write, or to resume (runs/reproduce)",
    )
    parser.add_argument(
        "--configs", type=Path, metavar="DIR", help="where the comparisons' files are (configs/cpu)"
    )
    parser.add_argument("--retry", action="store_true", help="run cells again that failed")


def run(args: argparse.Namespace) -> int:
    """List, or plan all, then run and judge one after another."""
    from sbpipe.studies.reproduce import results_page as page
    from sbpipe.studies.reproduce.experiment import Comparison, Measurement
    from sbpipe.studies.reproduce.registry import EXPERIMENTS, named
    from sbpipe.studies.reproduce.runner import refuse_missing_arrays, refuse_missing_data

    if not args.names:
        print(page.listing(EXPERIMENTS.values()))
        return 0
    experiments = named(args.names)
    plans = {one.name: _plans(one.how, args) for one in experiments if isinstance(one.how, Comparison)}
    # For all experiments first: data that the last one lacks must not show up after two hours.
    refuse_missing_data([plan for tasks in plans.values() for plan in tasks.values()])
    for how in (one.how for one in experiments):
        if isinstance(how, Measurement) and how.arrays and not args.quick:
            refuse_missing_arrays(how.arrays)
    code, entries = 0, []
    for experiment in experiments:
        if isinstance(experiment.how, Comparison):
            entry, went = _compare(experiment, experiment.how, plans[experiment.name], args)
        else:
            entry, went = _measure(experiment, experiment.how, args), 0
        if entry is None:
            return went
        code = max(code, went)
        entries.append(entry)
        # After each one, so that a stop loses no outcome.
        page.write(args.out, entry)
        print(f"\n{page.as_text(entry)}", flush=True)
    if len(entries) > 1:
        print("", *map(page.as_line, entries), sep="\n")
    print(f"\nresults:  {args.out / page.PAGE} and {page.JSON}")
    return code


def _plans(comparison: "Comparison", args: argparse.Namespace) -> "dict[str, Plan]":
    from sbpipe.studies.reproduce.runner import configs_folder, plan_tasks
    from sbpipe.studies.study_file import seeds_flag

    seeds = seeds_flag(args.seeds) if args.seeds is not None else None
    return plan_tasks(comparison, configs_folder(args.configs), quick=args.quick, seeds=seeds)


def _compare(
    experiment: "Experiment", comparison: "Comparison", plans: "dict[str, Plan]", args: argparse.Namespace
) -> "tuple[Entry | None, int]":
    """Make the scores that arms prune by, run every task, then judge; there is no entry if it was stopped."""
    from sbpipe.studies.reproduce.pruning_scores import prepare
    from sbpipe.studies.reproduce.results_page import entry_of
    from sbpipe.studies.reproduce.runner import run_task

    # Cells are resumable, so the same command goes on.
    again = shlex.join(["sbpipe", *sys.argv[1:]])
    ran, facts = {}, []
    places = {task: args.out / comparison.file / task.replace(" ", "-").replace("%", "") for task in plans}
    for task, plan in plans.items():
        if comparison.scores is not None:
            facts += prepare(comparison.scores, plan, print)
        print(f"{experiment.name}: {plan.name}, {len(plan.cells)} runs, into {places[task]}", flush=True)
        ran[task] = run_task(plan, places[task], resume_with=again, retry=args.retry)
        if ran[task].is_stopped:
            print(f"stopped\nresume with:  {again}")
            return None, 130
    failed = [text for one in ran.values() for text in one.failed]
    for text in failed:
        print(f"failed: {text}", file=sys.stderr)
    findings = comparison.judge({task: one.arms for task, one in ran.items()})
    facts += [fact for one in ran.values() for fact in one.facts]
    return entry_of(experiment, findings, facts, places.values(), quick=args.quick), int(bool(failed))


def _measure(experiment: "Experiment", measurement: "Measurement", args: argparse.Namespace) -> "Entry":
    """Measure, write the numbers, judge."""
    import json

    from sbpipe.files import write_atomically
    from sbpipe.studies.reproduce.results_page import entry_of
    from sbpipe.studies.reproduce.runner import machine_facts

    print(
        f"{experiment.name}: measuring, about {experiment.takes_quick if args.quick else experiment.takes}",
        flush=True,
    )
    facts = machine_facts()
    numbers = measurement.measure(args.quick)
    path = args.out / f"{experiment.name}{'-quick' if args.quick else ''}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(
        path, json.dumps({name: list(values) for name, values in numbers.items()}, indent=2) + "\n"
    )
    return entry_of(experiment, measurement.judge(numbers), facts, [path], quick=args.quick)
