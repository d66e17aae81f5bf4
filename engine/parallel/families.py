"""The table: how each of diffusers' networks is shared out."""

from __future__ import annotations

from .plans import (
    Cut,
    Join,
    Mix,
    Plan,
    SequencePlan,
    TensorPlan,
    attention_and_gated,
    attention_then_rest,
    halves,
)

DOUBLE, SINGLE = r"transformer_blocks\.\d+", r"single_transformer_blocks\.\d+"
QKV = r"(to_[qkv]|add_[qkv]_proj)"
OUT = r"(to_out\.0|to_add_out)"
FEED_IN, FEED_OUT = r"(ff|ff_context)\.net\.0\.proj", r"(ff|ff_context)\.net\.2"
BEFORE = (
    Cut("", "hidden_states", "image", 1),
    Cut("", "encoder_hidden_states", "text", 1),
)
IDS = (Cut("", "img_ids", "image", 0), Cut("", "txt_ids", "text", 0))
CONTROL = (
    Cut("", "controlnet_block_samples", "image", 1),
    Cut("", "controlnet_single_block_samples", "image", 1),
)
JOINT = (Mix(rf"({DOUBLE}|{SINGLE})\.attn", ("text", "image")),)
IMAGE_OUT = (Join("proj_out", "image"),)

