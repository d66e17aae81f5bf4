"""Which family a file belongs to, decided from its header alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...protocol.errors import CheckpointError, UnsupportedModelError
from .chroma import Chroma
from .contents import Contents
from .ernie_image import ErnieImage
from .family import Config, Family
from .flux1 import Flux1
from .flux2 import Flux2
from .header import Header, TensorInfo
from .hunyuan_video import HunyuanVideo
from .lookalikes import ADAPTER, FLOATS, look, quantisation
from .ltx_video import LtxVideo
from .qwen_image import QwenImage
from .sd3 import Sd3
from .wan import Wan
from .z_image import ZImage

FAMILIES: tuple[Family, ...] = (
    Flux1(),
    Flux2(),
    QwenImage(),
    ZImage(),
    Wan(),
    Chroma(),
    Sd3(),
    HunyuanVideo(),
    LtxVideo(),
    ErnieImage(),
)
PREFIXES = ("model.diffusion_model.", "model.model.", "net.")
COMPANIONS = (
    "vae.",
    "first_stage_model.",
    "text_encoders.",
    "cond_stage_model.",
    "conditioner.",
    "clip_vision.",
)


@dataclass(frozen=True)
class Detected:
    """A recognised file. `contents` has the family's key names; `stored`: each one's name in the file."""

    family: Family
    config: Config
    prefix: str
    contents: Contents
    stored: Mapping[str, str]


def detect(header: Header, config: Config | None = None) -> Detected:
    """Recognise the file behind `header`; `config` replaces the inferred one, where shapes do not tell it.

    Raises UnsupportedModelError naming what the file looks like, CheckpointError for missing keys.
    """
    prefix = next((some for some in PREFIXES if any(key.startswith(some) for key in header.tensors)), "")
    names = {key: key.removeprefix(prefix) for key in header.tensors if _belongs(key, prefix)}
    plain = Contents(header.path, {name: header.tensors[key] for key, name in names.items()})
    if any(ADAPTER.search(key) for key in header.tensors):
        raise _refusal(header, look(Contents(header.path, header.tensors)))
    for family in FAMILIES:
        stored = _canonical_names(header, family, names)
        tensors = {name: header.tensors[key] for name, key in stored.items()}
        contents = Contents(header.path, tensors, header.metadata)
        if family.matches(contents):
            _check_plain(header, family.title, contents)
            found = family.config(contents) if config is None else config
            return Detected(family, found, prefix, contents, stored)
    title = look(plain) or look(Contents(header.path, header.tensors))
    raise _refusal(header, title, quantisation(header, plain))


def _belongs(key: str, prefix: str) -> bool:
    """Keys of an all-in-one file's other models are left to whoever loads those."""
    return key.startswith(prefix) or not key.startswith(COMPANIONS)


def _canonical_names(header: Header, family: Family, names: Mapping[str, str]) -> dict[str, str]:
    stored: dict[str, str] = {}
    for key, name in names.items():
        canonical = family.canonical(name)
        if canonical in stored:
            raise CheckpointError(
                f"{header.path}: holds the same tensor as {stored[canonical]!r} and as {key!r}."
            )
        stored[canonical] = key
    return stored


def _check_plain(header: Header, title: str, contents: Mapping[str, TensorInfo]) -> None:
    layout = quantisation(header, contents)
    if layout:
        raise _refusal(header, title, layout)
    odd = sorted(key for key, info in contents.items() if info.dtype not in FLOATS)
    if odd:
        raise _refusal(header, title, _dtypes(contents[key] for key in odd))


def _dtypes(infos: Iterable[TensorInfo]) -> str:
    return "/".join(sorted({info.dtype for info in infos}))


def _refusal(header: Header, title: str | None, layout: str | None = None) -> UnsupportedModelError:
    ours = ", ".join(family.title for family in FAMILIES)
    if layout:
        what = f"looks like {title or 'a model'} quantised as {layout}, which is not yet supported"
        return UnsupportedModelError(
            f"{header.path}: {what}.", hint="Use the bf16 or fp16 file of the model."
        )
    what = f"looks like {title}" if title else "is of no family known here"
    return UnsupportedModelError(
        f"{header.path}: {what}; this engine runs {ours}.", hint="Use ComfyUI's own loader."
    )
