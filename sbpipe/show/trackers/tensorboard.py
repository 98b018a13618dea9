"""TensorBoard: event files in RUN/tensorboard. The only file that knows the library."""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sbpipe.errors import MissingExtra
from sbpipe.show.trackers.tracker import Tracked

if TYPE_CHECKING:
    from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]

FOLDER = "tensorboard"
_FLUSH_S = 10


class TensorBoard:
    """Scalars with step and wall time of their event, settings as text; written from the start each time."""

    name = "tensorboard"
    purpose = "TensorBoard scalars"
    remembers = False

    def __init__(self) -> None:
        self.errors: tuple[type[Exception], ...] = (OSError,)
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2  # type: ignore[import-untyped]
            from tensorboard.plugins.text import metadata  # type: ignore[import-untyped]
            from tensorboard.summary.writer.event_file_writer import EventFileWriter  # type: ignore[import-untyped]
            from tensorboard.util import tensor_util  # type: ignore[import-untyped]
        except ImportError:
            raise MissingExtra(self.name, self.name, self.purpose) from None
        self._event, self._session, self._summary = event_pb2.Event, event_pb2.SessionLog, summary_pb2.Summary
        self._text_metadata, self._tensor = metadata.create_summary_metadata, tensor_util.make_tensor_proto
        self._open = EventFileWriter

    def start(self, run: Tracked) -> str:
        """Begin a new event file in place of old ones."""
        folder = run.path / FOLDER
        # A resumed run repeats steps, and points in a file cannot be replaced: both copies would be shown.
        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()
        self._writer = self._open(str(folder), flush_secs=_FLUSH_S)
        # On reading this, a TensorBoard that shows the folder forgets the old file's points.
        self._writer.add_event(
            self._event(wall_time=time.time(), session_log=self._session(status=self._session.START))
        )
        self._write(self._settings_as_text(run.settings), 0, time.time())
        return str(folder)

    def _settings_as_text(self, settings: Mapping[str, Any]) -> "Summary":
        rows = "".join(f"| {key} | {value} |\n" for key, value in settings.items())
        tensor = self._tensor([f"| setting | value |\n|---|---|\n{rows}".encode()])
        metadata = self._text_metadata(display_name="settings", description="every setting of the run")
        return self._summary(value=[self._summary.Value(tag="settings", metadata=metadata, tensor=tensor)])

    def scalars(self, values: Mapping[str, float], step: int, wall_time: float) -> None:
        """One event with all values."""
        tagged = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write(self._summary(value=tagged), step, wall_time)

    def _write(self, summary: "Summary", step: int, wall_time: float) -> None:
        self._writer.add_event(self._event(step=step, wall_time=wall_time, summary=summary))

    def flush(self) -> None:
        """Make everything visible to readers."""
        self._writer.flush()

    def finish(self, summary: Mapping[str, Any], ending: str) -> None:
        """Close the file; TensorBoard has no place for the summary."""
        self._writer.close()
