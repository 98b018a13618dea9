"""How ranks find each other, also after restarts: the default process group. It knows nothing of training.

torchrun keeps one store over its restarts, so it still holds the addresses of ranks that are gone. Its count
of restarts does not tell them apart: each host's agent counts for itself, and does not count where nodes come
or go. So the ranks agree on a name for each meeting through the store itself.
"""

import secrets
import time
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

_LOOK_S = 0.02


def join_ranks(
    backend: str | None = None, *, rank: int = -1, world: int = -1, wait_s: float = 1800.0
) -> None:
    """Make the default process group of the ranks that torchrun started, also after it started them again.

    In place of `torch.distributed.init_process_group()`, whose store still has the addresses of the ranks
    before a restart. `wait_s` is how long a rank waits for another, here and in every later collective.
    """
    wait = timedelta(seconds=wait_s)
    given, rank, world = next(rendezvous("env://", rank, world, timeout=wait))
    given.set_timeout(wait)
    name = meet(PrefixStore("sbpipe meeting", given), rank, world, wait_s)
    store = PrefixStore(f"sbpipe {name}", given)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=wait)


def meet(store: Store, rank: int, world: int, wait_s: float) -> str:
    """A name that all present ranks share, and no earlier ones.

    Each rank says hello with a random token, and rank 0 answers the token with the name of its meeting. A
    rank that has read the answer says that it is ready; when all are, rank 0 closes the meeting. Tokens of
    ranks that are gone are answered too, but never become ready.
    """
    give_up = time.monotonic() + wait_s
    if rank == 0:
        return _lead(store, world, give_up)
    return _follow(store, rank, give_up)


def _lead(store: Store, world: int, give_up: float) -> str:
    name = secrets.token_hex(8)
    tokens: dict[int, str] = {}
    missing = list(range(1, world))
    while missing:
        for rank in range(1, world):
            if store.check([_hello(rank)]):
                token = store.get(_hello(rank)).decode()
                if tokens.get(rank) != token:
                    tokens[rank] = token
                    store.set(_welcome(token), name)
        # All ranks every time: one that was ready may have been restarted since.
        missing = [
            r for r in range(1, world) if r not in tokens or not store.check([_ready(name, tokens[r])])
        ]
        if missing:
            _pause(give_up, f"ranks {', '.join(map(str, missing))} did not come")
    store.set(_closed(name), "1")
    return name


def _follow(store: Store, rank: int, give_up: float) -> str:
    token, name = secrets.token_hex(8), ""
    store.set(_hello(rank), token)
    while not name or not store.check([_closed(name)]):
        # Checked again and again: the first answer may be of a rank 0 that was about to end.
        if store.check([_welcome(token)]) and (told := store.get(_welcome(token)).decode()) != name:
            name = told
            store.set(_ready(name, token), "1")
        _pause(give_up, "rank 0 did not answer" if not name else "not all ranks came")
    return name


def _pause(give_up: float, missing: str) -> None:
    if time.monotonic() > give_up:
        raise dist.DistStoreError(missing)
    time.sleep(_LOOK_S)


def _hello(rank: int) -> str:
    return f"hello {rank}"


def _welcome(token: str) -> str:
    return f"welcome {token}"


def _ready(name: str, token: str) -> str:
    return f"ready {name} {token}"


def _closed(name: str) -> str:
    return f"closed {name}"
