"""Classifier-free guidance: which conditionings share a model call, and how their predictions combine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...protocol.errors import InvalidRequestError
from .conditioning import Conditioning, join, joinable, repeat_rows

Forward = Callable[[Tensor, Tensor, Conditioning], Tensor]
"""`forward(x[N, C, ...], sigma[N], conditioning) -> x0[N, C, ...]`: one call of the network."""

POSITIVE, NEGATIVE = 0, 1


@dataclass(frozen=True, eq=False)
class Call:
    """One forward of a step: whose rows it carries, branch by branch, and their joined conditioning."""

    branches: tuple[int, ...]
    conditioning: Conditioning


def plan_calls(
    positive: Conditioning,
    negative: Conditioning | None,
    *,
    cfg: float,
    rows: int,
    disable_cfg1_optimization: bool = False,
    batched: bool = True,
) -> tuple[Call, ...]:
    """Return the forwards every step takes for a latent of `rows` rows, in ComfyUI's order.

    At cfg 1 only the positive runs, unless `disable_cfg1_optimization`. Otherwise the two share a call,
    negative rows first, when they can be joined; when they cannot, the positive goes first; when they could
    but `batched` is off, because memory is short, the negative does.
    Raises `InvalidRequestError` when guidance needs a negative and there is none.
    """
    cond = repeat_rows(positive, rows)
    if math.isclose(cfg, 1.0) and not (disable_cfg1_optimization and negative is not None):
        return (Call((POSITIVE,), cond),)
    if negative is None:
        raise InvalidRequestError(
            f"A cfg of {cfg:g} needs a negative conditioning, and the request has none.",
            hint="Connect a negative conditioning, or set cfg to 1.",
        )
    uncond = repeat_rows(negative, rows)
    if not joinable(uncond, cond):
        return Call((POSITIVE,), cond), Call((NEGATIVE,), uncond)
    if not batched:
        return Call((NEGATIVE,), uncond), Call((POSITIVE,), cond)
    return (Call((NEGATIVE, POSITIVE), join(uncond, cond)),)


class CfgDenoiser:
    """A denoiser x0 = negative + (positive - negative) * cfg (Ho & Salimans 2022, arXiv:2207.12598).

    `forwards` counts the network calls made so far.
    """

    def __init__(self, forward: Forward, calls: Sequence[Call], cfg: float) -> None:
        self._forward = forward
        self._calls = calls
        self._cfg = cfg
        self.forwards = 0

    def __call__(self, x: Tensor, sigma: Tensor) -> Tensor:
        """Return the guided x0 of `x` [B, C, ...] at `sigma` [B]."""
        predicted: dict[int, Tensor] = {}
        for call in self._calls:
            predicted.update(self._run(call, x, sigma))
        cond = predicted[POSITIVE]
        if NEGATIVE not in predicted:
            return cond
        return predicted[NEGATIVE] + (cond - predicted[NEGATIVE]) * self._cfg

    def _run(self, call: Call, x: Tensor, sigma: Tensor) -> dict[int, Tensor]:
        copies = len(call.branches)
        x0 = self._forward(torch.cat([x] * copies), torch.cat([sigma] * copies), call.conditioning)
        self.forwards += 1
        return dict(zip(call.branches, x0.chunk(copies), strict=True))


def cfg_denoiser(
    forward: Forward,
    positive: Conditioning,
    negative: Conditioning | None,
    *,
    cfg: float,
    rows: int,
    disable_cfg1_optimization: bool = False,
    batched: bool = True,
) -> CfgDenoiser:
    """Return the guided denoiser of one run; see `plan_calls` for the arguments and errors."""
    calls = plan_calls(
        positive,
        negative,
        cfg=cfg,
        rows=rows,
        disable_cfg1_optimization=disable_cfg1_optimization,
        batched=batched,
    )
    return CfgDenoiser(forward, calls, cfg)
