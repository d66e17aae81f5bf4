"""The samplers the engine knows, by ComfyUI's names; adding one is a file and a line here."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ...protocol.errors import InvalidRequestError, UnsupportedRequestError
from .brownian import BrownianNoise
from .ddpm import sample_ddpm
from .deis import sample_deis
from .dpm_2 import sample_dpm_2, sample_dpm_2_ancestral
from .dpm_adaptive import sample_dpm_adaptive
from .dpm_fast import sample_dpm_fast
from .dpmpp import sample_dpmpp_2m, sample_dpmpp_2s_ancestral
from .dpmpp_multistep_sde import sample_dpmpp_2m_sde, sample_dpmpp_2m_sde_heun, sample_dpmpp_3m_sde
from .dpmpp_sde import sample_dpmpp_sde
from .er_sde import sample_er_sde
from .euler import sample_ddim, sample_euler, sample_euler_ancestral
from .gradient_estimation import sample_gradient_estimation
from .heun import sample_heun
from .heunpp import sample_heunpp2
from .ipndm import sample_ipndm, sample_ipndm_v
from .lcm import sample_lcm
from .lms import sample_lms
from .noise import NoiseSource
from .res_multistep import sample_res_multistep, sample_res_multistep_ancestral
from .sa_solver import sample_sa_solver, sample_sa_solver_pece
from .seeds import sample_exp_heun_2_x0, sample_exp_heun_2_x0_sde, sample_seeds_2, sample_seeds_3
from .unipc import LAST_SIGMA, sample_uni_pc, sample_uni_pc_bh2

Option = bool | int | float | str | None
_SUPPLIED = ("callback", "noise", "flow")


@dataclass(frozen=True)
class Sampler:
    """An algorithm, and how ComfyUI's named sampler treats what surrounds it.

    `last_sigma` replaces a final sigma of 0; `random_inpaint_noise` fills the kept region of an inpaint with
    a second noise; `drops_penultimate` marks samplers whose schedules are made one step longer and then lose
    their last but one sigma; `path` marks samplers whose noise is that of a Brownian path, drawn on the "cpu"
    or on the kind of "device" ComfyUI samples on.
    """

    function: Callable[..., Tensor]
    last_sigma: float = 0.0
    random_inpaint_noise: bool = False
    drops_penultimate: bool = False
    path: Literal["", "cpu", "device"] = ""

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

    def noise_source(self, seed: int, like: Tensor, sigmas: Tensor, device: str) -> NoiseSource:
        """Return what the algorithm draws its noise from; see `NoiseSource` and `BrownianNoise`."""
        if self.path:
            return BrownianNoise(seed, like, sigmas, "cpu" if self.path == "cpu" else device)
        return NoiseSource(seed, like, device)


SAMPLERS: Mapping[str, Sampler] = {
    "euler": Sampler(sample_euler),
    "euler_ancestral": Sampler(sample_euler_ancestral),
    "heun": Sampler(sample_heun),
    "heunpp2": Sampler(sample_heunpp2),
    "exp_heun_2_x0": Sampler(sample_exp_heun_2_x0),
    "exp_heun_2_x0_sde": Sampler(sample_exp_heun_2_x0_sde),
    "dpm_2": Sampler(sample_dpm_2, drops_penultimate=True),
    "dpm_2_ancestral": Sampler(sample_dpm_2_ancestral, drops_penultimate=True),
    "lms": Sampler(sample_lms),
    "dpm_fast": Sampler(sample_dpm_fast),
    "dpm_adaptive": Sampler(sample_dpm_adaptive),
    "dpmpp_2s_ancestral": Sampler(sample_dpmpp_2s_ancestral),
    "dpmpp_sde": Sampler(sample_dpmpp_sde, path="cpu"),
    "dpmpp_sde_gpu": Sampler(sample_dpmpp_sde, path="device"),
    "dpmpp_2m": Sampler(sample_dpmpp_2m),
    "dpmpp_2m_sde": Sampler(sample_dpmpp_2m_sde, path="cpu"),
    "dpmpp_2m_sde_gpu": Sampler(sample_dpmpp_2m_sde, path="device"),
    "dpmpp_2m_sde_heun": Sampler(sample_dpmpp_2m_sde_heun, path="cpu"),
    "dpmpp_2m_sde_heun_gpu": Sampler(sample_dpmpp_2m_sde_heun, path="device"),
    "dpmpp_3m_sde": Sampler(sample_dpmpp_3m_sde, path="cpu"),
    "dpmpp_3m_sde_gpu": Sampler(sample_dpmpp_3m_sde, path="device"),
    "ddpm": Sampler(sample_ddpm),
    "lcm": Sampler(sample_lcm),
    "ipndm": Sampler(sample_ipndm),
    "ipndm_v": Sampler(sample_ipndm_v),
    "deis": Sampler(sample_deis),
    "res_multistep": Sampler(sample_res_multistep),
    "res_multistep_ancestral": Sampler(sample_res_multistep_ancestral),
    "gradient_estimation": Sampler(sample_gradient_estimation),
    "er_sde": Sampler(sample_er_sde),
    "seeds_2": Sampler(sample_seeds_2),
    "seeds_3": Sampler(sample_seeds_3),
    "sa_solver": Sampler(sample_sa_solver),
    "sa_solver_pece": Sampler(sample_sa_solver_pece),
    "ddim": Sampler(sample_ddim, random_inpaint_noise=True),
    "uni_pc": Sampler(sample_uni_pc, last_sigma=LAST_SIGMA, drops_penultimate=True),
    "uni_pc_bh2": Sampler(sample_uni_pc_bh2, last_sigma=LAST_SIGMA, drops_penultimate=True),
}
"""In ComfyUI's order. Its `_cfg_pp` samplers are not here: they look at the unguided prediction."""


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
    kind, fits = _kind(default)
    if not (default is None if value is None else fits(value)):
        raise InvalidRequestError(f"Option {option} of sampler {name} must be {kind}, not {value!r}.")


def _kind(default: Option) -> tuple[str, Callable[[Option], bool]]:
    """Return what a value in the place of `default` must be, in words and as a check."""
    if isinstance(default, str):
        return "text", lambda value: isinstance(value, str)
    if isinstance(default, bool):
        return "true or false", lambda value: isinstance(value, bool)
    if isinstance(default, int):
        return "a whole number", lambda value: isinstance(value, int) and not isinstance(value, bool)
    return "a number", _is_number


def _is_number(value: Option) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)
