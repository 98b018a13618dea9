"""The data set `image_folder`: train/CLASS/*.jpg and val/CLASS/*.jpg (or test/), read by worker processes.

It must not know how many processes there are nor what the view does.
"""

from pathlib import Path

import numpy as np
import torch

from sbpipe.config import DataConfig
from sbpipe.data.content import Contents, data_error
from sbpipe.data.datasets import DatasetContent
from sbpipe.errors import DataError

_FORM = "It must hold train/ and val/ (or test/), each with one folder of images per class"


class FolderImages:
    """The images of a folder of classes as uint8 CHW squares: the largest square in the middle, resized."""

    def __init__(self, folder: Path, image_size: int) -> None:
        # Imported here: torchvision takes a second, which other data sets do not need to spend.
        from torchvision.datasets import ImageFolder  # type: ignore[import-untyped]

        try:
            found = ImageFolder(str(folder))
        except (FileNotFoundError, OSError) as error:
            raise data_error(
                "data.path", str(folder), f"no classes of images here ({str(error).splitlines()[0]})", _FORM
            ) from None
        self.classes: list[str] = found.classes
        self.paths: list[str] = [path for path, _ in found.imgs]
        self.labels = np.array([label for _, label in found.imgs], np.int64)
        self.image_size = image_size

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, example_id: int) -> tuple[torch.Tensor, int]:
        from PIL import Image, ImageOps

        side = (self.image_size, self.image_size)
        try:
            with Image.open(self.paths[example_id]) as image:
                # A JPEG is then decoded at a fraction of its size, which costs much less.
                image.draft("RGB", side)
                pixels = np.array(ImageOps.fit(image.convert("RGB"), side, Image.Resampling.BILINEAR))
        except (OSError, ValueError, Image.DecompressionBombError) as error:
            raise DataError(
                f"image {self.paths[example_id]!r} cannot be read ({error}). Repair it or remove it from the "
                "folder"
            ) from None
        return torch.from_numpy(pixels).permute(2, 0, 1), int(self.labels[example_id])


def read_image_folder(data: DataConfig) -> Contents:
    """The contents of the folder `data.path`."""
    root = Path(data.path).expanduser()
    if not data.path or not root.is_dir():
        raise data_error(
            "data.path",
            data.path,
            "there is no such folder",
            f"Set data.path to the folder of the images. {_FORM}",
        )
    test_folder = next((root / name for name in ("val", "test") if (root / name).is_dir()), None)
    if test_folder is None or not (root / "train").is_dir():
        missing = "train/" if test_folder else "val/ or test/"
        raise data_error("data.path", data.path, f"the folder has no {missing}", _FORM)
    train, test = FolderImages(root / "train", data.image_size), FolderImages(test_folder, data.image_size)
    if train.classes != test.classes:
        names = ", ".join(sorted(set(train.classes) ^ set(test.classes))[:5])
        reason = f"train/ and {test_folder.name}/ differ in their class folders ({names})"
        raise data_error(
            "data.path",
            data.path,
            reason,
            "Give both the same class folders: a class's number is its place among them",
        )
    num_classes = data.classes or len(train.classes)

    def content(name: str, images: FolderImages) -> DatasetContent:
        return DatasetContent(
            images, name=name, num_classes=num_classes, num_workers=data.workers, labels=images.labels
        )

    return Contents(
        content("train", train), content("test", test), num_classes, len(train.classes), tuple(train.classes)
    )
