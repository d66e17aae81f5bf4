"""One rank of a process group: half of the tokens of a network that mixes none, under a step cache.

Run as `halves.py RANK WORLD FILE REDUCED`; it writes the steps that were reused as one line of JSON.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

from outboard.engine.cache.controller import StepCache
from outboard.engine.cache.patterns import Pattern
from outboard.engine.cache.seam import Site, attach
from outboard.engine.cache.settings import Settings

TOKENS, WIDTH, STEPS, BLOCKS = 8, 4, 10, 3
SETTINGS = Settings(Fn_compute_blocks=1, max_warmup_steps=2, residual_diff_threshold=0.12)


class Block(nn.Module):
    """Adds to each token what depends on it alone."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        return hidden_states + 0.5 * hidden_states


def added_up(tensor: Tensor) -> Tensor:
    dist.all_reduce(tensor)
    return tensor


def decided(rank: int, world: int, *, reduced: bool) -> tuple[list[bool], list[float]]:
    """By step, whether it was reused, and the distances. The first half of the tokens changes faster."""
    blocks = [Block() for _ in range(BLOCKS)]
    pattern = Pattern()
    sites = [
        Site(n, block, pattern, block.forward, None, ("hidden_states",)) for n, block in enumerate(blocks)
    ]
    cache = StepCache(sites, SETTINGS, reduce=added_up if reduced else None)
    for site in sites:
        attach(site, cache.answer)
    base = torch.randn(1, TOKENS, WIDTH, generator=torch.Generator().manual_seed(0))
    speed = torch.tensor([0.15] * (TOKENS // 2) + [0.02] * (TOKENS // 2))[None, :, None]
    with cache.running("run", total=STEPS) as tally:
        for step in range(STEPS):
            tokens = (base * (1 + speed * step)).chunk(world, dim=1)[rank]
            with cache.step(run="run", rows=[("p", 0)], index=step, total=STEPS):
                for block in blocks:
                    tokens = block(tokens)
        return [reused for _, reused in tally.decisions["p", 0]], [
            distance for _, distance in tally.distances
        ]


def main() -> None:
    rank, world, file, reduced = sys.argv[1:]
    dist.init_process_group(
        "gloo",
        init_method=f"file://{file}",
        rank=int(rank),
        world_size=int(world),
        timeout=timedelta(seconds=60),
    )
    try:
        sys.stdout.write(json.dumps(decided(int(rank), int(world), reduced=reduced == "yes")) + "\n")
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
