"""A checkpoint of a sharded model: all ranks write their shares beside the loop, on threads.

Rank 0 names a new folder; every rank writes one file into it and tells rank 0 what is in it; rank 0 writes
its own checkpoint last. Until that exists, the checkpoint before counts. It must not know what is in a file
(`checkpoint_shares.py` does), nor which checkpoints there are.
"""

import contextlib
import secrets
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sbpipe.files import make_folder, sync_folder
from sbpipe.runs.names.files import SHARES
from sbpipe.trainer.ranks.group import Group

if TYPE_CHECKING:
    # Only for ranks that save shares: it loads much of torch that a lone trainer need not wait for.
    from sbpipe.trainer.checkpoint_shares import Index, Share

OnPiece = Callable[[], None]


class Saving:
    """One rank's part in one checkpoint."""

    def __init__(self, group: Group, share: "Share") -> None:
        self._group, self._share = group, share

    def lead(self, folder: Path, step: int, on_piece: OnPiece) -> "Index":
        """Rank 0: have all shares written into a new folder; returns its index. On OSError
        nothing is left.
        """
        name = SHARES.format(step, secrets.token_hex(4))
        refused: OSError | None = None
        try:
            make_folder(folder)
            # Only by rank 0: a rank that does not see the folder is on another disk, and must report that.
            (folder / name).mkdir()
        except OSError as error:
            refused = error
        # Sent in any case: the others wait for it.
        self._group.spread_save("" if refused else name)
        if refused:
            raise refused
        told = self._group.gather_save(self._written(folder / name, on_piece), on_piece)
        assert told is not None, "rank 0 gathers them"
        errors = [f"rank {rank}: {word['error']}" for rank, word in enumerate(told) if "error" in word]
        if errors:
            with contextlib.suppress(OSError):
                shutil.rmtree(folder / name)
            raise OSError("; ".join(errors))
        sync_folder(folder)
        return {"folder": name, "tensors": self._share.form, "files": told}

    def follow(self, folder: Path) -> None:
        """The others: write this share where rank 0 says."""
        name = self._group.spread_save("")
        if name:
            # Only the last part of the name: the file must lie in this run's own folder.
            self._group.gather_save(self._written(folder / Path(name).name, lambda: None))

    def _written(self, folder: Path, on_piece: OnPiece) -> dict[str, Any]:
        try:
            from sbpipe.trainer.checkpoint_shares import FILE, write

            path = folder / FILE.format(self._group.rank)
            return write(path, self._share, on_piece, num_ranks=self._group.world)
        except FileNotFoundError:
            reason = (
                "does not see the folder that rank 0 made. Set checkpoint.whole, or share the run directory"
            )
            return {"error": reason}
        except (OSError, MemoryError) as error:
            return {"error": getattr(error, "strerror", "") or str(error) or "out of memory"}


class Following:
    """The thread on which a rank other than 0 writes its shares, one after the other."""

    def __init__(self) -> None:
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[None] | None = None

    def start(self, saving: Saving, folder: Path) -> None:
        """Write a share beside the loop."""
        self.wait()
        self._writing = self._writer.submit(saving.follow, folder)

    def wait(self) -> None:
        """Wait until the last share is written and reported; raises its error."""
        if self._writing is not None:
            self._writing.result()
