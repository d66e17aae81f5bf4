"""What a client sends on the work channel."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from .adapters import Adapter
from .base import Digest, Identifier, MaybeDigest, Message, Tensor, Text
from .cache import CacheSettings, Schedule
from .common import Branch, Conditioning, FlowSampling, Mask, ModelRef, ModelSettings, Scalar, Slot
from .guidance import Cfg, Change, Guidance


class Hello(Message):
    """First message of a session: who is there, and which shared-memory host it is on (empty: none)."""

    type: ClassVar[str] = "hello"
    protocol: str = Field(max_length=16)
    client: Text
    version: Text
    token: str = Field(default="", max_length=256)
    host: str = Field(default="", max_length=256)
    capabilities: list[Identifier] = Field(default_factory=list)


class Load(Message):
    """Make a model resident. Answered by `loaded`, after `progress` events."""

    type: ClassVar[str] = "load"
    model: ModelRef
    settings: ModelSettings = ModelSettings()


class PutBlob(Message):
    """Give the engine a tensor under its digest. Answered by `stored`; never queues behind a run."""

    type: ClassVar[str] = "put_blob"
    digest: Digest
    tensor: Tensor


class PutAdapters(Message):
    """Give the engine a set of adapters under its digest. Answered by `stored`; never queues behind a run.

    The set is the adapters of `parts`, sets that the engine holds already, and then `adapters`, in order.
    """

    type: ClassVar[str] = "put_adapters"
    digest: Digest
    parts: list[Digest] = Field(default_factory=list)
    adapters: list[Adapter] = Field(default_factory=list)


class Run(Message):
    """A whole denoise loop. Answered by `step` events and one `result`.

    sigmas [S+1], noise and latent [B, C, ...] are fp32; latent is already in model space.
    The engine loads the model first when it is not resident.
    """

    type: ClassVar[str] = "run"
    model: ModelRef
    settings: ModelSettings = ModelSettings()
    sampling: FlowSampling
    sampler: Identifier
    sampler_options: dict[str, Scalar] = Field(default_factory=dict)
    sigmas: Tensor
    noise: Tensor
    latent: Tensor
    seed: int
    guidance: Guidance = Cfg()
    changes: list[Change] = Field(default_factory=list)
    cfg1_optimization: bool = True
    positive: list[Branch]
    negative: list[Branch] | None = None
    mask: Mask | None = None
    generator: Literal["cpu", "cuda"] = "cpu"
    cache: CacheSettings | None = None
    preview: bool = False
    adapters: MaybeDigest = ""
    reply: Slot | None = None


class Predict(Message):
    """One call of the DiT inside a loop that runs in ComfyUI. Answered by `prediction`.

    x [R, C, ...] in any float dtype, timestep [R] (or [R, T]) fp32; rows are grouped by branch, in the
    order of `branches`. `run` keys whatever the engine remembers between the calls of one sampling,
    and `schedule` says which sampling that is: by it and `sigma` each call has its place.
    """

    type: ClassVar[str] = "predict"
    run: Identifier
    model: ModelRef
    settings: ModelSettings = ModelSettings()
    x: Tensor
    timestep: Tensor
    sigma: float | None = None
    branches: list[Identifier] = Field(default_factory=list)
    conditioning: Conditioning
    schedule: Schedule | None = None
    cache: CacheSettings | None = None
    adapters: MaybeDigest = ""
    reply: Slot | None = None


class CloseRun(Message):
    """The per-step run is over: drop what was remembered for it. Answered by `closed` with its report."""

    type: ClassVar[str] = "close_run"
    run: Identifier


class Bye(Message):
    """The session ends; the engine forgets it. Answered by `closed`."""

    type: ClassVar[str] = "bye"


CLIENT_MESSAGES: tuple[type[Message], ...] = (
    Hello,
    Load,
    PutBlob,
    PutAdapters,
    Run,
    Predict,
    CloseRun,
    Bye,
)
