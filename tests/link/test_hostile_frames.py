"""Hostile frames: the decoder raises BadFrame and nothing else, the gates nothing, and memory is bounded."""

import pytest
from support.hostile_frames import MOST_BYTES, Attacker, Frames, Judges, corpus, weigh

from sbpipe.link.frames import pack
from sbpipe.link.kinds import BadFrame
from sbpipe.link.messages import Welcome

CORPUS = dict(corpus())


def test_thousands_of_hostile_inputs_are_turned_away() -> None:
    attacker, judges = Attacker(seed=1), Judges()
    for number in range(4000):
        judges.judge(number, attacker.frames(number))
    # Every check of the decoder was reached, and some inputs were near enough to be taken.
    wanted = {"taken", "prefix", "protocol", "type", "header", "fields", "arrays", "meaning"}
    assert judges.outcomes.keys() == wanted


def test_no_hostile_input_takes_much_memory() -> None:
    attacker, judges = Attacker(seed=2), Judges()
    assert max(weigh(judges, number, attacker.frames(number)) for number in range(300)) < MOST_BYTES


@pytest.mark.parametrize("name", CORPUS)
def test_what_failed_once_or_is_known_to_break_decoders_is_turned_away(name: str) -> None:
    frames: Frames = CORPUS[name]
    assert weigh(Judges(), 0, frames) < MOST_BYTES


def test_a_welcome_cannot_make_a_selector_beat_without_end() -> None:
    with pytest.raises(BadFrame, match=r"Welcome\.heartbeat_s = 1e-09 is not"):
        pack(Welcome("{}", "", 1e-9, 4.0))
