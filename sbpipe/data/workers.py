"""Worker processes that load the examples of any ids on demand.

A DataLoader wants to know its batches beforehand; a selector asks for ids that it has only just been given. So the loader's sampler
is a mailbox: when there is a request it yields the parts of it, one for each worker, and when there is none it yields empty lists,
which the workers answer at once. The sampler never blocks, so the loader never runs dry nor locks up; and as it keeps the order of
what it was given, a request costs one round of empty answers and then its own. This file must not know what the examples are.
"""

import signal
from collections import deque
from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, Sampler

from sbpipe.data.keyed import Items, KeyedDataset
from sbpipe.errors import DataError

# A request's (example_id, epoch) pairs, and what comes back for a part of it: None to an empty one.
Wanted = list[tuple[int, int]]
Answer = Items | DataError | None

_TIMEOUT_S = 120.0


class Workers:
    """`num_workers` processes that load examples, started by the first request; with none of them, this process does it itself."""

    def __init__(self, dataset: KeyedDataset, num_workers: int) -> None:
        self._dataset = dataset
        self._num_workers = num_workers
        self._mailbox: deque[Wanted] = deque()
        self._answers: Iterator[Answer] | None = None

    def load(self, wanted: Wanted) -> list[Items]:
        """The examples wanted, in that order, in one or more pieces."""
        if not self._num_workers:
            return [_items(self._dataset.__getitems__(wanted))]
        size = max(-(-len(wanted) // self._num_workers), 1)
        parts = [wanted[start : start + size] for start in range(0, len(wanted), size)]
        try:
            return self._ask(parts)
        except BaseException:
            # Other parts are still under way, and would be taken for answers to the next request.
            self.stop()
            raise

    def stop(self) -> None:
        """End the processes; a further request starts new ones."""
        self._answers = None
        self._mailbox.clear()

    def _ask(self, parts: list[Wanted]) -> list[Items]:
        self._answers = self._answers or self._start()
        self._mailbox.extend(parts)
        pieces: list[Items] = []
        try:
            while len(pieces) < len(parts):
                if (answer := next(self._answers)) is not None:
                    pieces.append(_items(answer))
        except RuntimeError as error:
            if not str(error).startswith(("DataLoader worker (pid", "DataLoader timed out")):
                raise
            raise DataError(
                f"{self._dataset.name} examples could not be loaded: {error}. "
                "Set data.workers=0 to see what the data set itself says, or fewer workers if memory is short"
            ) from error
        return pieces

    def _start(self) -> Iterator[Answer]:
        loader: DataLoader[Answer] = DataLoader(
            self._dataset,  # type: ignore[arg-type]  # map-style by protocol, not by base class
            batch_sampler=_Mailbox(self._mailbox),
            num_workers=self._num_workers,
            prefetch_factor=1,
            collate_fn=_as_it_is,
            worker_init_fn=_leave_signals_to_the_parent,
            timeout=_TIMEOUT_S,
            generator=torch.Generator(),  # else starting would draw from the global one
        )
        return iter(loader)


class _Mailbox(Sampler[Wanted]):
    """What the DataLoader asks for the ids of its next batch: the next part of a request, or nothing to do."""

    def __init__(self, mailbox: deque[Wanted]) -> None:
        self._mailbox = mailbox

    def __iter__(self) -> Iterator[Wanted]:
        while True:
            yield self._mailbox.popleft() if self._mailbox else []


def _items(answer: Answer) -> Items:
    if isinstance(answer, Items):
        return answer
    raise answer or DataError("an empty request has no examples")


def _as_it_is(answer: Answer) -> Answer:
    return answer


def _leave_signals_to_the_parent(worker: int) -> None:
    # Ctrl-C reaches the whole group; the parent ends its workers itself, and must be able to although it handles SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
