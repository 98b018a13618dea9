"""Whole runs from Python, as `sbpipe run` makes them. No torch at import.

`sbpipe.select`, for a user's own loop, is in `ownloop/select.py`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sbpipe.config import resolve
from sbpipe.config.objects import named, refuse_apart
from sbpipe.process import is_in_one_process, run_processes, selector_count
from sbpipe.runs.directory import SUMMARY, claim, default_path, resumed


def train(
    settings: Mapping[str, Any] | None = None,
    run_dir: str | Path | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Run both roles to the end and return the numbers of `summary.json`.

    `settings` are dotted keys (`{"selection.keep": 0.25}`); what is wrong with them is raised as
    `sbpipe.errors` says, what goes wrong in a role as `process.ChildFailed`, with the end of its log. With
    mode `inline` both roles run in this process, unless ranks or trackers need others; else as two supervised
    ones.

    Where a setting takes `module:function`, the function itself may stand: in this process any, else one of a
    module that other processes can import.
    """
    given, only_here = named(settings or {})
    config = resumed(Path(run_dir or ""), given) if resume else resolve(given)
    path = Path(run_dir) if run_dir is not None else default_path(config.mode)
    if is_in_one_process(config):
        from sbpipe.process.roles import run_inline

        return run_inline(config, path, resume=resume, overwrite=overwrite, on_open=lambda _: None)
    refuse_apart(given, only_here, config.mode)
    # The trainer checks it again, but from a child the error would be a log and an exit code.
    claim(path, resume=resume, overwrite=overwrite)
    count = selector_count(config)
    ending = run_processes(config, given, path, num_selectors=count, resume=resume, overwrite=overwrite)
    return ending.summary or dict(json.loads((path / SUMMARY).read_text(encoding="utf-8")))
