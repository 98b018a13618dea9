import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.runs import HANG_S

from sbpipe import randomness
from sbpipe.config import ViewConfig
from sbpipe.data.arrays import ArrayContent
from sbpipe.data.content import ChannelStats, Fetched
from sbpipe.data.split import Split
from sbpipe.data.views import ImageView, check_view
from sbpipe.errors import ConfigError

CPU = torch.device("cpu")
FULL = ViewConfig(crop=4, flip=True, cutout=5)
RAW = {"normalise": False}


def pictures(num_examples: int = 300, channels: int = 3, height: int = 12, width: int = 10) -> ArrayContent:
    pixels = np.arange(num_examples * channels * height * width)
    images = randomness.below(pixels, 1, 255).astype(np.uint8).reshape(
        num_examples, channels, height, width
    ) + np.uint8(1)
    return ArrayContent(images, np.arange(num_examples) % 10)


def split_of(content: ArrayContent, config: ViewConfig, *, seed: int = 0, is_clean: bool = False) -> Split:
    stats = content.channel_stats()
    view = ImageView(
        config, content.input_shape, stats, CPU, margin=config.crop, seed=seed, is_clean=is_clean
    )
    return Split(content.place(CPU, margin=config.crop, seed=seed), view)


def raw(config: ViewConfig, epoch: int = 0, num_examples: int = 300) -> NDArray[np.int64]:
    """Views as whole pixel values."""
    pixels = split_of(pictures(num_examples), config).batch(np.arange(num_examples), epoch).inputs
    return np.rint(pixels.numpy() * 255).astype(np.int64)


def test_a_view_does_not_depend_on_the_batch_it_is_in() -> None:
    split = split_of(pictures(), FULL)
    whole = split.batch(np.arange(300), 2).inputs
    shuffled = np.random.default_rng(0).permutation(300)
    assert torch.equal(split.batch(shuffled, 2).inputs, whole[shuffled])
    for example_id in (0, 17, 299):
        assert torch.equal(split.batch(np.array([example_id]), 2).inputs[0], whole[example_id])


def digest_of_views() -> str:
    pixels = split_of(pictures(), FULL, seed=5).batch(np.arange(300), 3).inputs
    return hashlib.sha256(pixels.numpy().tobytes()).hexdigest()


def test_a_view_does_not_depend_on_the_process_or_its_threads() -> None:
    here = Path(__file__).parent
    program = (
        f"import sys, torch; sys.path[:0] = {[str(here), str(here.parent)]}; torch.set_num_threads(1); "
        "import test_views as t; print(t.digest_of_views())"
    )
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=HANG_S
    )
    assert told.stdout.strip() == digest_of_views()


def test_a_batch_may_span_epochs() -> None:
    split = split_of(pictures(), FULL)
    example_ids, epochs = np.arange(300), np.arange(300) % 3
    mixed = split.batch(example_ids, epochs).inputs
    for epoch in range(3):
        of_epoch = epochs == epoch
        assert torch.equal(mixed[of_epoch], split.batch(example_ids[of_epoch], epoch).inputs)


@pytest.mark.parametrize(
    "config",
    [ViewConfig(crop=4), ViewConfig(flip=True), ViewConfig(cutout=5)],
    ids=["crop", "flip", "cutout"],
)
def test_views_differ_between_epochs_and_seeds(config: ViewConfig) -> None:
    content, example_ids = pictures(), np.arange(300)
    views = [
        split_of(content, config, seed=seed).batch(example_ids, epoch).inputs
        for seed in (0, 1)
        for epoch in (0, 1)
    ]
    for first in range(4):
        for second in range(first):
            changed = (views[first] != views[second]).flatten(1).any(1).float().mean()
            assert changed > 0.3


def reference(
    content: ArrayContent, config: ViewConfig, seed: int, epoch: int, example_id: int
) -> NDArray[np.float32]:
    """The definition, one example at a time."""

    def drawn(purpose: str, limit: int) -> int:
        return int(randomness.below(np.array([example_id]), randomness.key(seed, purpose, epoch), limit)[0])

    image, margin, (_, height, width) = content.inputs[example_id], config.crop, content.input_shape
    top, left = drawn("view.crop.y", 2 * margin + 1), drawn("view.crop.x", 2 * margin + 1)
    image = np.pad(image, ((0, 0), (margin, margin), (margin, margin)))[
        :, top : top + height, left : left + width
    ]
    if drawn("view.flip", 2):
        image = image[:, :, ::-1]
    mean, deviation = (np.array(values) for values in content.channel_stats())
    scale, shift = ((1 / deviation).astype(np.float32), (-mean / deviation).astype(np.float32))
    pixels = image.astype(np.float32) * scale[:, None, None] + shift[:, None, None]
    top, left = (
        drawn("view.cutout.y", height) - config.cutout // 2,
        drawn("view.cutout.x", width) - config.cutout // 2,
    )
    pixels[:, max(top, 0) : max(top + config.cutout, 0), max(left, 0) : max(left + config.cutout, 0)] = 0
    return pixels


@pytest.mark.parametrize("channels", [1, 3])
def test_a_batch_equals_the_definition_bit_for_bit(channels: int) -> None:
    content = pictures(60, channels)
    batch = split_of(content, FULL, seed=9).batch(np.arange(60), 4).inputs.numpy()
    expected = np.stack([reference(content, FULL, 9, 4, example_id) for example_id in range(60)])
    assert np.array_equal(batch, expected)


