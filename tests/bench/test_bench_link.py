"""What the bench of the link sends is a message that the link takes."""

from sbpipe.bench.link import a_selection
from sbpipe.link.frames import decode, encode
from sbpipe.records import Selection


def test_the_selection_that_is_timed_travels_whole() -> None:
    message = decode(encode(a_selection(), session=bytes(16), sequence=1)).message
    assert isinstance(message, Selection)
    assert (len(message.scores), len(message.kept), len(message.keep_probability)) == (384, 128, 384)
