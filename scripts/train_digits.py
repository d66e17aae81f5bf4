"""Train the demo's digits model, its prompts and its judge, and write them where the package ships them.

Flow matching (Lipman et al. 2023): x_t = (1 - t) x0 + t noise, v = noise - x0, with the class dropped
one time in ten for classifier-free guidance (Ho & Salimans 2022). One seed and one thread, so that the
same command gives the same weights. The model is written every few minutes, as it then is.
"""

from __future__ import annotations

import argparse
import copy
import logging
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from outboard.engine.demo import assets, judge
from outboard.engine.demo.digits import encode, to_model_space
from outboard.engine.demo.handwriting import Handwriting, augment, real_digits, typical

SEED = 20
CONTEXT_TOKENS, CONTEXT_DIM, POOLED_DIM = 4, 64, 32
MODEL = {
    "patch_size": 1, "in_channels": 64, "num_layers": 1, "num_single_layers": 2,
    "attention_head_dim": 128, "num_attention_heads": 2, "joint_attention_dim": CONTEXT_DIM,
    "pooled_projection_dim": POOLED_DIM, "guidance_embeds": False, "axes_dims_rope": (16, 56, 56),
}  # fmt: skip
STEPS, BATCH, PEAK_RATE, WARMUP, EMA_DECAY = 2000, 64, 1e-3, 100, 0.997
TYPICAL_SHARE, AUGMENTATION, DROPPED_SHARE = 0.5, 0.4, 0.1
TIME_SHIFT = 3.0
"""What a digit will be is settled at times of 0.6 to 0.98, so most of the training happens there."""
REPORT_EVERY = 200
JUDGE_STEPS, JUDGE_BATCH = 2500, 96

Tensors = dict[str, Tensor]
log = logging.getLogger("train_digits")


def prompt_tables() -> Tensors:
    """Eleven fixed random prompts, the digits' and a last one of zeros, exact in bf16."""
    generator = torch.Generator().manual_seed(SEED)
    context = torch.randn(11, CONTEXT_TOKENS, CONTEXT_DIM, generator=generator)
    pooled = torch.randn(11, POOLED_DIM, generator=generator)
    context[10], pooled[10] = 0, 0
    return {"context": context.bfloat16(), "y": pooled.bfloat16()}


def learning_rate(step: int, steps: int) -> float:
    """Linear warm-up, then half a cosine down to zero, as a share of the peak."""
    if step < WARMUP:
        return (step + 1) / WARMUP
    return 0.5 + 0.5 * math.cos(math.pi * (step - WARMUP) / (steps - WARMUP))


def new_model() -> nn.Module:
    import diffusers

    transformer: Any = diffusers.FluxTransformer2DModel
    model: nn.Module = transformer(**MODEL)
    return model


def train_model(out: Path) -> None:
    torch.manual_seed(SEED)
    generator = torch.Generator().manual_seed(SEED)
    model = new_model().train()
    average = copy.deepcopy(model).requires_grad_(False).eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, betas=(0.9, 0.99), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate(step, STEPS))
    data, tables = typical(real_digits(held_out=False), TYPICAL_SHARE), prompt_tables()
    begin, total = time.monotonic(), 0.0
    for step in range(1, STEPS + 1):
        loss = flow_loss(model, data, tables, generator)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        follow(average, model, min(EMA_DECAY, step / (step + 10)))
        total += loss.item()
        if step % REPORT_EVERY == 0:
            log.info("step %d loss %.4f %.0f s", step, total / REPORT_EVERY, time.monotonic() - begin)
            total = 0.0
            save_model(average, out)


def flow_loss(model: nn.Module, data: Handwriting, tables: Tensors, generator: torch.Generator) -> Tensor:
    """The mean squared error of v on one random batch."""
    rows = torch.randint(len(data.digits), (BATCH,), generator=generator)
    x0 = pack(to_model_space(encode(augment(data.pictures[rows], generator, strength=AUGMENTATION))))
    dropped = torch.rand(BATCH, generator=generator) < DROPPED_SHARE
    prompts = torch.where(dropped, 10, data.digits[rows])
    time_ = training_times(generator)
    noise = torch.randn(x0.shape, generator=generator)
    mix = time_[:, None, None]
    v = model(
        hidden_states=(1 - mix) * x0 + mix * noise,
        timestep=time_,
        encoder_hidden_states=tables["context"][prompts].float(),
        pooled_projections=tables["y"][prompts].float(),
        img_ids=token_ids(),
        txt_ids=torch.zeros(CONTEXT_TOKENS, 3),
        return_dict=False,
    )[0]
    return F.mse_loss(v, noise - x0)


