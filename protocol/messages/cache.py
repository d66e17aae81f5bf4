"""The step cache in messages: what a run asks of it, and what it did."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .base import Record, Tensor, Text

CachePreset = Literal["off", "quality", "balanced", "fast", "custom"]
CacheValue = bool | int | float | str | list[Annotated[int, Field(ge=0)]] | None


class CacheSettings(Record):
    """How steps are reused: single `values`, by name, on top of a preset; `custom` is cache-dit's defaults.

    force: also where the sampler speaks against it.
    """

    preset: CachePreset = "balanced"
    values: dict[str, CacheValue] = Field(default_factory=dict)
    force: bool = False


class Schedule(Record):
    """The loop that a prediction is part of: its sampler and its sigmas [S+1], fp32.

    objection: why the same branch and row may be another picture from call to call; empty: it is not.
    """

    sampler: Text
    sampler_options: dict[str, bool | int | float | str | None] = Field(default_factory=dict)
    sigmas: Tensor
    objection: Text = ""


class Residual(Record):
    """How far a step was from the last computed one: relative L1, the largest of its rows."""

    step: int
    distance: float


class CacheReport(Record):
    """What the step cache did in a run. `computed` and `reused` count rows of forwards, one entry a step."""

    preset: Text = ""
    values: dict[str, CacheValue] = Field(default_factory=dict)
    steps: int = 0
    computed: list[int] = Field(default_factory=list)
    reused: list[int] = Field(default_factory=list)
    hit_rate: float = 0.0
    hit_rates: dict[str, float] = Field(default_factory=dict)
    blocks_computed: int = 0
    blocks_total: int = 0
    saving: float = 0.0
    saving_predicted: float = 0.0
    residuals: list[Residual] = Field(default_factory=list)
    peak_bytes: int = 0
    notes: list[Text] = Field(default_factory=list)
