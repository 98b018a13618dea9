"""What is known of the scores of a run: by the loss's name, its values, or what selectors tell."""

import numpy as np
import pytest

from sbpipe.config import OWN, Config, resolve
from sbpipe.records import Selection
from sbpipe.trainer.stream.score_kind import ScoreKind

SCORES = np.linspace(0.0, 3.0, 100, dtype=np.float32)


def answer(places: list[int] | None) -> Selection:
    told = None if places is None else np.array(places, np.int32)
    nobody = np.empty(0, np.int32)
    return Selection(0, 0, SCORES, nobody, np.ones(100, np.float32), predicted=told, places=told)


def config_of(name: str, **given: object) -> Config:
    return resolve({"loss.name": name, **{key.replace("__", "."): value for key, value in given.items()}})


def test_a_plug_in_that_was_found_to_be_cross_entropy_tells_what_that_tells() -> None:
    by_name = ScoreKind(config_of("cross_entropy"))
    found = ScoreKind(config_of("mine:loss", loss__label_smoothing=0.1), is_entropy=True)
    other = ScoreKind(config_of("mine:loss"))
    assert by_name.are_entropy
    assert found.are_entropy
    assert found.effective(SCORES) == by_name.effective(SCORES) is not None
    assert (other.are_entropy, other.effective(SCORES)) == (False, None)


def test_of_an_own_loop_it_is_known_once_a_selector_tells_labels_places_and_after_a_resume() -> None:
    own = ScoreKind(config_of(OWN))
    own.note(answer(None))
    assert (own.are_entropy, own.effective(SCORES)) == (False, None)
    own.note(answer([90, 10]))
    again = ScoreKind(config_of(OWN))
    again.restore(own.state())
    for kind in (own, again):
        assert kind.are_entropy
        assert kind.effective(SCORES) == ScoreKind(config_of("cross_entropy")).effective(SCORES)


@pytest.mark.parametrize("name", ["mse", "mine:loss"])
def test_in_our_own_loop_labels_places_say_nothing_of_the_loss(name: str) -> None:
    kind = ScoreKind(config_of(name))
    kind.note(answer([90, 10]))
    kind.restore("cross_entropy")
    assert not kind.are_entropy


def test_norms_of_gradients_are_no_cross_entropy_but_tell_the_share_themselves() -> None:
    kind = ScoreKind(config_of("cross_entropy", selection__score="gradient"))
    assert not kind.are_entropy
    assert kind.effective(SCORES) is not None