def training_times(generator: torch.Generator) -> Tensor:
    """Times [BATCH], spread evenly over [0, 1] and then shifted as in Esser et al. 2024, section 5.3.2."""
    even = (torch.arange(BATCH) + torch.rand(BATCH, generator=generator)) / BATCH
    return TIME_SHIFT * even / (1 + (TIME_SHIFT - 1) * even)


def pack(latent: Tensor) -> Tensor:
    """[B, 16, 8, 8] -> tokens [B, 16, 64], FLUX.1's 2 x 2 patches."""
    return F.pixel_unshuffle(latent, 2).flatten(2).transpose(1, 2)


def token_ids() -> Tensor:
    rows, columns = torch.meshgrid(torch.arange(4.0), torch.arange(4.0), indexing="ij")
    return torch.stack((torch.zeros(4, 4), rows, columns), -1).reshape(16, 3)


@torch.no_grad()
def follow(average: nn.Module, model: nn.Module, decay: float) -> None:
    for mean, value in zip(average.parameters(), model.parameters(), strict=True):
        mean.lerp_(value, 1 - decay)


def save_model(model: nn.Module, out: Path) -> None:
    """FLUX.1's own key names and bf16, under the name that ComfyUI lists."""
    from outboard.engine.models.flux1 import to_checkpoint

    weights = to_checkpoint(model.state_dict())
    save(
        {name: value.bfloat16() for name, value in weights.items()},
        out / assets.MODEL.relative_to(assets.ASSETS),
    )


def save(tensors: Tensors, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path, metadata={"format": "pt", "license": "Apache-2.0"})
    log.info("wrote %s, %d bytes", path, path.stat().st_size)


def train_judge(out: Path) -> None:
    torch.manual_seed(SEED)
    generator = torch.Generator().manual_seed(SEED)
    network, data = judge.Network(), real_digits(held_out=False)
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate(step, JUDGE_STEPS))
    for _ in range(JUDGE_STEPS):
        rows = torch.randint(len(data.digits), (JUDGE_BATCH,), generator=generator)
        written = augment(data.pictures[rows], generator, strength=1.3)
        pictures = torch.cat((spoil(written, generator), junk(written[: JUDGE_BATCH // 4], generator)))
        targets = torch.cat((data.digits[rows], torch.full((JUDGE_BATCH // 4,), judge.JUNK)))
        loss = F.cross_entropy(network(pictures), targets, label_smoothing=0.05)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        schedule.step()
    log.info("judge: %.2f %% of held-out digits right", 100 * accuracy(network, real_digits(held_out=True)))
    save(dict(network.state_dict()), out / assets.JUDGE.relative_to(assets.ASSETS))


def spoil(pictures: Tensor, generator: torch.Generator) -> Tensor:
    """Up to a little noise and fading, what a drawn digit may have and a scanned one has not."""
    level = torch.rand(len(pictures), 1, 1, generator=generator) * 0.15
    gain = 1 - torch.rand(len(pictures), 1, 1, generator=generator) * 0.3
    return (pictures * gain + torch.randn(pictures.shape, generator=generator) * level).clamp(0, 1)


def junk(pictures: Tensor, generator: torch.Generator) -> Tensor:
    """In thirds: plain to noisy fields, two digits blended, one digit's tiles shuffled."""
    third = len(pictures) // 3
    level, roughness = torch.rand(2, third, 1, 1, generator=generator)
    rough = torch.randn(third, 32, 32, generator=generator) * roughness.square()
    noise = ((level * 1.4 - 0.2).clamp(0, 1) + rough).clamp(0, 1)
    blend = 0.5 * pictures[:third] + 0.5 * pictures[third : 2 * third]
    tiles = pictures[2 * third :].unfold(1, 8, 8).unfold(2, 8, 8).flatten(1, 2)
    shuffled = tiles[:, torch.randperm(16, generator=generator)].reshape(-1, 4, 4, 8, 8)
    return torch.cat((noise, blend, shuffled.transpose(2, 3).reshape(-1, 32, 32)))


@torch.inference_mode()
def accuracy(network: nn.Module, data: Handwriting) -> float:
    right: Tensor = network(data.pictures).argmax(-1) == data.digits
    return float(right.float().mean())


def write_prompts(out: Path) -> None:
    save(prompt_tables(), out / assets.CONDITIONING.relative_to(assets.ASSETS))


PARTS: dict[str, Callable[[Path], None]] = {
    "prompts": write_prompts,
    "judge": train_judge,
    "model": train_model,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="*", choices=list(PARTS), help="default: all three")
    parser.add_argument("--out", type=Path, default=assets.ASSETS, help="default: the package's assets")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    torch.set_num_threads(1)
    for part in arguments.part or PARTS:
        PARTS[part](arguments.out)


if __name__ == "__main__":
    main()