def test_a_crop_is_a_window_of_the_padded_image_and_all_windows_occur() -> None:
    cropped, original = raw(ViewConfig(crop=2, **RAW)), pictures().inputs
    padded = np.pad(original, ((0, 0), (0, 0), (2, 2), (2, 2)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (12, 10), axis=(2, 3))
    same = (windows == cropped[:, :, None, None]).all(axis=(1, 4, 5))
    assert (same.sum(axis=(1, 2)) == 1).all()
    assert same.sum(axis=0).min() > 0


def test_half_of_the_images_are_mirrored_and_the_others_are_not() -> None:
    flipped, original = raw(ViewConfig(flip=True, **RAW)), pictures().inputs
    is_same, is_mirrored = (
        (flipped == original).all(axis=(1, 2, 3)),
        (flipped == original[..., ::-1]).all(axis=(1, 2, 3)),
    )
    assert (is_same ^ is_mirrored).all()
    assert 0.4 < is_mirrored.mean() < 0.6


@pytest.mark.parametrize("side", [1, 4, 5])
def test_cutout_is_one_square_that_an_edge_may_clip_and_leaves_the_rest(side: int) -> None:
    split, uncut = split_of(pictures(), ViewConfig(cutout=side)), split_of(pictures(), ViewConfig())
    cut, whole = split.batch(np.arange(300), 0).inputs, uncut.batch(np.arange(300), 0).inputs
    is_cut = (cut != whole).numpy()
    heights, widths = is_cut.any(axis=(1, 3)).sum(axis=1), is_cut.any(axis=(1, 2)).sum(axis=1)
    assert (is_cut.sum(axis=(1, 2, 3)) == 3 * heights * widths).all()
    assert heights.max() == widths.max() == side
    assert np.median(heights) == side
    assert (cut.numpy()[is_cut] == 0).all()


def test_cutout_shows_the_mean_where_pixels_are_not_normalised() -> None:
    content = pictures()
    split, uncut = split_of(content, ViewConfig(cutout=5, **RAW)), split_of(content, ViewConfig(**RAW))
    cut, whole = split.batch(np.arange(300), 0).inputs, uncut.batch(np.arange(300), 0).inputs
    for channel, mean in enumerate(content.channel_stats().mean):
        fill = cut[:, channel][cut[:, channel] != whole[:, channel]]
        assert torch.allclose(fill, torch.full_like(fill, mean / 255))


def test_normalised_training_pixels_have_mean_zero_and_deviation_one() -> None:
    pixels = split_of(pictures(), ViewConfig()).batch(np.arange(300), 0).inputs
    assert torch.allclose(pixels.mean((0, 2, 3)), torch.zeros(3), atol=1e-5)
    assert torch.allclose(pixels.std((0, 2, 3), unbiased=False), torch.ones(3), atol=1e-5)


def test_channel_statistics_are_exact() -> None:
    content = pictures(50)
    pixels = content.inputs.astype(np.float64)
    stats = content.channel_stats()
    assert np.allclose(stats.mean, pixels.mean((0, 2, 3)), rtol=1e-12)
    assert np.allclose(stats.deviation, pixels.std((0, 2, 3)), rtol=1e-12)


def test_a_channel_of_one_colour_becomes_zero_not_nan() -> None:
    content = ArrayContent(np.full((5, 1, 4, 4), 77, np.uint8), np.zeros(5, np.int64))
    pixels = split_of(content, ViewConfig()).batch(np.arange(5), 0).inputs
    assert (pixels == 0).all()


def test_a_clean_view_is_the_image_itself_in_every_epoch() -> None:
    clean, plain = split_of(pictures(), FULL, is_clean=True), split_of(pictures(), ViewConfig())
    for epoch in (0, 1):
        assert torch.equal(clean.batch(np.arange(300), epoch).inputs, plain.batch(np.arange(300), 0).inputs)


def test_ids_beyond_the_precision_of_float32_have_views_of_their_own() -> None:
    content = pictures(1)
    view = ImageView(
        FULL, content.input_shape, ChannelStats((0.0,) * 3, (1.0,) * 3), CPU, margin=4, seed=0, is_clean=False
    )
    example_ids = 2**40 + np.arange(64)
    fetched = Fetched(content.place(CPU, margin=4, seed=0)._inputs, np.zeros(64, np.int64), torch.zeros(64))
    views, _ = view(fetched, example_ids, np.zeros(64, np.int64))
    assert len({pixels.numpy().tobytes() for pixels in views}) > 60


def test_read_only_ids_and_repeated_ids_and_no_ids_are_served() -> None:
    split = split_of(pictures(), FULL)
    from_the_wire = np.frombuffer(np.array([7, 7, 3]).tobytes(), np.int64)
    batch = split.batch(from_the_wire, 0)
    assert torch.equal(batch.inputs[0], batch.inputs[1])
    assert batch.targets.tolist() == [7, 7, 3]
    assert split.batch(np.array([], np.int64), 0).inputs.shape == (0, 3, 12, 10)


def test_making_views_leaves_the_data_and_the_global_generators_alone() -> None:
    split, before = split_of(pictures(), FULL), torch.get_rng_state()
    first = split.batch(np.arange(300), 0).inputs
    split.batch(np.arange(300), 1).inputs.zero_()
    assert torch.equal(split.batch(np.arange(300), 0).inputs, first)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("given", "match"),
    [({"crop": 10}, "view.crop = 10.*below 10"), ({"cutout": 11}, "view.cutout = 11.*at most 10")],
)
def test_a_view_that_could_hide_the_whole_image_is_refused(given: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        check_view(ViewConfig(**given), (3, 12, 10))
