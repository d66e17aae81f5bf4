"""Rotary position embedding (https://arxiv.org/abs/2104.09864) from ids, of any size: no table to outgrow."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def turns(ids: torch.Tensor, axes: Sequence[int], theta: float) -> torch.Tensor:
    """Ids (N,A), one axis of `axes` channels each, to complex numbers of modulus 1 (N, sum(axes)/2)."""
    angles = torch.cat([_angles(ids[:, axis], width, theta) for axis, width in enumerate(axes)], dim=1)
    return torch.polar(torch.ones_like(angles), angles).to(torch.complex64).to(ids.device)


def waves(ids: torch.Tensor, axes: Sequence[int], theta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The same as cosines and sines (N, sum(axes)), each twice in a row."""
    turned = turns(ids, axes, theta).repeat_interleave(2, dim=1)
    return turned.real, turned.imag


def rotate(x: torch.Tensor, turned: torch.Tensor) -> torch.Tensor:
    """Queries or keys (B,N,heads,D) by complex (N,D/2), pairs of channels being numbers; fp32 within."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turned[None, :, None]).flatten(3).type_as(x)


def _angles(position: torch.Tensor, width: int, theta: float) -> torch.Tensor:
    # In fp64, on the host where the device has none: in fp32 the angle of a far token is 1e-4 and more off.
    device = torch.device("cpu") if position.device.type == "mps" else position.device
    exponent = torch.arange(0, width, 2, dtype=torch.float64, device=device) / width
    return torch.outer(position.to(device, torch.float64), 1.0 / theta**exponent)
