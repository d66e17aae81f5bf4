"""Records that messages of both directions are made of."""

from __future__ import annotations

from pathlib import PurePosixPath, PureWindowsPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from .base import Digest, Identifier, Record, Tensor, Text
from .cache import CacheReport

Scalar = bool | int | float | str | None
Conditioning = dict[str, Any]


def _relative_name(value: str) -> str:
    """Accept a name below a root; refuse everything that could leave it, on any operating system."""
    posix, windows = PurePosixPath(value), PureWindowsPath(value)
    if not value or "\0" in value or "\\" in value or posix.is_absolute() or windows.drive or windows.root:
        raise ValueError("a model name is a relative name with forward slashes")
    if any(part in ("", ".", "..") for part in value.split("/")):
        raise ValueError("a model name has no empty, '.' or '..' part")
    return value


RelativeName = Annotated[str, Field(max_length=1024), AfterValidator(_relative_name)]


class ModelRef(Record):
    """A file by what it is, never by where: its name under a model root, its size and its header's digest."""

    folder: Literal["diffusion_models"] = "diffusion_models"
    name: RelativeName
    size: int = Field(ge=0)
    digest: Digest


class ModelSettings(Record):
    """How the engine holds a model. `auto` is the dtype ComfyUI's rules would give on the engine's device.

    `weight_dtype` means what it means to UNETLoader: weights are rounded to that fp8, and computed with in
    `dtype`; `_fast` multiplies in fp8 where the device can.
    """

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    weight_dtype: Literal["default", "fp8_e4m3fn", "fp8_e4m3fn_fast", "fp8_e5m2"] = "default"


class Area(Record):
    """A box of the latent: a size and an offset for each dimension after the channels."""

    size: list[Annotated[int, Field(ge=1)]]
    offset: list[Annotated[int, Field(ge=0)]]


class Region(Record):
    """How much a conditioning counts at each place of the latent: `mask` [rows, ...] times `strength`."""

    mask: Tensor
    strength: float = 1.0


class Branch(Record):
    """One conditioning of a run: `id` is its own in the run, `conditioning` the DiT's arguments by name.

    Values are trees of scalars, tensors (batch first; one row stands for all rows) and blobs, cut to `area`
    where the DiT takes them cut. It takes part from sigma `start` down to `end`.
    """

    id: Identifier
    conditioning: Conditioning
    strength: float = 1.0
    area: Area | None = None
    region: Region | None = None
    start: float | None = None
    end: float | None = None
    fallback: bool = False


class FlowSampling(Record):
    """ComfyUI's model_sampling as data: x0 = x - sigma * v and timestep = sigma * multiplier.

    A share u of the schedule before its end, sigma is shift * u / (1 + (shift - 1) * u).
    """

    prediction: Literal["flow"] = "flow"
    multiplier: float = Field(gt=0)
    noise_scale: float = 1.0
    shift: float = Field(default=1.0, gt=0)


class Differential(Record):
    """Differential diffusion: the mask is cut at a threshold that falls with sigma (SPEC.md, run)."""

    strength: float = Field(ge=0)
    sigma_min: float
    sigma_max: float


class Mask(Record):
    """Where the run may paint. `mask` broadcasts to the latent, 1 paints and 0 keeps."""

    mask: Tensor
    differential: Differential | None = None


class Slot(Record):
    """Room in a segment the client owns, where the engine writes the reply's tensor."""

    segment: Identifier
    offset: int = Field(ge=0)
    nbytes: int = Field(ge=0)


class Report(Record):
    """What a run did, for the node's line and the panel. Seconds are the engine's wall time; sizes bytes."""

    path: Literal["whole_loop", "per_step"]
    reason: Text = ""
    model: Text = ""
    family: Text = ""
    dtype: Text = ""
    device: Text = ""
    sampler: Text = ""
    world_size: int = 1
    layout: Text = ""
    steps: int = 0
    forwards: int = 0
    seconds: float = 0.0
    seconds_loading: float = 0.0
    seconds_queued: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0
    peak_bytes: list[int] = Field(default_factory=list)
    resident_bytes: int = 0
    low_bit_layers: dict[str, int] = Field(default_factory=dict)
    splits: int = 0
    compiles: int = 0
    steps_reused: int = 0
    adapters: int = 0
    adapted_weights: int = 0
    unmatched_keys: list[Text] = Field(default_factory=list)
    cache: CacheReport | None = None
    ignored: list[Text] = Field(default_factory=list)