FLUX_1 = Plan(
    SequencePlan((*BEFORE, *IDS, *CONTROL), JOINT, IMAGE_OUT),
    TensorPlan(
        columns={
            rf"{DOUBLE}\.attn\.{QKV}": None,
            rf"{DOUBLE}\.{FEED_IN}": None,
            rf"{SINGLE}\.(attn\.to_[qkv]|proj_mlp)": None,
        },
        rows={
            rf"{DOUBLE}\.attn\.{OUT}": None,
            rf"{DOUBLE}\.{FEED_OUT}": None,
            rf"{SINGLE}\.proj_out": attention_then_rest,
        },
    ),
)
FLUX_2 = Plan(
    SequencePlan((*BEFORE, *IDS), JOINT, IMAGE_OUT),
    TensorPlan(
        columns={
            rf"{DOUBLE}\.attn\.{QKV}": None,
            rf"{DOUBLE}\.(ff|ff_context)\.linear_in": halves,
            rf"{SINGLE}\.attn\.to_qkv_mlp_proj": attention_and_gated,
        },
        rows={
            rf"{DOUBLE}\.attn\.{OUT}": None,
            rf"{DOUBLE}\.(ff|ff_context)\.linear_out": None,
            rf"{SINGLE}\.attn\.to_out": attention_then_rest,
        },
    ),
)
QWEN_IMAGE = Plan(
    SequencePlan(
        (
            Cut(r"transformer_blocks\.0", "hidden_states", "image", 1),
            Cut(r"transformer_blocks\.0", "encoder_hidden_states", "text", 1),
            Cut(DOUBLE, "modulate_index", "image", 1),
            Cut("pos_embed", "", "image", 0, item=0),
            Cut("pos_embed", "", "text", 0, item=1),
            CONTROL[0],
        ),
        (Mix(rf"{DOUBLE}\.attn", ("text", "image"), word_mask="encoder_hidden_states_mask"),),
        IMAGE_OUT,
    ),
    TensorPlan(
        columns={rf"{DOUBLE}\.attn\.{QKV}": None, rf"{DOUBLE}\.(img|txt)_mlp\.net\.0\.proj": None},
        rows={rf"{DOUBLE}\.attn\.{OUT}": None, rf"{DOUBLE}\.(img|txt)_mlp\.net\.2": None},
    ),
)
Z_LAYERS = r"(layers|noise_refiner|context_refiner)\.\d+"
# The words are refined by every rank: they are few, and the image is put behind them only then.
Z_IMAGE = Plan(
    SequencePlan(
        (
            Cut(r"noise_refiner\.0", "x", "image", 1),
            Cut(r"noise_refiner\.\d+", "freqs_cis", "image", 1),
            Cut(r"layers\.0", "x", "tokens", 1),
            Cut(r"layers\.\d+", "freqs_cis", "tokens", 1),
        ),
        (
            Mix(r"noise_refiner\.\d+\.attention", ("image",)),
            Mix(r"layers\.\d+\.attention", ("tokens",)),
        ),
        (Join("noise_refiner.LAST", "image"), Join(r"all_final_layer\.2-1", "tokens")),
    ),
    TensorPlan(
        columns={rf"{Z_LAYERS}\.attention\.to_[qkv]": None, rf"{Z_LAYERS}\.feed_forward\.w[13]": None},
        rows={rf"{Z_LAYERS}\.attention\.to_out\.0": None, rf"{Z_LAYERS}\.feed_forward\.w2": None},
        counted=rf"{Z_LAYERS}\.attention",
    ),
    heads="n_heads",
)
ERNIE_LAYER = r"layers\.\d+"
# Tokens come first here, (N,B,D), and rotary angles have them second.
ERNIE_IMAGE = Plan(
    SequencePlan(
        (Cut(r"layers\.0", "x", "tokens", 0), Cut(ERNIE_LAYER, "rotary_pos_emb", "tokens", 1)),
        (Mix(rf"{ERNIE_LAYER}\.self_attention", ("tokens",)),),
        (Join("final_linear", "tokens", 0),),
    ),
    TensorPlan(
        columns={
            rf"{ERNIE_LAYER}\.self_attention\.to_[qkv]": None,
            rf"{ERNIE_LAYER}\.mlp\.(gate|up)_proj": None,
        },
        rows={
            rf"{ERNIE_LAYER}\.self_attention\.to_out\.0": None,
            rf"{ERNIE_LAYER}\.mlp\.linear_fc2": None,
        },
        counted=rf"{ERNIE_LAYER}\.self_attention",
    ),
)
WAN_BLOCK = r"blocks\.\d+"
WAN = Plan(
    SequencePlan(
        (
            Cut("rope", "", "image", 0),
            Cut(r"blocks\.0", "hidden_states", "image", 1),
            Cut("", "timestep", "image", 1),
        ),
        (Mix(rf"{WAN_BLOCK}\.attn1", ("image",)),),
        IMAGE_OUT,
    ),
    TensorPlan(
        columns={
            rf"{WAN_BLOCK}\.attn[12]\.(to_[qkv]|add_[kv]_proj)": None,
            rf"{WAN_BLOCK}\.ffn\.net\.0\.proj": None,
        },
        rows={rf"{WAN_BLOCK}\.attn[12]\.to_out\.0": None, rf"{WAN_BLOCK}\.ffn\.net\.2": None},
        norms=rf"{WAN_BLOCK}\.attn[12]\.norm_(q|k|added_k)",
        counted=rf"{WAN_BLOCK}\.attn[12]",
    ),
)
SD3 = Plan(
    SequencePlan(
        (Cut("pos_embed", "", "image", 1), Cut("context_embedder", "", "text", 1)),
        (
            Mix(rf"{DOUBLE}\.attn", ("image", "text")),
            Mix(rf"{DOUBLE}\.attn2", ("image",), optional=True),
        ),
        IMAGE_OUT,
        least=1,
    ),
    TensorPlan(
        columns={rf"{DOUBLE}\.attn2?\.{QKV}": None, rf"{DOUBLE}\.{FEED_IN}": None},
        rows={rf"{DOUBLE}\.attn2?\.{OUT}": None, rf"{DOUBLE}\.{FEED_OUT}": None},
        counted=rf"{DOUBLE}\.attn2?",
    ),
)
HUNYUAN_VIDEO = Plan(
    SequencePlan(
        (
            Cut(r"transformer_blocks\.0", "hidden_states", "image", 1),
            Cut(r"transformer_blocks\.0", "encoder_hidden_states", "text", 1),
            Cut("rope", "", "image", 0),
        ),
        (Mix(rf"({DOUBLE}|{SINGLE})\.attn", ("image", "text")),),
        IMAGE_OUT,
        least=1,
    ),
    TensorPlan(FLUX_1.tensor.columns, FLUX_1.tensor.rows, counted=rf"({DOUBLE}|{SINGLE})\.attn"),
)
LTX_VIDEO = Plan(
    SequencePlan(
        (
            Cut("", "hidden_states", "image", 1),
            Cut("", "timestep", "image", 1),
            Cut("", "video_coords", "image", 2),
        ),
        (Mix(rf"{DOUBLE}\.attn1", ("image",)),),
        IMAGE_OUT,
    ),
    TensorPlan(
        columns={rf"{DOUBLE}\.attn[12]\.to_[qkv]": None, rf"{DOUBLE}\.ff\.net\.0\.proj": None},
        rows={rf"{DOUBLE}\.attn[12]\.to_out\.0": None, rf"{DOUBLE}\.ff\.net\.2": None},
        norms=rf"{DOUBLE}\.attn[12]\.norm_[qk]",
        counted=rf"{DOUBLE}\.attn[12]",
        rotary="rope",
    ),
)

PLANS = {
    "FluxTransformer2DModel": FLUX_1,
    "ChromaTransformer2DModel": FLUX_1,
    "Flux2Transformer2DModel": FLUX_2,
    "QwenImageTransformer2DModel": QWEN_IMAGE,
    "ZImageTransformer2DModel": Z_IMAGE,
    "ErnieImageTransformer2DModel": ERNIE_IMAGE,
    "WanTransformer3DModel": WAN,
    "SD3Transformer2DModel": SD3,
    "HunyuanVideoTransformer3DModel": HUNYUAN_VIDEO,
    "LTXVideoTransformer3DModel": LTX_VIDEO,
}
