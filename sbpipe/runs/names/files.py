"""What lies in a run directory. Plain data."""

CONFIG = "config.json"
ENVIRONMENT = "environment.json"
CONNECTION = "connection.json"
SELECTOR_KEY = "selector.key"
TRAINER_EVENTS = "events-trainer.jsonl"
SELECTOR_EVENTS = "events-selector-{}.jsonl"
SUPERVISOR_EVENTS = "events-supervisor.jsonl"
TRAINER_RECENT = "recent-trainer.jsonl"
SELECTOR_RECENT = "recent-selector-{}.jsonl"
SUMMARY = "summary.json"
EXAMPLES = "examples.npz"
REPORT = "report.html"
LOGS = "logs"
LOCK = "trainer.lock"
CHECKPOINTS = "checkpoints"
CHECKPOINT = "step-{}.pt"
SHARES = "step-{}.shares-{}"
LAST_WEIGHTS = "weights-{}.pt"
TRACKERS = "trackers"
JOB = "job.pkl"
EXPORT = "export"
WEIGHTS = "model.safetensors"

FILES: dict[str, str] = {
    CONFIG: "every setting, resolved",
    ENVIRONMENT: "versions, devices, host, cores, git commit, command, launch by torchrun",
    CONNECTION: "where a selector reaches the trainer",
    SELECTOR_KEY: "while a trainer listens over TCP: the key by which selectors of this user reach it",
    TRAINER_EVENTS: "the trainer's events",
    SELECTOR_EVENTS.format(
        "ID"
    ): "one file per selector process; in mode `inline` its events are the trainer's",
    SUPERVISOR_EVENTS: "what `sbpipe run` had to start again; only where it had to",
    TRAINER_RECENT: "of a long run: how it stands right now and its last steps, for those who watch; small",
    SELECTOR_RECENT.format("ID"): "the same of a selector",
    SUMMARY: "the numbers of the run, flat, under stable dotted names",
    EXAMPLES: (
        "per example: last score, times considered, times kept; thumbnails of the easiest, hardest and "
        "never kept"
    ),
    JOB: "while a user's own loop goes on: what its selectors select for, for this user alone",
    REPORT: "the page that `sbpipe run` and `sbpipe report` make",
    f"{CHECKPOINTS}/": (
        "what a resume needs; in `step-N.shares-ID/` each rank's share of a model that is cut up; "
        "`weights-N.pt` where a run ended at a step that has none"
    ),
    f"{EXPORT}/": "the trained model for others, where `sbpipe export` made it",
    f"{LOGS}/": "what the roles printed",
    LOCK: "held while a trainer works here",
    f"{TRACKERS}/": "how far each tracker has come; `tensorboard/`, `wandb/`, `mlruns/` are their copies",
}
"""Every file and folder, with one line on what it holds."""


def recent_of(events_file: str) -> str:
    """The name of the file for what is passing, from that of the file for what stays."""
    return f"recent-{events_file.removeprefix('events-')}"


def selector_of(file: str) -> str:
    """A selector's id, from the name of one of its files; the ending may be left out."""
    return file.removesuffix(".jsonl").partition("-selector-")[2]
