"""The target and its reference images as one row of tokens, for families that place them by rotary ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from ...protocol.errors import UnsupportedRequestError
from .family import Conditioning
from .patches import pack
from .positions import Place, Rope, image_ids, place_by_diagonal, place_by_index, place_by_offset
from .requests import references_of

Size = tuple[int, int]


def image_tokens(
    x: torch.Tensor, given: Conditioning, patch: int, title: str, *, method: str, step: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens (B,N,C) of the target and then of each reference, and their ids (N,3) fp32.

    `method` is the one when the request names none, `step` the distance between the frames of method "index".
    """
    rope = Rope.parse(given.get("rope_options"), title)
    references = references_of(given, x)
    images = [x, *references]
    sizes = [(image.shape[-2], image.shape[-1]) for image in references]
    method = given.get("ref_latents_method") or method
    places = [Place(), *_places(method, _grid(x, patch), sizes, patch, step, title)]
    ids = [
        image_ids(*_grid(image, patch), place, rope, x.device)
        for image, place in zip(images, places, strict=True)
    ]
    return torch.cat([pack(image, patch) for image in images], dim=1), torch.cat(ids)


def _grid(image: torch.Tensor, patch: int) -> Size:
    return -(-image.shape[-2] // patch), -(-image.shape[-1] // patch)


def _places(
    method: str, target: Size, sizes: Sequence[Size], patch: int, step: float, title: str
) -> Iterator[Place]:
    if method == "offset":
        return place_by_offset(sizes, patch)
    if method == "index":
        return place_by_index(len(sizes), step)
    if method == "uxo":
        return place_by_diagonal(target, sizes, patch)
    raise UnsupportedRequestError(
        f"{title} cannot place reference latents by the method {method!r}.", hint="Use offset, index or uxo."
    )
