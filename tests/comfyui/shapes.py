"""Names and shapes of the files that the tests make, as the published ones have them."""

from __future__ import annotations

Shapes = dict[str, tuple[int, ...]]

FLUX_HEAD = 128


def linear(name: str, rows: int, columns: int, bias: bool = True) -> Shapes:
    return {f"{name}.weight": (rows, columns), **({f"{name}.bias": (rows,)} if bias else {})}


def flux(hidden: int, doubles: int, singles: int, context: int, pooled: int) -> Shapes:
    """FLUX.1-dev, 16 latent channels."""
    found = flux_stem(hidden, context, pooled)
    for number in range(doubles):
        found |= flux_double(f"double_blocks.{number}", hidden)
    for number in range(singles):
        block = f"single_blocks.{number}"
        found |= linear(f"{block}.linear1", 7 * hidden, hidden)
        found |= linear(f"{block}.linear2", hidden, 5 * hidden)
        found |= linear(f"{block}.modulation.lin", 3 * hidden, hidden)
        found |= flux_norms(f"{block}.norm")
    found |= linear("final_layer.linear", 64, hidden)
    return found | linear("final_layer.adaLN_modulation.1", 2 * hidden, hidden)


def flux_stem(hidden: int, context: int, pooled: int) -> Shapes:
    found = linear("img_in", hidden, 64) | linear("txt_in", hidden, context)
    for name, width in (("time_in", 256), ("vector_in", pooled), ("guidance_in", 256)):
        found |= linear(f"{name}.in_layer", hidden, width) | linear(f"{name}.out_layer", hidden, hidden)
    return found


def flux_double(block: str, hidden: int) -> Shapes:
    found: Shapes = {}
    for side in ("img", "txt"):
        found |= linear(f"{block}.{side}_attn.qkv", 3 * hidden, hidden)
        found |= linear(f"{block}.{side}_attn.proj", hidden, hidden)
        found |= linear(f"{block}.{side}_mlp.0", 4 * hidden, hidden)
        found |= linear(f"{block}.{side}_mlp.2", hidden, 4 * hidden)
        found |= linear(f"{block}.{side}_mod.lin", 6 * hidden, hidden)
        found |= flux_norms(f"{block}.{side}_attn.norm")
    return found


def flux_norms(name: str) -> Shapes:
    return {f"{name}.{norm}.scale": (FLUX_HEAD,) for norm in ("query_norm", "key_norm")}


def xlabs_controlnet(hidden: int, context: int, pooled: int) -> Shapes:
    """XLabs' ControlNet for FLUX.1: two double blocks, a hint in pixels."""
    found = flux_stem(hidden, context, pooled) | linear("pos_embed_input", hidden, 64)
    for number in range(2):
        found |= flux_double(f"double_blocks.{number}", hidden)
        found |= linear(f"controlnet_blocks.{number}", hidden, hidden)
    for number in range(0, 15, 2):
        channels = 3 if number == 0 else 16
        found[f"input_hint_block.{number}.weight"] = (16, channels, 3, 3)
        found[f"input_hint_block.{number}.bias"] = (16,)
    return found


def ernie(hidden: int, layers: int, ffn: int, context: int) -> Shapes:
    """ERNIE-Image, 128 latent channels, heads of 128."""
    found: Shapes = {"x_embedder.proj.weight": (hidden, 128, 1, 1), "x_embedder.proj.bias": (hidden,)}
    found |= linear("text_proj", hidden, context, bias=False)
    found |= linear("time_embedding.linear_1", hidden, hidden) | linear(
        "time_embedding.linear_2", hidden, hidden
    )
    found |= linear("adaLN_modulation.1", 6 * hidden, hidden)
    for number in range(layers):
        block = f"layers.{number}"
        for part in ("to_q", "to_k", "to_v", "to_out.0"):
            found |= linear(f"{block}.self_attention.{part}", hidden, hidden, bias=False)
        for part, rows, columns in (
            ("gate_proj", ffn, hidden),
            ("up_proj", ffn, hidden),
            ("linear_fc2", hidden, ffn),
        ):
            found |= linear(f"{block}.mlp.{part}", rows, columns, bias=False)
        found |= {f"{block}.self_attention.{norm}.weight": (128,) for norm in ("norm_q", "norm_k")}
        found |= {f"{block}.{norm}.weight": (hidden,) for norm in ("adaLN_sa_ln", "adaLN_mlp_ln")}
    return found | linear("final_norm.linear", 2 * hidden, hidden) | linear("final_linear", 128, hidden)
