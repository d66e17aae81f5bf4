"""ComfyUI's arithmetic: what a patch makes of a weight, in fp32 and in place.

Methods: LoRA (arXiv 2106.09685), DoRA (2402.09353), LoHa, LoKr, GLoRA and OFT as in LyCORIS (2309.14859),
BOFT (2311.06243); scales, signs and orders are those of ComfyUI's results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from ...protocol.errors import InvalidRequestError, UnsupportedRequestError
from .patch import Patch

EPS = torch.finfo(torch.float32).eps


def change(weight: torch.Tensor, patch: Patch) -> None:
    """Apply `patch` to `weight` (fp32, the whole tensor in the file's layout), which it overwrites.

    Raises InvalidRequestError when the patch has other shapes, UnsupportedRequestError when it would change
    the weight's shape.
    """
    part = weight if patch.offset is None else _narrowed(weight, patch)
    check_reshape(patch, part)
    if patch.strength_model != 1.0:
        part *= patch.strength_model
    try:
        if patch.kind == "set":
            part.copy_(patch.tensors["set"])
        elif patch.kind == "diff":
            _add_difference(part, patch)
        else:
            _add_adapter(part, patch)
    except (RuntimeError, IndexError) as error:
        raise misfit(patch, part) from error


def change_all(weight: torch.Tensor, patches: Sequence[Patch]) -> None:
    """Apply `patches` one after the other; arguments and errors as of `change`."""
    for patch in patches:
        change(weight, patch)


def misfit(patch: Patch, part: torch.Tensor) -> InvalidRequestError:
    shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in patch.tensors.items())
    return InvalidRequestError(
        f"Weight {patch.key!r} is {list(part.shape)}, which its {patch.kind} patch does not fit: {shapes}.",
        hint="The LoRA was made for another model.",
    )


def check_reshape(patch: Patch, part: torch.Tensor) -> None:
    """Raises UnsupportedRequestError when `patch` wants the weight padded to another shape."""
    wanted = patch.tensors.get("reshape")
    if wanted is not None and wanted.tolist() != list(part.shape):
        raise UnsupportedRequestError(
            f"Weight {patch.key!r}: this LoRA makes a {wanted.tolist()} of its {list(part.shape)}.",
            hint="A control LoRA makes another model of this one; load the model that has it built in.",
        )


def _narrowed(weight: torch.Tensor, patch: Patch) -> torch.Tensor:
    assert patch.offset is not None
    dim, start, length = patch.offset
    if dim >= weight.ndim or start + length > weight.shape[dim]:
        raise InvalidRequestError(
            f"Weight {patch.key!r} is {list(weight.shape)}; a patch of it is for {length} from {start} of "
            f"dimension {dim}.",
            hint="The LoRA was made for another model.",
        )
    return weight.narrow(dim, start, length)


def _add_difference(part: torch.Tensor, patch: Patch) -> None:
    if patch.tensors["diff"].shape != part.shape:
        raise misfit(patch, part)
    part += patch.strength * _as(part, patch.tensors["diff"])


def _add_adapter(part: torch.Tensor, patch: Patch) -> None:
    tensors = {name: _as(part, tensor) for name, tensor in patch.tensors.items() if name != "reshape"}
    delta = DELTAS[patch.kind](part, tensors, patch).reshape(part.shape)
    scale = scale_of(patch, part)
    if "dora_scale" in tensors:
        _decomposed(part, delta.mul_(scale), tensors["dora_scale"], patch.strength)
    elif patch.kind in {"oft", "boft"}:
        part += patch.strength * delta
    else:
        part += delta.mul_(patch.strength * scale)


def _as(part: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(part.device, part.dtype)


def scale_of(patch: Patch, weight: torch.Tensor) -> float:
    """What the product is multiplied with besides the strength: alpha over the rank, or one.

    The alpha of a rotation is no such factor but a limit; with DoRA ComfyUI takes it for one all the same.
    """
    if patch.kind in {"oft", "boft"}:
        return patch.alpha or 0.0
    rank = _rank(patch, weight)
    return 1.0 if patch.alpha is None or rank is None else patch.alpha / rank


def _rank(patch: Patch, weight: torch.Tensor) -> int | None:
    tensors = patch.tensors
    if patch.kind == "lora":
        return tensors["down"].shape[0]
    if patch.kind == "loha":
        return tensors["w1_b"].shape[0]
    if patch.kind == "lokr":
        halves = [tensors[f"{part}_b"].shape[0] for part in ("w1", "w2") if part not in tensors]
        return halves[-1] if halves else None
    return tensors["a1" if is_old_glora(patch, weight) else "a2"].shape[0]


def _decomposed(weight: torch.Tensor, delta: torch.Tensor, scale: torch.Tensor, strength: float) -> None:
    """DoRA: the direction of the sum, in the lengths that `scale` gives its rows, or its columns.

    Rows are measured before the change, columns after it.
    """
    changed = weight + delta
    if scale.shape[0] == weight.shape[0]:
        lengths = weight.flatten(1).norm(dim=1).reshape(-1, *[1] * (weight.ndim - 1))
    else:
        lengths = changed.transpose(0, 1).flatten(1).norm(dim=1).reshape(1, -1, *[1] * (weight.ndim - 2))
    changed *= scale / (lengths + EPS)
    if strength == 1.0:
        weight.copy_(changed)
    else:
        weight += strength * (changed - weight)


Tensors = Mapping[str, torch.Tensor]


def _lora(_weight: torch.Tensor, tensors: Tensors, _patch: Patch) -> torch.Tensor:
    down = tensors["down"]
    if "mid" in tensors:
        down = torch.einsum("s i, r s k l -> r i k l", down.flatten(1), tensors["mid"])
    return tensors["up"].flatten(1) @ down.flatten(1)


def _loha(_weight: torch.Tensor, tensors: Tensors, _patch: Patch) -> torch.Tensor:
    return half(tensors, "w1", "t1") * half(tensors, "w2", "t2")


def half(tensors: Tensors, part: str, core: str = "") -> torch.Tensor:
    """One of the two matrices of a LoHa or a LoKr: itself, its two factors' product, or that over a core."""
    if part in tensors:
        return tensors[part]
    if core in tensors:
        return torch.einsum(
            "i j k l, j r, i p -> p r k l", tensors[core], tensors[f"{part}_b"], tensors[f"{part}_a"]
        )
    return tensors[f"{part}_a"] @ tensors[f"{part}_b"]


def _lokr(_weight: torch.Tensor, tensors: Tensors, _patch: Patch) -> torch.Tensor:
    left, right = half(tensors, "w1"), half(tensors, "w2", "t2")
    return torch.kron(left[:, :, None, None] if right.ndim == 4 else left, right)


def _glora(weight: torch.Tensor, tensors: Tensors, patch: Patch) -> torch.Tensor:
    a1, a2, b1, b2 = (tensors[name].flatten(1) for name in ("a1", "a2", "b1", "b2"))
    if is_old_glora(patch, weight):
        return b2 @ b1 + (weight.flatten(1) @ a2 @ a1)
    flat = weight.flatten(2) if weight.ndim > 2 else weight[:, :, None]
    moved = torch.einsum("o i k, i j -> o j k", torch.einsum("o i k, i j -> o j k", flat, a1), a2)
    return moved.reshape(weight.shape) + (b1 @ b2).reshape(weight.shape)


def is_old_glora(patch: Patch, weight: torch.Tensor) -> bool:
    """Whether the factors stand in LyCORIS' first order; where both would do, if the weight is square."""
    a1, a2, b1, b2 = (patch.tensors[name].shape for name in ("a1", "a2", "b1", "b2"))
    old = b2[1] == b1[0] == a1[0] == a2[1]
    new = b2[0] == b1[1] == a1[1] == a2[0]
    if not new or not old:
        return old
    return a2[0] == weight.shape[0] == weight.shape[1]


def rotations(blocks: torch.Tensor, limit: float) -> torch.Tensor:
    """Cayley's orthogonal matrices of `blocks` (...,b,b), their skew parts' norm held to `limit` (0: not)."""
    skew = blocks - blocks.transpose(-1, -2)
    norm = torch.linalg.vector_norm(skew) + 1e-8
    if limit > 0 and norm > limit:
        skew = skew * limit / norm
    one = torch.eye(blocks.shape[-1], device=blocks.device, dtype=blocks.dtype)
    turns: torch.Tensor = (one + skew) @ torch.linalg.inv((one - skew).float()).to(blocks.dtype)
    return turns


def _oft(weight: torch.Tensor, tensors: Tensors, patch: Patch) -> torch.Tensor:
    blocks = tensors["blocks"]
    one = torch.eye(blocks.shape[-1], device=weight.device)
    # ComfyUI multiplies with the strength here and once more when it adds.
    turn = (rotations(blocks, patch.alpha or 0.0) - one) * patch.strength
    rows = weight.reshape(len(blocks), -1, weight[0].numel())
    return torch.einsum("k n m, k n c -> k m c", turn, rows)


def _boft(weight: torch.Tensor, tensors: Tensors, patch: Patch) -> torch.Tensor:
    if patch.alpha is None:
        raise UnsupportedRequestError(
            f"Weight {patch.key!r}: a BOFT patch without alpha, which ComfyUI cannot apply.",
            hint="Save the LoRA again with its alpha.",
        )
    turned = butterfly(weight.flatten(1).T, rotations(tensors["blocks"], patch.alpha), patch.strength).T
    turned = turned.reshape(weight.shape)
    return (turned * tensors["rescale"] if "rescale" in tensors else turned) - weight


def butterfly(rows: torch.Tensor, turns: torch.Tensor, strength: float) -> torch.Tensor:
    """`rows` (...,n) turned by the stages `turns` (m,n/b,b,b), each of which mixes values further apart."""
    size = turns.shape[-1]
    one = torch.eye(size, device=turns.device, dtype=turns.dtype)
    for stage, turn in enumerate(turns):
        apart = 2**stage * (size // 2)
        mixed = turn if strength == 1 else turn * strength + (1 - strength) * one
        far = rows.reshape(*rows.shape[:-1], -1, 2, apart).transpose(-2, -1)
        near = torch.einsum("b i j, ... b j -> ... b i", mixed, far.reshape(*rows.shape[:-1], -1, size))
        rows = near.reshape(*rows.shape[:-1], -1, apart, 2).transpose(-2, -1).reshape(rows.shape)
    return rows


DELTAS: Mapping[str, Callable[[torch.Tensor, Tensors, Patch], torch.Tensor]] = {
    "lora": _lora,
    "loha": _loha,
    "lokr": _lokr,
    "glora": _glora,
    "oft": _oft,
    "boft": _boft,
}
