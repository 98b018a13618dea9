"""Facts and advice as a short page, or as one JSON object. Pure."""

import json
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from sbpipe.machine.doctor.advice import Advice, plural, size
from sbpipe.machine.doctor.facts import Accelerator, Facts, HostMemory, Role, SharedMemory

_NOT_SEEN = "not looked at: see below"


def to_json(facts: Facts, advice: Sequence[Advice]) -> str:
    """The same facts for programs; `works` corresponds to the exit code."""
    works = not any(item.is_stop for item in advice)
    whole = {"works": works, **asdict(facts), "advice": [asdict(item) for item in advice]}
    return json.dumps(whole, indent=2) + "\n"


def to_page(facts: Facts, advice: Sequence[Advice], width: int = 0) -> str:
    """The page, folded at `width` columns (by default those of the terminal)."""
    width = width or max(60, min(shutil.get_terminal_size().columns, 132))
    lines = ["this machine"]
    for label, text in _machine(facts):
        lines += _fold(f"  {label:<17}", text, width)
    lines += ["", "`sbpipe run` would compute on"] if facts.trainer else []
    for label, role in (("trainer", facts.trainer), ("selector", facts.selector)):
        lines += _fold(f"  {label:<17}", _role(role), width) if role else []
    lines.append("")
    for item in advice:
        lines += _fold("  STOP     " if item.is_stop else "  warning  ", item.text, width)
    lines += [*([""] if advice else []), verdict(advice)]
    return "\n".join(lines) + "\n"


def _fold(mark: str, text: str, width: int) -> list[str]:
    indent = " " * len(mark)
    return textwrap.wrap(
        text,
        width,
        initial_indent=mark,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def verdict(advice: Sequence[Advice]) -> str:
    """The last line."""
    if any(item.is_stop for item in advice):
        return "`sbpipe run` would not work here: change what is marked STOP."
    warned = f", with {plural(len(advice), 'warning')}" if advice else ""
    return f"`sbpipe run` would work here{warned}."


def _machine(facts: Facts) -> Iterator[tuple[str, str]]:
    cpu = facts.cpu
    quota = "" if cpu.quota is None else f", time of {cpu.quota:g}"
    yield "cpu", f"{cpu.model}, {plural(len(cpu.cores), 'core')} ({ranges(cpu.cores)}){quota}"
    for device in facts.accelerators:
        yield "accelerator", _accelerator(device)
    if not facts.accelerators:
        yield "accelerators", "none" if facts.trainer else _NOT_SEEN
    yield "memory", _memory(facts.memory)
    yield "shared memory", _shared_memory(facts.shared_memory) if facts.shared_memory else _NOT_SEEN
    yield "sockets", f"{facts.sockets.path}, {'NOT private' if facts.sockets.problem else 'private'}"
    writable = "NOT writable" if facts.runs.problem else "writable"
    yield "run directories", f"{facts.runs.path}, {writable}, {size(facts.runs.free_bytes)} free on its disk"
    yield (
        "versions",
        ", ".join(
            f"{item.name} {item.version or 'missing'}{' BROKEN' * bool(item.problem and item.version)}"
            for item in facts.libraries
        ),
    )


def _accelerator(device: Accelerator) -> str:
    if device.total_bytes is None or device.free_bytes is None:
        memory = "memory unknown"
    else:
        memory = f"{size(device.free_bytes)} free of {size(device.total_bytes)}"
    known = [
        f"compute capability {device.capability}" if device.capability else "",
        {True: "TF32", False: "no TF32", None: ""}[device.has_tf32],
        {True: "bf16", False: "no bf16", None: ""}[device.has_bf16],
        "a partition (MIG)" if device.is_partition else "",
        "" if device.busy_percent is None else f"{device.busy_percent} % busy",
    ]
    return ", ".join([f"{device.device} {device.name}", memory, *filter(None, known)])


def _memory(memory: HostMemory) -> str:
    limit = "" if memory.limit_bytes is None else f", limit {size(memory.limit_bytes)}"
    return f"{size(memory.available_bytes)} available of {size(memory.total_bytes)}{limit}"


def _shared_memory(shared: SharedMemory) -> str:
    if shared.problem:
        return f"{shared.path}: {shared.problem}"
    room = f"{size(shared.free_bytes)} free of {size(shared.total_bytes)}"
    return f"{shared.path}, {room}; takes models up to {size(shared.fits_bytes)}"


def _role(role: Role) -> str:
    where = ("core " if len(role.cores) == 1 else "cores ") + ranges(role.cores)
    threads = plural(role.threads, "thread")
    note = f": {role.note}" if role.note else ""
    return f"{role.device}, {where}, {threads}{'' if role.is_pinned else ' (not pinned)'}{note}"


def ranges(numbers: Sequence[int]) -> str:
    """Sorted numbers as 0-3,8."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
