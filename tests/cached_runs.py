"""Cached runs of the digits model as a rank makes them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

import harness
from outboard.engine.cache.config import CacheConfig
from outboard.engine.cache.controller import installed
from outboard.engine.models.model import Model
from outboard.engine.rank.blobs import BlobStore
from outboard.engine.rank.peers import Alone
from outboard.engine.rank.run import Outcome, loop_of, prepare_loop
from outboard.engine.rank.step_cache import Caches
from outboard.engine.rank.steps import Account, predict, prepare_call
from outboard.protocol.errors import CancelledError
from outboard.protocol.messages.cache import CacheReport, CacheSettings
from outboard.protocol.messages.client import Predict, Run

STEPS = 12
BALANCED = CacheSettings(preset="balanced")
THRESHOLD = CacheSettings(
    preset="custom",
    values={"Fn_compute_blocks": 1, "max_warmup_steps": 3, "residual_diff_threshold": 0.3},
)


def wrapped(model: Model) -> bool:
    """Whether anything is on any of the model's modules that a fresh one does not have."""
    return installed(model) is not None or any("forward" in vars(module) for module in model.module.modules())


def request(settings: CacheSettings | None, steps: int = STEPS, **changes: Any) -> Run:
    sides = {"cfg": 3.0, "negative": [harness.branch(None)], **changes}
    return harness.run(steps, cache=settings, **sides)


def sampled(
    run: Run, model: Model, caches: Caches | None = None, stop_at: int = -1, key: str = "run"
) -> Outcome:
    """`run` as the worker makes it; CancelledError before the forward number `stop_at`."""
    calls = iter(range(10_000))

    def check() -> None:
        if next(calls) == stop_at:
            raise CancelledError("stop")

    caches = caches or Caches(CacheConfig())
    cached = caches.open(run.cache, model, run.model.name, ("session", key), loop_of(run))
    try:
        loop = prepare_loop(run, model, BlobStore(0), check=check, tell=lambda _: None, cached=cached)
        return loop.sample(Alone())
    finally:
        cached.forget()


def called(request: Predict, model: Model, account: Account) -> tuple[Tensor, float]:
    """A call as the worker makes it."""
    return predict(prepare_call(request, model, BlobStore(0), account), model, account)


def report(outcome: Outcome) -> CacheReport:
    assert outcome.cache is not None
    return outcome.cache
