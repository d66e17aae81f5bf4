"""What the engine answers on the work channel. Exactly one terminal message ends each request."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from .base import Digest, Identifier, Message, Record, Tensor, Text
from .common import Report
from .guidance import Momentum


class Limits(Record):
    """Sizes the engine enforces, in bytes."""

    header: int
    tensor: int
    message: int
    blobs: int


class Welcome(Message):
    """The session is open. `host` equal to the client's own means shared memory works between them."""

    type: ClassVar[str] = "welcome"
    terminal: ClassVar[bool] = True
    protocol: str = Field(max_length=16)
    version: Text
    engine: Identifier
    session: Identifier
    host: str = Field(default="", max_length=256)
    device: Text = ""
    world_size: int = 1
    samplers: list[Identifier] = Field(default_factory=list)
    families: list[Identifier] = Field(default_factory=list)
    capabilities: list[Identifier] = Field(default_factory=list)
    limits: Limits


class Progress(Message):
    """What goes on before the first step: waiting in the queue, or loading `done` of `total` bytes."""

    type: ClassVar[str] = "progress"
    phase: Literal["queued", "loading"]
    done: int = 0
    total: int = 0
    text: Text = ""


class Loaded(Message):
    """The model is resident."""

    type: ClassVar[str] = "loaded"
    terminal: ClassVar[bool] = True
    family: Text
    dtype: Text
    nbytes: int
    seconds: float


class Stored(Message):
    """The blob is held until the engine's blob budget needs its room."""

    type: ClassVar[str] = "stored"
    terminal: ClassVar[bool] = True
    digest: Digest


class Step(Message):
    """One sampler step is done. `x0` is the denoised estimate in model space, if previews were asked for."""

    type: ClassVar[str] = "step"
    index: int
    total: int
    sigma: float
    x0: Tensor | None = None


class Result(Message):
    """The run's latent, fp32, in model space, what the run did, and what its `apg` changes remember."""

    type: ClassVar[str] = "result"
    terminal: ClassVar[bool] = True
    latent: Tensor
    report: Report
    momenta: list[Momentum] = Field(default_factory=list)


class Prediction(Message):
    """The DiT's raw output for one `predict`, in the dtype the model computed in."""

    type: ClassVar[str] = "prediction"
    terminal: ClassVar[bool] = True
    v: Tensor
    seconds: float


class Closed(Message):
    """A run or a session has ended; `report` is set for a run that made at least one prediction."""

    type: ClassVar[str] = "closed"
    terminal: ClassVar[bool] = True
    report: Report | None = None


class Error(Message):
    """The request failed. `code` is one of protocol/errors.py; `hint` says what to do about it."""

    type: ClassVar[str] = "error"
    terminal: ClassVar[bool] = True
    code: Identifier
    message: Text
    hint: Text = ""
    details: dict[str, Text] = Field(default_factory=dict)


ENGINE_MESSAGES: tuple[type[Message], ...] = (
    Welcome,
    Progress,
    Loaded,
    Stored,
    Step,
    Result,
    Prediction,
    Closed,
    Error,
)
