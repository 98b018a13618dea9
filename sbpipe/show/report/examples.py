"""Contact sheets of a run's easiest, hardest and never kept examples (the paper's Figure 2)."""

import base64
import io
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sbpipe.archives import BadArchive, read_npz
from sbpipe.runs.names.files import EXAMPLES
from sbpipe.show.charts import Chart
from sbpipe.show.charts.chart import Spec

COLUMNS = 8
SIDE = 84
"""Pixels of a thumbnail, at least; small images are enlarged to it without smoothing."""
ROW = 132
SHEETS = {
    "easiest": (
        "Easiest examples",
        "The training examples with the lowest last score: the network has nothing left to learn from them.",
    ),
    "hardest": (
        "Hardest examples",
        "The training examples with the highest last score, kept again and again: look for wrong labels.",
    ),
    "never_kept": (
        "Examples never kept",
        "Training examples that were considered most often and never kept.",
    ),
}
OF_EACH = ("ids", "targets", "predictions", "scores")
"""The columns for every image of a group."""
KEYS = tuple(f"{group}_{name}" for group in SHEETS for name in ("images", *OF_EACH))
MOST_IMAGES = 256
MOST_SIDE = 4096
Arrays = dict[str, NDArray[Any]]


def read_examples(folder: Path, notes: list[str]) -> Arrays:
    """The arrays of a run's `examples.npz`; {} with a note if it is missing or cannot be read."""
    path = folder / EXAMPLES
    if not path.exists():
        notes.append(f"{EXAMPLES} is not there (it is written when a run ends), so no examples are shown.")
        return {}
    try:
        arrays = read_npz(path, KEYS, is_any=True)
    except (OSError, BadArchive) as error:
        notes.append(f"{EXAMPLES} cannot be read ({error}), so no examples are shown.")
        return {}
    for group in SHEETS:
        if f"{group}_images" in arrays and not _is_sheet(group, arrays):
            notes.append(f"{EXAMPLES}: {group} holds no examples that can be shown.")
            del arrays[f"{group}_images"]
    return arrays


def _is_sheet(group: str, arrays: Arrays) -> bool:
    """Whether a group holds a few small images, with a number in every column for each of them."""
    images = arrays[f"{group}_images"]
    rows = [arrays.get(f"{group}_{name}") for name in OF_EACH]
    return (
        images.dtype == np.uint8
        and images.ndim == 4
        and len(images) <= MOST_IMAGES
        and all(1 <= side <= MOST_SIDE for side in images.shape[1:3])
        and images.shape[3] in (1, 3)
        and all(row is not None and row.shape == (len(images),) and row.dtype.kind in "if" for row in rows)
    )


def example_charts(arrays: Arrays) -> list[Chart]:
    """A contact sheet for each group that has pictures."""
    return [_sheet(group, arrays) for group in SHEETS if len(arrays.get(f"{group}_images", ()))]


def _sheet(group: str, arrays: Arrays) -> Chart:
    title, meaning = SHEETS[group]
    images, captions = arrays[f"{group}_images"], captions_of(group, arrays)
    rows = [
        {
            "column": k % COLUMNS + 0.5,
            "row": k // COLUMNS,
            "image": data_uri(image),
            "caption": caption.split("\n"),
            "id": int(example_id),
        }
        for k, (image, caption, example_id) in enumerate(
            zip(images, captions, arrays[f"{group}_ids"], strict=True)
        )
    ]
    return Chart(
        name=f"examples-{group.replace('_', '-')}",
        title=title,
        meaning=f"{meaning} Under each: its class, the network's final prediction, its last score.",
        spec=_grid(rows),
    )


def _grid(rows: list[dict[str, Any]]) -> Spec:
    """Pictures in columns that shrink with the page, three lines of text under each."""
    num_rows = math.ceil(len(rows) / COLUMNS)
    side = f"max(1, min({SIDE}, width / {COLUMNS} - 5))"
    place = {"axis": None, "type": "quantitative"}
    tooltip = [
        {"field": "id", "type": "quantitative", "title": "example"},
        {"field": "caption", "title": "what it is"},
    ]
    picture = {
        "type": "image",
        "aria": False,
        "baseline": "top",
        "width": {"expr": side},
        "height": {"expr": side},
    }
    size = {"expr": "min(11, max(7, width / 50))"}
    return {
        "width": "container",
        "height": num_rows * ROW,
        "data": {"values": rows},
        "encoding": {
            "x": {"field": "column", **place, "scale": {"domain": [0, COLUMNS], "nice": False}},
            "y": {
                "field": "row",
                **place,
                "scale": {"domain": [0, num_rows], "nice": False, "reverse": True},
            },
        },
        "layer": [
            {"mark": picture, "encoding": {"url": {"field": "image"}, "tooltip": tooltip}},
            {
                "mark": {
                    "type": "text",
                    "baseline": "top",
                    "yOffset": {"expr": f"{side} + 4"},
                    "fontSize": size,
                },
                "encoding": {"text": {"field": "caption"}},
            },
        ],
    }


def captions_of(group: str, arrays: Arrays) -> list[str]:
    """Three short lines for each example of a group; class -1 means unknown."""
    fields = (arrays[f"{group}_{name}"] for name in ("targets", "predictions", "scores"))
    return [
        f"true {_class(target)}\npredicted {_class(prediction)}\nscore {_short(score)}"
        for target, prediction, score in zip(*fields, strict=True)
    ]


def data_uri(image: NDArray[np.uint8]) -> str:
    """One image (height, width, channels) as a PNG in a data URI."""
    from PIL import Image

    # Pillow takes one channel as two dimensions only.
    picture = Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image)
    times = max(1, math.ceil(SIDE / max(picture.size)))
    if times > 1:
        picture = picture.resize((picture.width * times, picture.height * times), Image.Resampling.NEAREST)
    elif max(picture.size) > 2 * SIDE:
        picture.thumbnail((2 * SIDE, 2 * SIDE))
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


def _short(score: float) -> str:
    if not math.isfinite(score):
        return "–"
    return f"{score:.2f}" if abs(score) >= 0.005 else f"{score:.0e}" if abs(score) > 1e-9 else "0"


def _class(number: int) -> str:
    return "–" if number < 0 else str(number)
