"""Names for files the engine does not run, told by their keys, so that a refusal can say what the file is."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .contents import Contents

ADAPTER = re.compile(
    r"(^lora_(unet|transformer|te\d?)_|\.(lora_[AB]|lora_(up|down)|lokr_\w+|hada_\w+|oft_\w+)\b)"
)


@dataclass(frozen=True)
class Look:
    """A kind of file, and prefixes that must all occur among its keys."""

    title: str
    marks: tuple[str, ...]


LOOKS = (
    Look("a ControlNet", ("controlnet_blocks.0.",)),
    Look("a ControlNet", ("controlnet_x_embedder.",)),
    Look("a ControlNet", ("input_hint_block.0.",)),
    Look("a ControlNet", ("control_model.",)),
    Look("LTX-2 (video with sound, which ComfyUI runs in parts of its own)", ("audio_adaln_single.",)),
    Look("MiniMax-H3 (video with sound, which ComfyUI runs in parts of its own)", ("video_patch_proj.",)),
    Look("Anima (whose text adapter ComfyUI runs by itself)", ("llm_adapter.", "blocks.0.mlp.layer1.")),
    Look("FLUX.2", ("double_stream_modulation_img.", "double_blocks.0.")),
    Look("Chroma Radiance", ("distilled_guidance_layer.", "nerf_blocks.")),
    Look("Chroma", ("distilled_guidance_layer.", "double_blocks.0.")),
    Look("HunyuanVideo 1.5", ("txt_in.individual_token_refiner.", "cond_type_embedding.")),
    Look("HunyuanImage", ("txt_in.individual_token_refiner.", "byt5_in.")),
    Look("HunyuanVideo", ("txt_in.individual_token_refiner.",)),
    Look("a FLUX variant (LongCat-Image or the like)", ("double_blocks.0.img_attn.", "single_blocks.0.")),
    Look("FLUX or another transformer in diffusers' layout", ("single_transformer_blocks.0.",)),
    Look("Qwen-Image-Layered", ("txt_norm.", "time_text_embed.addition_t_embedding.")),
    Look("Lens", ("transformer_blocks.0.img_mlp.w1.", "transformer_blocks.0.attn.norm_added_q.")),
    Look("Qwen-Image or a variant (Mage-Flow or the like)", ("txt_norm.", "transformer_blocks.0.img_mod.")),
    Look("Z-Image in diffusers' layout", ("all_x_embedder.", "noise_refiner.0.")),
    Look("Z-Image Omni", ("cap_pad_token", "siglip_embedder.")),
    Look("Z-Image for pixels", ("cap_pad_token", "dec_net.")),
    Look("Z-Image", ("cap_pad_token", "noise_refiner.0.")),
    Look("Lumina 2", ("cap_embedder.1.", "noise_refiner.0.")),
    Look("Wan VACE", ("head.modulation", "vace_patch_embedding.")),
    Look("Wan with camera control", ("head.modulation", "control_adapter.")),
    Look("Wan sound to video", ("head.modulation", "casual_audio_encoder.")),
    Look("HuMo", ("head.modulation", "audio_proj.")),
    Look("Wan Animate", ("head.modulation", "face_adapter.")),
    Look("SCAIL", ("head.modulation", "patch_embedding_mask.")),
    Look("SCAIL", ("head.modulation", "patch_embedding_pose.")),
    Look("WanDancer", ("head.modulation", "patch_embedding_global.")),
    Look("Wan with a reference image", ("head.modulation", "ref_conv.")),
    Look("Wan video", ("head.modulation", "blocks.0.self_attn.")),
    Look("Wan video in diffusers' layout", ("scale_shift_table", "condition_embedder.time_embedder.")),
    Look("Stable Diffusion 3 with a context processor", ("joint_blocks.0.", "context_processor.")),
    Look("Stable Diffusion 3", ("joint_blocks.0.context_block.",)),
    Look("AuraFlow", ("double_layers.0.attn.w1q.",)),
    Look("PixArt in diffusers' layout", ("adaln_single.emb.timestep_embedder.", "pos_embed.proj.")),
    Look("LTX-Video", ("adaln_single.emb.timestep_embedder.", "transformer_blocks.0.")),
    Look("PixArt", ("t_block.1.",)),
    Look("CogVideoX", ("blocks.0.norm1.linear.",)),
    Look("HiDream", ("caption_projection.0.linear.",)),
    Look("Cosmos", ("blocks.block0.blocks.0.block.attn.",)),
    Look("Cosmos Predict 2", ("blocks.0.mlp.layer1.",)),
    Look("OmniGen 2", ("time_caption_embed.timestep_embedder.",)),
    Look("Kandinsky 5", ("visual_transformer_blocks.0.cross_attention.",)),
    Look("Hunyuan DiT", ("mlp_t5.0.",)),
    Look("Mochi", ("t5_yproj.",)),
    Look("Krea 2", ("txtfusion.projector.",)),
    Look("PixelDiT", ("core.pixel_embedder.proj.",)),
    Look("ACE-Step", ("genre_embedder.",)),
    Look("a Stable Diffusion UNet", ("input_blocks.0.0.",)),
    Look("a Stable Diffusion UNet in diffusers' layout", ("down_blocks.0.", "conv_in.")),
    Look("a VAE", ("decoder.conv_in.",)),
    Look("a VAE", ("decoder.conv1.", "encoder.conv1.")),
    Look("a VAE", ("first_stage_model.",)),
    Look("a CLIP vision encoder", ("vision_model.",)),
    Look("a text encoder (CLIP)", ("text_model.",)),
    Look("a text encoder (T5)", ("encoder.block.0.layer.0.SelfAttention.",)),
    Look("a text encoder (language model)", ("model.layers.0.self_attn.",)),
    Look("a text encoder (language model)", ("layers.0.self_attn.", "embed_tokens.")),
)


def look(contents: Contents) -> str | None:
    """What the file seems to be, in words; None if nothing known."""
    if any(ADAPTER.search(key) for key in contents):
        return "a LoRA or another adapter"
    for candidate in LOOKS:
        if all(map(contents.has, candidate.marks)):
            return candidate.title
    return None
