"""Recognising files by their header: families, key spellings, and a plain word for everything else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from models.files import ERNIE, TINY, describe, file_shapes, flux1_shapes, write
from models.tiny import CONFIGS
from outboard.engine.models.family import Family
from outboard.engine.models.header import read_header
from outboard.engine.models.registry import FAMILIES, PREFIXES, Detected, detect
from outboard.protocol.errors import CheckpointError, UnsupportedModelError

BLOCK = "double_blocks.0.img_attn."


def detect_keys(
    tmp_path: Path,
    shapes: Mapping[str, tuple[int, ...]],
    metadata: Mapping[str, str] | None = None,
    /,
    **dtypes: str,
) -> Detected:
    return detect(read_header(write(tmp_path / "model.safetensors", describe(shapes, **dtypes), metadata)))


def keys(*names: str) -> dict[str, tuple[int, ...]]:
    return dict.fromkeys(names, (4, 4))


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
@pytest.mark.parametrize("norm", [".scale", ".weight"])
def test_every_spelling_of_flux1_is_recognised(tmp_path: Path, prefix: str, norm: str) -> None:
    shapes = {prefix + name.replace(".scale", norm): shape for name, shape in flux1_shapes().items()}
    detected = detect_keys(tmp_path, shapes)
    assert (detected.family.name, detected.prefix, dict(detected.config)) == ("flux1", prefix, TINY)
    assert set(detected.stored.values()) == set(shapes)


def test_the_other_models_of_an_all_in_one_file_are_left_alone(tmp_path: Path) -> None:
    shapes = {"model.diffusion_model." + name: shape for name, shape in flux1_shapes().items()}
    detected = detect_keys(tmp_path, shapes | keys("vae.decoder.conv_in.weight", "text_encoders.t5xxl.a"))
    assert set(detected.stored.values()) == set(shapes)


def test_schnell_and_fill_differ_in_shapes_alone(tmp_path: Path) -> None:
    schnell = {name: shape for name, shape in flux1_shapes().items() if not name.startswith("guidance_in.")}
    fill = flux1_shapes() | {"img_in.weight": (128, 384)}
    assert detect_keys(tmp_path, schnell).config["guidance_embeds"] is False
    assert detect_keys(tmp_path, fill).config["in_channels"] == 384


def test_ernie_image_is_recognised_from_shapes(tmp_path: Path) -> None:
    detected = detect_keys(tmp_path, ERNIE)
    assert detected.family.name == "ernie_image"
    assert detected.config["num_attention_heads"] == 1
    assert (detected.config["text_in_dim"], detected.config["ffn_hidden_size"]) == (24, 64)


def test_heads_whose_axes_are_unknown_are_refused_unless_a_config_is_given(tmp_path: Path) -> None:
    shapes = {name: (64,) if ".norm." in name else shape for name, shape in flux1_shapes().items()}
    header = read_header(write(tmp_path / "m.safetensors", describe(shapes)))
    with pytest.raises(UnsupportedModelError, match="heads of 64"):
        detect(header)
    given = TINY | {"attention_head_dim": 64, "num_attention_heads": 2, "axes_dims_rope": (16, 24, 24)}
    assert detect(header, given).config == given


@pytest.mark.parametrize("prefix", ["", *PREFIXES])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_family_is_read_from_its_shapes_alone(family: Family, prefix: str, tmp_path: Path) -> None:
    config = CONFIGS[family.name]
    if family.name == "chroma":
        config = config | {"num_layers": 19, "num_single_layers": 38}  # the only depth it is known at
    shapes = {prefix + name: shape for name, shape in file_shapes(family, config).items()}
    detected = detect_keys(tmp_path, shapes)
    assert (detected.family.name, detected.prefix) == (family.name, prefix)
    assert dict(detected.config) == config


def test_a_network_with_the_keys_of_qwen_image_and_another_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="Mage-Flow"):
        detect_keys(tmp_path, keys(*QWEN) | {"txt_norm.weight": (2560,)})


def test_a_key_needed_for_the_config_is_named_when_missing(tmp_path: Path) -> None:
    shapes = {name: shape for name, shape in flux1_shapes().items() if name != "txt_in.weight"}
    with pytest.raises(CheckpointError, match=r"txt_in\.weight"):
        detect_keys(tmp_path, shapes)


def test_one_tensor_under_two_spellings_is_refused(tmp_path: Path) -> None:
    shapes = flux1_shapes() | {f"{BLOCK}norm.query_norm.weight": (128,)}
    with pytest.raises(CheckpointError, match="same tensor"):
        detect_keys(tmp_path, shapes)


WAN = ("blocks.0.self_attn.q.weight", "head.modulation", "patch_embedding.weight")
HUNYUAN = ("txt_in.individual_token_refiner.blocks.0.norm1.weight", "double_blocks.0.img_attn_qkv.weight")
QWEN = (
    "txt_norm.weight",
    "transformer_blocks.0.img_mod.1.weight",
    "transformer_blocks.0.attn.add_q_proj.bias",
)
Z_IMAGE = ("cap_pad_token", "x_pad_token", "noise_refiner.0.attention.qkv.weight", "x_embedder.weight")
LTX = ("adaln_single.emb.timestep_embedder.linear_1.bias", "transformer_blocks.0.attn2.q_norm.weight")
OTHERS = {
    "LTX-2": (*LTX, "patchify_proj.weight", "audio_adaln_single.linear.weight"),
    "MiniMax-H3": ("video_patch_proj.weight", "audio_patch_proj.weight", "blocks.0.attn.qkv_proj.weight"),
    "Anima": ("net.blocks.0.mlp.layer1.weight", "net.llm_adapter.blocks.0.cross_attn.q_proj.weight"),
    "Cosmos Predict 2": ("net.blocks.0.mlp.layer1.weight",),
    "Wan VACE": (*WAN, "blocks.0.cross_attn.q.weight", "vace_patch_embedding.weight"),
    "Wan Animate": (*WAN, "blocks.0.cross_attn.q.weight", "face_adapter.fuser_blocks.0.k_norm.weight"),
    "Chroma Radiance": (
        "distilled_guidance_layer.norms.0.scale",
        f"{BLOCK}qkv.weight",
        "single_blocks.0.linear1.weight",
        "img_in.weight",
        "nerf_blocks.0.norm.scale",
    ),
    "HunyuanVideo 1.5": (*HUNYUAN, "vector_in.a", "img_in.proj.weight", "cond_type_embedding.weight"),
    "HunyuanImage": (*HUNYUAN, "img_in.proj.weight", "byt5_in.fc1.weight"),
    "Qwen-Image-Layered": (*QWEN, "time_text_embed.addition_t_embedding.weight"),
    "Lens": (
        *QWEN,
        "transformer_blocks.0.img_mlp.w1.weight",
        "transformer_blocks.0.attn.norm_added_q.weight",
    ),
    "Z-Image Omni": (*Z_IMAGE, "siglip_embedder.0.weight"),
    "Z-Image in diffusers' layout": ("all_x_embedder.2-1.weight", "noise_refiner.0.attention.to_q.weight"),
    "Lumina 2": ("noise_refiner.0.attention.qkv.weight", "cap_embedder.1.weight"),
    "Stable Diffusion UNet": ("model.diffusion_model.input_blocks.0.0.weight", "first_stage_model.a"),
    "PixArt": (LTX[0], "pos_embed.proj.bias"),
    "diffusers' layout": (
        "single_transformer_blocks.0.attn.to_q.weight",
        "transformer_blocks.0.attn.to_q.weight",
    ),
    "ControlNet": ("controlnet_blocks.0.weight", "double_blocks.0.img_attn.qkv.weight"),
    "a LoRA": ("double_blocks.0.img_attn.qkv.lora_A.weight", "double_blocks.0.img_attn.qkv.lora_B.weight"),
    "a LoRA or": ("lora_unet_double_blocks_0_img_attn_qkv.lora_down.weight",),
    "a VAE": ("decoder.conv_in.weight", "encoder.conv_in.weight"),
    "text encoder (CLIP)": ("text_model.encoder.layers.0.mlp.fc1.weight",),
    "text encoder (T5)": ("encoder.block.0.layer.0.SelfAttention.q.weight",),
    "text encoder (language": ("model.layers.0.self_attn.q_proj.weight", "model.embed_tokens.weight"),
    "no family known": ("something.weight",),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_file_of_another_kind_is_refused_by_its_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        detect_keys(tmp_path, keys(*OTHERS[name]))
    assert name in caught.value.message
    assert "model.safetensors" in caught.value.message
    assert all(family.title in caught.value.message for family in FAMILIES)


def test_a_quantised_file_of_another_family_is_named(tmp_path: Path) -> None:
    shapes = keys(*OTHERS["Wan VACE"]) | {"scaled_fp8": (0,), "blocks.0.self_attn.q.scale_weight": ()}
    with pytest.raises(UnsupportedModelError, match=r"looks like Wan VACE; this engine runs"):
        detect_keys(tmp_path, shapes, None, **{"blocks.0.self_attn.q.weight": "F8_E4M3"})
