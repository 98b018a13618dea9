"""The digits' shapes: three bitmap faces drawn here, no font files. It must not know where they go."""

import numpy as np
from numpy.typing import NDArray

# Each face: seven lines of ten digits, five dots each.
_FACES = (
    """
    .###. ..#.. .###. ##### ...#. ##### ..##. ##### .###. .###.
    #...# .##.. #...# ...#. ..##. #.... .#... ....# #...# #...#
    #...# ..#.. ....# ..#.. .#.#. ####. #.... ...#. #...# #...#
    #...# ..#.. ...#. ...#. #..#. ....# ####. ..#.. .###. .####
    #...# ..#.. ..#.. ....# ##### ....# #...# ..#.. #...# ....#
    #...# ..#.. .#... #...# ...#. #...# #...# .#... #...# ...#.
    .###. .###. ##### .###. ...#. .###. .###. .#... .###. .##..
    """,
    """
    ##### ..#.. ##### ##### #...# ##### ##### ##### ##### #####
    #...# ..#.. ....# ....# #...# #.... #.... ....# #...# #...#
    #...# ..#.. ....# ....# #...# #.... #.... ....# #...# #...#
    #...# ..#.. ##### ##### ##### ##### ##### ....# ##### #####
    #...# ..#.. #.... ....# ....# ....# #...# ....# #...# ....#
    #...# ..#.. #.... ....# ....# ....# #...# ....# #...# ....#
    ##### ..#.. ##### ##### ....# ##### ##### ....# ##### #####
    """,
    """
    .##.. ...#. .##.. .##.. #..#. ####. ...#. ##### .##.. .##..
    #..#. ..##. #..#. #..#. #..#. #.... ..#.. #..#. #..#. #..#.
    #..#. .#.#. ...#. ...#. #..#. #.... .#... ...#. #..#. #..#.
    #..#. ...#. ..#.. .##.. ##### ###.. ###.. .###. .##.. .###.
    #..#. ...#. ..#.. ...#. ...#. ...#. #..#. ..#.. #..#. ...#.
    #..#. ...#. .#... #..#. ...#. #..#. #..#. ..#.. #..#. ..#..
    .##.. ...#. ####. .##.. ...#. .##.. .##.. ..#.. .##.. .#...
    """,
)
NUM_FACES = len(_FACES)
NUM_DIGITS = 10

# A glyph is 40 x 56 points (8 per dot) in the middle of a field that is wide enough to hold nothing all
# around it.
DOT = 8
GLYPH_WIDTH, GLYPH_HEIGHT = 5 * DOT, 7 * DOT
FIELD_WIDTH, FIELD_HEIGHT = GLYPH_WIDTH + 4 * DOT, GLYPH_HEIGHT + 4 * DOT


def glyph_fields() -> NDArray[np.float32]:
    """Smooth fields by face, digit, y, x: near 1 on the strokes, 0.5 on their outline, 0 far from them.

    A lower or higher threshold gives bolder or thinner strokes, a soft one gives blurred strokes.
    """
    faces = [[line.split() for line in face.split("\n") if line.strip()] for face in _FACES]
    dots = np.array(
        [
            [[[dot == "#" for dot in face[y][digit]] for y in range(7)] for digit in range(10)]
            for face in faces
        ],
        np.int64,
    )
    fields = np.pad(
        dots.repeat(DOT, axis=2).repeat(DOT, axis=3), ((0, 0), (0, 0), (2 * DOT, 2 * DOT), (2 * DOT, 2 * DOT))
    )
    # Two box blurs, in whole numbers: sums of floats could differ in a bit between machines.
    for axis in (2, 3, 2, 3):
        fields = np.sum([np.roll(fields, shift, axis) for shift in range(-DOT // 2, DOT // 2 + 1)], axis=0)
    return (fields / (DOT + 1) ** 4).astype(np.float32)
