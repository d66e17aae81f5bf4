"""The official templates for our families: which there are, and which small model stands behind each file."""

from __future__ import annotations

import re

from comfyui.families import (
    FLUX2,
    QWEN,
    QWEN_2511,
    WAN,
    WAN_5B,
    WAN_CONTROL,
    WAN_FRAMES,
    WAN_HIGH,
    WAN_IMAGE,
    WAN_INPAINT_5B,
    WAN_LOW,
    Z_IMAGE,
)
from comfyui.graphs import ERNIE, FLUX, Subject

#: Files of networks that the engine does not run, with the name its refusal gives them.
FOREIGN = (
    (r"qwen_image_layered", "Qwen-Image-Layered"),
    (r"qwen_image_2\.1", "Qwen-Image 2.1"),
    (r"fun_camera", "Wan with camera control"),
    (r"SCAIL", "SCAIL"),
    (r"_s2v_", "Wan sound to video"),
    (r"wan2\.2_fun_control", "Wan with a reference image"),
    (r"lotus", "a Stable Diffusion UNet"),
)
OURS = (
    (r"flux1-", FLUX, FLUX.file),
    (r"ernie-image", ERNIE, ERNIE.file),
    (r"flux-?2[_-]", FLUX2, FLUX2.file),
    (r"flux-2-", FLUX2, FLUX2.file),
    (r"qwen_image_edit_2511", QWEN_2511, QWEN_2511.file),
    (r"qwen_image", QWEN, QWEN.file),
    (r"z_image", Z_IMAGE, Z_IMAGE.file),
    (r"wan2\.1_t2v", WAN, WAN.file),
    (r"(?i)wan2.1.i2v|wan2\.1_fun_inp", WAN_IMAGE, WAN_IMAGE.file),
    (r"wan2\.1_flf2v", WAN_FRAMES, WAN_FRAMES.file),
    (r"wan2\.1_fun_control", WAN_CONTROL, WAN_CONTROL.file),
    (r"wan2\.2_fun_inpaint_5B", WAN_INPAINT_5B, WAN_INPAINT_5B.file),
    (r"wan2\.2_ti2v_5B", WAN_5B, WAN_5B.file),
    (r"wan2\.2_t2v_", WAN, WAN.file),
    (r"wan2\.2_.*high_noise", WAN_HIGH, WAN_HIGH.file),
    (r"wan2\.2_.*low_noise", WAN_HIGH, WAN_LOW),
)
TEMPLATES = (
    "flux_dev_checkpoint_example",
    "flux_dev_full_text_to_image",
    "image-qwen_image_edit_2511_lora_inflation",
    "image_ernie_image",
    "image_ernie_image_turbo",
    "image_flux2",
    "image_flux2_fp8",
    "image_flux2_klein_9b_kv_image_edit",
    "image_flux2_klein_image_edit_4b_base",
    "image_flux2_klein_image_edit_4b_distilled",
    "image_flux2_klein_image_edit_9b_base",
    "image_flux2_klein_image_edit_9b_distilled",
    "image_flux2_klein_text_to_image",
    "image_flux2_text_to_image",
    "image_flux2_text_to_image_9b",
    "image_qwen_Image_2512",
    "image_qwen_Image_2512_controlnet",
    "image_qwen_image",
    "image_qwen_image_2512_with_2steps_lora",
    "image_qwen_image_2_1_background_removal",
    "image_qwen_image_2_1_image_edit",
    "image_qwen_image_2_1_t2i",
    "image_qwen_image_2_1_turbo_image_edit",
    "image_qwen_image_2_1_turbo_t2i",
    "image_qwen_image_controlnet_patch",
    "image_qwen_image_edit",
    "image_qwen_image_edit_2509",
    "image_qwen_image_edit_2509_relight",
    "image_qwen_image_edit_2511",
    "image_qwen_image_edit_2511_int8",
    "image_qwen_image_instantx_controlnet",
    "image_qwen_image_instantx_inpainting_controlnet",
    "image_qwen_image_layered",
    "image_qwen_image_layered_control",
    "image_qwen_image_union_control_lora",
    "image_z_image",
    "image_z_image_int8",
    "image_z_image_turbo",
    "image_z_image_turbo_fun_union_controlnet",
    "image_z_image_turbo_int8",
    "template_qwen_Image_2512_360_lora",
    "template_qwen_image_edit_2511_systms_action",
    "template_qwen_image_illustration_lora",
    "utility_z_image_turbo_2k_upscaler.app",
    "video_wan2.1_alpha_t2v_14B",
    "video_wan2.1_fun_camera_v1.1_1.3B",
    "video_wan2.1_fun_camera_v1.1_14B",
    "video_wan21_scail2_character_replacement",
    "video_wan21_scail2_character_replacement_int8",
    "video_wan2_1_infinitetalk",
    "video_wan2_2_14B_flf2v",
    "video_wan2_2_14B_fun_camera",
    "video_wan2_2_14B_fun_control",
    "video_wan2_2_14B_fun_inpaint",
    "video_wan2_2_14B_i2v",
    "video_wan2_2_14B_s2v",
    "video_wan2_2_14B_t2v",
    "video_wan2_2_5B_fun_control",
    "video_wan2_2_5B_fun_inpaint",
    "video_wan2_2_5B_ti2v",
    "wan2.1_flf2v_720_f16",
    "wan2.1_fun_control",
    "wan2.1_fun_inp",
)
"""Those with a FLUX.1, FLUX.2, Qwen-Image, Z-Image, ERNIE-Image or Wan model, by name."""


def foreign(file: str) -> str:
    """What a file holds that is of no family of ours, else ""."""
    return next((title for pattern, title in FOREIGN if re.search(pattern, file)), "")


def stand_in(file: str) -> tuple[Subject, str] | None:
    """The small model, and its file, for a file of ours by the name that a template gives it."""
    if foreign(file):
        return None
    return next(((subject, small) for pattern, subject, small in OURS if re.search(pattern, file)), None)
