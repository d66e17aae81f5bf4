"""Pictures as PNG files: one digit, or a sheet of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from ...protocol.errors import InvalidRequestError

ENLARGEMENT = 8


def save(pictures: Sequence[Tensor], path: Path, *, columns: int = 1) -> None:
    """Write pictures [32, 32] in [0, 1] to `path`, row by row, enlarged.

    Raises InvalidRequestError when `path` is no PNG's or cannot be written.
    """
    if path.suffix.lower() != ".png":
        raise InvalidRequestError(f"{path} is not a PNG file.", hint="Name the file something.png.")
    rows = [
        torch.cat(list(pictures[start : start + columns]), 1) for start in range(0, len(pictures), columns)
    ]
    pixels = (torch.cat(rows) * 255).round().to(torch.uint8)
    height, width = pixels.shape
    image = Image.fromarray(pixels.numpy()).resize(
        (width * ENLARGEMENT, height * ENLARGEMENT), Image.Resampling.BOX
    )
    try:
        image.save(path)
    except OSError as error:
        raise InvalidRequestError(
            f"{path} cannot be written ({error.strerror}).", hint="Check --out."
        ) from error
