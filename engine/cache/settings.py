"""What a user may ask of the step cache, in cache-dit's words and with their meaning.

DBCache: https://github.com/vipshop/cache-dit (Apache-2.0), docs/DBCache.md; TaylorSeer: arXiv:2503.06923.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ...protocol.errors import InvalidRequestError

Policy = Literal["dynamic", "static"]
POLICIES: tuple[Policy, ...] = ("dynamic", "static")
ScmPreset = Literal["none", "slow", "medium", "fast", "ultra"]
SCM_PRESETS: tuple[ScmPreset, ...] = ("none", "slow", "medium", "fast", "ultra")
ORDERS = (0, 1, 2)
UNLIMITED = -1


@dataclass(frozen=True)
class Settings:
    """One way to cache; the defaults are cache-dit's. What contradicts itself raises InvalidRequestError.

    Fn_compute_blocks, Bn_compute_blocks    first and last blocks that run at every step; what the first do
                                            to the image tokens tells how much a step differs
    residual_diff_threshold                 relative L1 distance to the last computed step below which one is
                                            skipped; 1 or more always skips, 0 never
    max_warmup_steps, warmup_interval       of the first steps, every interval-th is computed
    max_cached_steps, max_continuous_cached_steps               skipped steps in all, and in a row; -1: any
    max_accumulated_residual_diff_threshold skips no more once the distances measured add up to it
    taylorseer_order                        0 repeats what the blocks last added; 1 and 2 extrapolate it
    enable_encoder_taylorseer               whether the text tokens are extrapolated too
    steps_computation_mask                  1: this step is computed; one entry for each step
    scm_preset                              or such a mask by name, made for any number of steps
    scm_compute_bins, scm_cache_bins        or as lengths of computed and skipped stretches, in turn
    steps_computation_policy                what 0 in the mask means: "static" skips, "dynamic" compares
    skip_fn_on_static                       a statically skipped step skips the first blocks as well
    """

    Fn_compute_blocks: int = 8
    Bn_compute_blocks: int = 0
    residual_diff_threshold: float = 0.08
    max_warmup_steps: int = 8
    warmup_interval: int = 1
    max_cached_steps: int = UNLIMITED
    max_continuous_cached_steps: int = UNLIMITED
    max_accumulated_residual_diff_threshold: float | None = None
    taylorseer_order: int = 0
    enable_encoder_taylorseer: bool = True
    steps_computation_mask: tuple[int, ...] = ()
    scm_preset: ScmPreset = "none"
    scm_compute_bins: tuple[int, ...] = ()
    scm_cache_bins: tuple[int, ...] = ()
    steps_computation_policy: Policy = "dynamic"
    skip_fn_on_static: bool = False

    def __post_init__(self) -> None:
        _require(
            self.Fn_compute_blocks >= 1, f"Fn_compute_blocks is {self.Fn_compute_blocks}; at least 1 runs"
        )
        _require(self.Bn_compute_blocks >= 0, f"Bn_compute_blocks is {self.Bn_compute_blocks}, below 0")
        _require(self.max_warmup_steps >= 0, f"max_warmup_steps is {self.max_warmup_steps}, below 0")
        _require(self.warmup_interval >= 1, f"warmup_interval is {self.warmup_interval}, below 1")
        for name in ("max_cached_steps", "max_continuous_cached_steps"):
            _require(
                getattr(self, name) >= UNLIMITED, f"{name} is {getattr(self, name)}; -1 means any number"
            )
        self._check_thresholds()
        _require(
            self.taylorseer_order in ORDERS, f"taylorseer_order is {self.taylorseer_order}, not 0, 1 or 2"
        )
        self._check_mask()

    @property
    def masked(self) -> bool:
        """Whether some steps are fixed to be computed."""
        return bool(self.steps_computation_mask or self.scm_compute_bins) or self.scm_preset != "none"

    @property
    def static(self) -> bool:
        """Whether the mask alone decides, so that no step has to be looked at."""
        return self.masked and self.steps_computation_policy == "static"

    def _check_thresholds(self) -> None:
        threshold, total = self.residual_diff_threshold, self.max_accumulated_residual_diff_threshold
        _require(
            math.isfinite(threshold) and threshold >= 0, f"residual_diff_threshold is {threshold}, below 0"
        )
        _require(
            total is None or (math.isfinite(total) and total > 0),
            f"max_accumulated_residual_diff_threshold is {total}, not above 0",
        )

    def _check_mask(self) -> None:
        named = {
            "steps_computation_mask": bool(self.steps_computation_mask),
            "scm_preset": self.scm_preset != "none",
            "scm_compute_bins": bool(self.scm_compute_bins or self.scm_cache_bins),
        }
        given = [name for name, present in named.items() if present]
        _require(len(given) <= 1, f"{' and '.join(given)} name more than one mask")
        _require(self.scm_preset in SCM_PRESETS, f"scm_preset is {self.scm_preset!r}, not in {SCM_PRESETS}")
        policy = self.steps_computation_policy
        _require(policy in POLICIES, f"steps_computation_policy is {policy!r}, not dynamic or static")
        _require(policy == "dynamic" or self.masked, "the policy is static, but there is no mask to follow")
        _require(not self.skip_fn_on_static or self.static, "skip_fn_on_static needs a static mask")
        _check_entries(self.steps_computation_mask, policy)
        _check_bins(self.scm_compute_bins, self.scm_cache_bins)


def _check_entries(mask: Sequence[int], policy: Policy) -> None:
    _require(set(mask) <= {0, 1}, "a steps_computation_mask holds 1 (compute) and 0 only")
    _require(not mask or policy == "dynamic" or mask[0] == 1, "a static mask must compute the first step")


def _check_bins(compute: Sequence[int], cache: Sequence[int]) -> None:
    _require(min((*compute, *cache), default=1) >= 1, "a bin is shorter than one step")
    _require(
        len(compute) - len(cache) in (0, 1),
        f"{len(compute)} compute bins and {len(cache)} cache bins do not take turns, compute first",
    )


def _require(holds: bool, complaint: str) -> None:
    if not holds:
        raise InvalidRequestError(f"Step cache: {complaint}.", hint="Correct it, or take a preset.")
