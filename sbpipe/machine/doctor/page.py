"""Facts and advice as a page that is read in ten seconds, or as one JSON object. Pure."""

import json
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from sbpipe.machine.doctor.advice import Advice, plural, size
from sbpipe.machine.doctor.facts import Accelerator, Choice, Facts, Folder, Memory, Role, SharedMemory

_NOT_SEEN = "not looked at: see below"


def to_json(facts: Facts, advice: Sequence[Advice]) -> str:
    """The same facts for programs; `works` is what the exit code says."""
    works = not any(item.is_stop for item in advice)
    return (
        json.dumps({"works": works, **asdict(facts), "advice": [asdict(item) for item in advice]}, indent=2)
        + "\n"
    )


def to_page(facts: Facts, advice: Sequence[Advice], width: int = 0) -> str:
    """The page, folded at `width` columns (by default those of the terminal)."""
    width = width or max(60, min(shutil.get_terminal_size().columns, 132))
    lines = ["this machine", *_rows(_machine(facts), width), ""]
    if facts.choice is not None:
        lines += ["`sbpipe run` would choose", *_rows(_choice(facts.choice), width), ""]
    for item in advice:
        mark = "  STOP     " if item.is_stop else "  warning  "
        lines += _fold(mark, item.text, width)
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


def _rows(rows: Iterator[tuple[str, str]], width: int) -> Iterator[str]:
    for label, text in rows:
        yield from _fold(f"  {label:<17}", text, width)


def verdict(advice: Sequence[Advice]) -> str:
    """The last line."""
    if any(item.is_stop for item in advice):
        return "`sbpipe run` would not work here: mend what is marked STOP."
    return (
        f"`sbpipe run` would work here, with {plural(len(advice), 'warning')}."
        if advice
        else "`sbpipe run` would work here."
    )


def _machine(facts: Facts) -> Iterator[tuple[str, str]]:
    cpu = facts.cpu
    quota = "" if cpu.quota is None else f", time of {cpu.quota:g}"
    yield "cpu", f"{cpu.model}, {plural(len(cpu.cores), 'core')} ({ranges(cpu.cores)}){quota}"
    for device in facts.accelerators:
        yield "accelerator", _accelerator(device)
    if not facts.accelerators:
        yield "accelerators", "none" if facts.choice else _NOT_SEEN
    yield "memory", _memory(facts.memory)
    yield "shared memory", _shared_memory(facts.shared_memory) if facts.shared_memory else _NOT_SEEN
    yield "ports", ", ".join(f"{port.endpoint} {'TAKEN' if port.problem else 'free'}" for port in facts.ports)
    yield "data cache", _folder(facts.cache) if facts.cache else _NOT_SEEN
    yield "run directories", _folder(facts.runs)
    curve = f" (libzmq {facts.libzmq}, {'CURVE' if facts.has_curve else 'no CURVE'})" if facts.libzmq else ""
    named = [
        f"{item.name} {item.version or 'missing'}{' BROKEN' * bool(item.problem and item.version)}"
        for item in facts.libraries
    ]
    yield "versions", ", ".join(text + curve if text.startswith("pyzmq") else text for text in named)


def _accelerator(device: Accelerator) -> str:
    if device.total_bytes is None or device.free_bytes is None:
        return f"{device.device} {device.name}, memory unknown"
    return f"{device.device} {device.name}, {size(device.free_bytes)} free of {size(device.total_bytes)}"


def _memory(memory: Memory) -> str:
    limit = "" if memory.limit_bytes is None else f", limit {size(memory.limit_bytes)}"
    return f"{size(memory.available_bytes)} available of {size(memory.total_bytes)}{limit}"


def _shared_memory(shared: SharedMemory) -> str:
    if shared.problem:
        return f"{shared.path}: {shared.problem}"
    return (
        f"{shared.path}, {size(shared.free_bytes)} free of {size(shared.total_bytes)}, writable; "
        f"the three slots of a model up to {size(shared.fits_bytes)} fit"
    )


def _folder(folder: Folder) -> str:
    held = "" if folder.num_bytes is None else f", holds {size(folder.num_bytes)}"
    return (
        f"{folder.path}, {'NOT writable' if folder.problem else 'writable'}{held}, "
        f"{size(folder.free_bytes)} free on its disk"
    )


def _choice(choice: Choice) -> Iterator[tuple[str, str]]:
    yield "trainer", f"{_role(choice.trainer)}; mixed precision {choice.amp}"
    yield "selector", f"{_role(choice.selector)}; scores in {choice.precision}"
    if choice.weights == "shared":
        yield "weights", f"through shared memory, {choice.num_slots} slots of {size(choice.snapshot_bytes)}"
    else:
        yield "weights", f"pulled over the wire, {size(choice.snapshot_bytes)} each time"
    yield "what", f"{choice.mode}, model {choice.model}, data {choice.data}"


def _role(role: Role) -> str:
    where = ("core " if len(role.cores) == 1 else "cores ") + ranges(role.cores)
    threads = "" if role.threads is None else f", {plural(role.threads, 'thread')}"
    return (
        f"{role.device}, {where}{threads}"
        if role.is_pinned
        else f"{role.device}, not pinned ({where}{threads})"
    )


def ranges(numbers: Sequence[int]) -> str:
    """Sorted numbers as 0-3,8."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
