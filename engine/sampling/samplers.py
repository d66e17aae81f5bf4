"""The samplers the engine knows, by ComfyUI's names; adding one is a file and a line here."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ...protocol.errors import InvalidRequestError, UnsupportedRequestError
from .dpmpp import sample_dpmpp_2m
from .euler import sample_ddim, sample_euler, sample_euler_ancestral
from .heun import sample_heun
from .lcm import sample_lcm
from .res_multistep import sample_res_multistep
from .unipc import LAST_SIGMA, sample_uni_pc, sample_uni_pc_bh2

Option = float | str | None
_SUPPLIED = ("callback", "noise", "flow")


@dataclass(frozen=True)
class Sampler:
    """An algorithm, and how ComfyUI's named sampler treats what surrounds it.

    `last_sigma` replaces a final sigma of 0; `random_inpaint_noise` fills the kept region of an inpaint with
    a second noise; `drops_penultimate` marks samplers whose schedules are made one step longer and then lose
    their last but one sigma.
    """

    function: Callable[..., Tensor]
    last_sigma: float = 0.0
    random_inpaint_noise: bool = False
    drops_penultimate: bool = False

    @property
    def options(self) -> Mapping[str, Option]:
        """The options the algorithm takes, with their defaults."""
        parameters = inspect.signature(self.function).parameters.values()
        keywords = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in _SUPPLIED]
        return {parameter.name: parameter.default for parameter in keywords}

    def ended(self, sigmas: Tensor) -> Tensor:
        """Return `sigmas` with a final 0 replaced by `last_sigma`."""
        if sigmas[-1] != 0:
            return sigmas
        return torch.cat([sigmas[:-1], sigmas.new_tensor([self.last_sigma])])


SAMPLERS: Mapping[str, Sampler] = {
    "euler": Sampler(sample_euler),
    "euler_ancestral": Sampler(sample_euler_ancestral),
    "heun": Sampler(sample_heun),
    "dpmpp_2m": Sampler(sample_dpmpp_2m),
    "res_multistep": Sampler(sample_res_multistep),
    "lcm": Sampler(sample_lcm),
    "ddim": Sampler(sample_ddim, random_inpaint_noise=True),
    "uni_pc": Sampler(sample_uni_pc, last_sigma=LAST_SIGMA, drops_penultimate=True),
    "uni_pc_bh2": Sampler(sample_uni_pc_bh2, last_sigma=LAST_SIGMA, drops_penultimate=True),
}


def find_sampler(name: str, options: Mapping[str, Option]) -> Sampler:
    """Return the sampler called `name`, once every one of `options` is known to be its own and well typed.

    Raises `UnsupportedRequestError` for an unknown sampler or option, `InvalidRequestError` for a value of
    the wrong kind.
    """
    sampler = SAMPLERS.get(name)
    if sampler is None:
        raise UnsupportedRequestError(
            f"The engine has no sampler {name!r}.", hint=f"It has {', '.join(sorted(SAMPLERS))}."
        )
    known = sampler.options
    for option, value in options.items():
        if option not in known:
            takes = ", ".join(known) or "none"
            raise UnsupportedRequestError(
                f"Sampler {name} has no option {option!r}.", hint=f"Options it takes: {takes}."
            )
        _check_kind(name, option, value, known[option])
    return sampler


def _check_kind(name: str, option: str, value: Option, default: Option) -> None:
    if isinstance(default, str):
        fits = isinstance(value, str)
    elif value is None:
        fits = default is None
    else:
        fits = isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)
    if not fits:
        kind = "text" if isinstance(default, str) else "a number"
        raise InvalidRequestError(f"Option {option} of sampler {name} must be {kind}, not {value!r}.")
