"""Paints the examples of the embedded data set. It knows neither their number nor the cache.

Every property of an example is a random number from its own stream, and varies more for difficult examples.
It uses only whole numbers and single IEEE operations, no sine or sum that libraries round differently, so
that every machine paints the same bytes.
"""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from sbpipe import randomness
from sbpipe.data.glyphs import (
    FIELD_HEIGHT,
    FIELD_WIDTH,
    GLYPH_HEIGHT,
    GLYPH_WIDTH,
    NUM_DIGITS,
    NUM_FACES,
    glyph_fields,
)
from sbpipe.records import Ids

SIDE = 32
_NOISE_LENGTH = 2**16

# A plane has axes (example, y, x); a property of each example has axes (example, 1, 1), so that they combine.
Plane = NDArray[np.float32]
Property = NDArray[np.float32]


class Painter:
    """Paints the examples of one endless stream, named by a seed and a split."""

    def __init__(self, seed: int, split: str) -> None:
        self._seed = seed
        self._split = split
        self._fields = glyph_fields().reshape(-1)
        self._x = (np.arange(SIDE, dtype=np.float32) - np.float32((SIDE - 1) / 2)).reshape(1, 1, SIDE)
        self._y = self._x.reshape(1, SIDE, 1)
        self._noise = sliding_window_view(_noise(), 3 * SIDE * SIDE)

    def paint(self, example_ids: Ids) -> tuple[NDArray[np.uint8], Ids]:
        """The images (axes NCHW) and the classes of these examples."""
        draws = Draws(self._seed, self._split, example_ids)
        digits = draws.whole("digit", NUM_DIGITS)
        difficulty = draws.difficulty()
        ink = self._ink(draws, difficulty, digits)
        stroke = self._stroke(draws, difficulty)
        shade = (
            draws.spread("shade.x", 0.002 + 0.014 * difficulty) * self._x
            + draws.spread("shade.y", 0.002 + 0.014 * difficulty) * self._y
        )
        noise = self._noise[draws.whole("noise", _NOISE_LENGTH)].reshape(-1, 3, SIDE, SIDE)
        noise_size = 0.01 + 0.06 * difficulty
        contrast = draws.between("contrast", 0.75 - 0.5 * difficulty, 0.85 - 0.3 * difficulty)
        brightness = draws.unit("brightness")
        direction = np.where(brightness < 0.5, np.float32(1), np.float32(-1))
        images = np.empty((len(example_ids), 3, SIDE, SIDE), np.uint8)
        for channel, colour in enumerate(("red", "green", "blue")):
            ground = 0.1 + 0.8 * brightness + draws.spread(f"ground.{colour}", 0.25)
            change = direction * contrast * draws.between(f"ink.{colour}", 0.55, 1.0)
            pixels = ground + shade
            pixels += ink * change
            pixels += stroke * (draws.unit(f"stroke.{colour}") - pixels)
            pixels += noise[:, channel] * noise_size
            images[:, channel] = np.rint(np.clip(pixels, 0, 1) * 255)
        return images, digits

    def _ink(self, draws: "Draws", difficulty: Property, digits: Ids) -> Plane:
        """How much of each pixel the digit covers, and the neighbours that crowd some difficult digits."""
        u, v = self._glyph_coordinates(draws, difficulty)
        faces = draws.whole("face", NUM_FACES) * NUM_DIGITS
        field = self._sampled(faces + digits, u, v)
        for side, direction in (("left", 1), ("right", -1)):
            is_crowded = draws.unit(f"{side}.there") < 0.1 + 0.7 * difficulty
            away = direction * GLYPH_WIDTH * draws.between(f"{side}.away", 1.3, 1.5)
            neighbour = self._sampled(faces + draws.whole(f"{side}.digit", NUM_DIGITS), u + away, v)
            np.maximum(field, neighbour * is_crowded, out=field)
        cut = draws.between("cut", 0.38 - 0.12 * difficulty, 0.42 + 0.1 * difficulty)
        sharpness = draws.between("sharpness", 3.5 - 2.0 * difficulty, 5.0 - 2.0 * difficulty)
        ink: Plane = np.clip((field - cut) * sharpness + np.float32(0.5), 0, 1)
        return ink

    def _glyph_coordinates(self, draws: "Draws", difficulty: Property) -> tuple[Plane, Plane]:
        """Each pixel's coordinates in its glyph's field: turned, slanted, stretched and moved."""
        # The tangent of half the angle gives sine and cosine by division, with the same bits on every
        # machine.
        half_turn = draws.spread("turn", 0.06 + 0.3 * difficulty)
        cosine = (1 - half_turn * half_turn) / (1 + half_turn * half_turn)
        sine = 2 * half_turn / (1 + half_turn * half_turn)
        slant = draws.spread("slant", 0.08 + 0.4 * difficulty)
        per_pixel = GLYPH_HEIGHT / draws.between("height", 21 - 7 * difficulty, 24 + 3 * difficulty)
        across = per_pixel * draws.between("narrowness", 0.95 - 0.2 * difficulty, 1.05 + 0.3 * difficulty)
        x = self._x - draws.spread("place.x", 1.5 + 1.5 * difficulty)
        y = self._y - draws.spread("place.y", 1.5 + 1.5 * difficulty)
        u = across * (cosine - slant * sine) * x + (
            across * (sine + slant * cosine) * y + np.float32(FIELD_WIDTH / 2)
        )
        v = -per_pixel * sine * x + (per_pixel * cosine * y + np.float32(FIELD_HEIGHT / 2))
        return u, v

    def _sampled(self, glyphs: Ids, u: Plane, v: Plane) -> Plane:
        columns = np.clip(u, 0, FIELD_WIDTH - 1).astype(np.int32)
        lines = np.clip(v, 0, FIELD_HEIGHT - 1).astype(np.int32)
        lines *= FIELD_WIDTH
        lines += columns
        lines += (glyphs * (FIELD_HEIGHT * FIELD_WIDTH)).astype(np.int32).reshape(-1, 1, 1)
        return self._fields.take(lines)

    def _stroke(self, draws: "Draws", difficulty: Property) -> Plane:
        """A straight stroke that crosses out some of the difficult ones."""
        is_there = draws.unit("stroke.there") < 0.05 + 0.75 * difficulty
        half_turn = draws.spread("stroke.turn", 1.0)
        across, along = (
            2 * half_turn / (1 + half_turn * half_turn),
            (1 - half_turn * half_turn) / (1 + half_turn * half_turn),
        )
        distance = np.abs(across * self._x + (along * self._y - draws.spread("stroke.place", 10.0)))
        width = draws.between("stroke.width", 0.6, 1.2 + 0.8 * difficulty)
        stroke: Plane = np.clip(width - distance + np.float32(0.5), 0, 1) * is_there
        return stroke


