"""What must be said of a network to share it out: where its tokens are cut, and how its weights are.

Parts are named by regular expressions over the names of a network's modules; each must match.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn

from ...protocol.errors import InternalError

LAST = ".LAST"
Packing = Callable[[nn.Linear], Sequence[int]]


@dataclass(frozen=True)
class Cut:
    """Cut an input of `part` by name, or its output if `argument` is empty, along `dim`.

    A tuple or list is cut item by item, or in one `item` only; what has no such dimension is left whole.
    """

    part: str
    argument: str
    stream: str
    dim: int
    item: int | None = None


@dataclass(frozen=True)
class Join:
    """Put the output of `part` together again along `dim`."""

    part: str
    stream: str
    dim: int = 1


@dataclass(frozen=True)
class Mix:
    """Attention in `part` is among the tokens of `streams`, in the order in which the network has them.

    `word_mask` names an input that masks the first stream alone (B,L): the network would complete it by the
    length of the others, of which it sees a piece. `optional`: not every network of the class has the part.
    """

    part: str
    streams: tuple[str, ...]
    word_mask: str = ""
    optional: bool = False


@dataclass(frozen=True)
class SequencePlan:
    """`least`: tokens that each rank needs of each stream."""

    cuts: Sequence[Cut]
    mixes: Sequence[Mix]
    joins: Sequence[Join]
    least: int = 0


@dataclass(frozen=True)
class TensorPlan:
    """Linears cut by rows and by columns, in one block or in those that a packing tells; and what goes along.

    norms      RMS norms over all heads
    counted    attentions that count their heads
    rotary     a part whose outputs have the channels of all heads in their last dimension
    """

    columns: Mapping[str, Packing | None]
    rows: Mapping[str, Packing | None]
    norms: str = ""
    counted: str = ""
    rotary: str = ""


@dataclass(frozen=True)
class Plan:
    """How one network class is shared out; `heads` is the key of its config that counts them."""

    sequence: SequencePlan
    tensor: TensorPlan
    heads: str = field(default="num_attention_heads")


def parts(module: nn.Module, pattern: str, optional: bool = False) -> Iterator[tuple[str, nn.Module]]:
    """Modules whose whole name matches; "" is the network, and `.LAST` the last of a list.

    Raises InternalError when there is none, unless `optional`.
    """
    whole = pattern
    if pattern.endswith(LAST):
        blocks = module.get_submodule(pattern.removesuffix(LAST))
        whole = re.escape(f"{pattern.removesuffix(LAST)}.{len(list(blocks.children())) - 1}")
    found = [(name, part) for name, part in module.named_modules() if re.fullmatch(whole, name)]
    if not found and not optional:
        raise InternalError(
            f"{type(module).__name__} has no part {pattern!r}.",
            hint="Install the diffusers this engine names.",
        )
    yield from found


def halves(linear: nn.Linear) -> Sequence[int]:
    """A gate and what it gates."""
    return [linear.out_features // 2] * 2


def attention_and_gated(linear: nn.Linear) -> Sequence[int]:
    """Queries, keys, values, and the two halves of a gated layer."""
    width = linear.in_features
    half = (linear.out_features - 3 * width) // 2
    return [width, width, width, half, half]


def attention_then_rest(linear: nn.Linear) -> Sequence[int]:
    """Inputs from attention, as wide as the output, then those from the layer beside it."""
    return [linear.out_features, linear.in_features - linear.out_features]
