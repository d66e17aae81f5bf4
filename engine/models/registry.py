"""Which family a file belongs to, decided from its header alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...protocol.errors import CheckpointError, UnsupportedModelError
from .chroma import Chroma
from .contents import Contents
from .ernie_image import ErnieImage
from .family import Config, Family
from .flux1 import Flux1
from .flux2 import Flux2
from .header import Header
from .hunyuan_video import HunyuanVideo
from .lookalikes import ADAPTER, look
from .ltx_video import LtxVideo
from .quant.layer import Layer
from .quant.layers import Stored, stored
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


ARCHITECTURE = "general.architecture"
PLAIN = frozenset({"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"})


@dataclass(frozen=True)
class Detected:
    """A recognised file.

    `contents` has the family's key names, and for quantised weights the shapes of their values; `stored`: the
    name of each in the file; `layers`: how the quantised ones are stored.
    """

    family: Family
    config: Config
    prefix: str
    contents: Contents
    stored: Mapping[str, str]
    layers: Mapping[str, Layer]


def detect(header: Header, config: Config | None = None) -> Detected:
    """Recognise the file behind `header`; `config` replaces the inferred one, where shapes do not tell it.

    Raises UnsupportedModelError naming what the file looks like, CheckpointError for missing keys and for
    quantised weights that are not whole.
    """
    prefix = next((some for some in PREFIXES if any(key.startswith(some) for key in header.tensors)), "")
    names = {key: key.removeprefix(prefix) for key in header.tensors if _belongs(key, prefix)}
    if any(ADAPTER.search(key) for key in header.tensors):
        raise _refusal(header, look(Contents(header.path, header.tensors)))
    values = stored(header, names, prefix)
    for family in FAMILIES:
        detected = _as_family(header, family, config, prefix, values)
        if detected is not None:
            return detected
    plain = Contents(header.path, values.infos(header))
    raise _refusal(header, look(plain) or look(Contents(header.path, header.tensors)))


def _as_family(
    header: Header, family: Family, config: Config | None, prefix: str, values: Stored
) -> Detected | None:
    keys = _canonical_names(header, family, values)
    infos = values.infos(header)
    contents = Contents(header.path, {ours: infos[name] for ours, name in keys.items()}, header.metadata)
    if not family.matches(contents):
        return None
    layers = {ours: values.layers[name] for ours, name in keys.items() if name in values.layers}
    _check_dtypes(header, contents, layers)
    found = family.config(contents) if config is None else config
    in_file = {ours: values.names[name] for ours, name in keys.items()}
    return Detected(family, found, prefix, contents, in_file, layers)


def _belongs(key: str, prefix: str) -> bool:
    """Keys of an all-in-one file's other models are left to whoever loads those."""
    return key.startswith(prefix) or not key.startswith(COMPANIONS)


def _canonical_names(header: Header, family: Family, values: Stored) -> dict[str, str]:
    """The family's name of every tensor -> its name without prefix."""
    found: dict[str, str] = {}
    for name, key in values.names.items():
        canonical = family.canonical(name)
        if canonical in found:
            raise CheckpointError(
                f"{header.path}: holds the same tensor as {values.names[found[canonical]]!r} and as {key!r}."
            )
        found[canonical] = name
    return found


def _check_dtypes(header: Header, contents: Contents, layers: Mapping[str, Layer]) -> None:
    odd = {key: info.dtype for key, info in contents.items() if key not in layers and info.dtype not in PLAIN}
    for key, dtype in odd.items():
        raise UnsupportedModelError(
            f"{header.path}: stores tensor {key!r} as {dtype}, which holds no weights that are known here.",
            hint="Use the bf16 or fp16 file of the model.",
        )


def _refusal(header: Header, title: str | None) -> UnsupportedModelError:
    ours = ", ".join(family.title for family in FAMILIES)
    what = f"looks like {title}" if title else "is of no family known here"
    if ARCHITECTURE in header.metadata:
        what += f" (a GGUF file of the architecture {header.metadata[ARCHITECTURE]!r})"
    return UnsupportedModelError(
        f"{header.path}: {what}; this engine runs {ours}.", hint="Use ComfyUI's own loader."
    )