class Draws:
    """Properties of some examples, each from its own stream."""

    def __init__(self, seed: int, split: str, example_ids: Ids) -> None:
        self._seed = seed
        self._split = split
        self._example_ids = example_ids

    def whole(self, purpose: str, limit: int) -> Ids:
        """A whole number in [0, limit)."""
        return randomness.below(self._example_ids, self._key(purpose), limit)

    def unit(self, purpose: str) -> Property:
        """A number in [0, 1)."""
        return randomness.uniform(self._example_ids, self._key(purpose)).astype(np.float32).reshape(-1, 1, 1)

    def between(self, purpose: str, low: Property | float, high: Property | float) -> Property:
        """A number from low to high."""
        return low + (high - low) * self.unit(purpose)

    def spread(self, purpose: str, size: Property | float) -> Property:
        """A number from -size to size."""
        return size * (2 * self.unit(purpose) - 1)

    def difficulty(self) -> Property:
        """From 0 to 1: for half of the examples below 1/8, for a tenth above 3/4."""
        chance = self.unit("difficulty")
        return chance * chance * chance

    def _key(self, purpose: str) -> int:
        return randomness.key(self._seed, f"embedded.{self._split}.{purpose}")


def _noise() -> NDArray[np.float32]:
    """A long strip of noise, of which each example uses a piece: sums of four uniforms, deviation 1."""
    places = np.arange(_NOISE_LENGTH + 3 * SIDE * SIDE)
    parts = [randomness.uniform(places, randomness.key(0, "embedded.noise", part)) for part in range(4)]
    # Four uniforms have mean 2 and variance 4/12, so sqrt(3) makes the deviation 1.
    return ((parts[0] + parts[1] + parts[2] + parts[3] - 2) * 1.7320508).astype(np.float32)
