"""How each class of repeated blocks is called: what goes in and out, and which arguments have a row each.

One entry for each class of diffusers' blocks, and one for each transformer that has them; nothing else of
the cache knows a model family.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Pattern:
    """The call of a block.

    image       name of the argument that holds the image tokens (B,N,D)
    text        name of the one that holds text tokens which the block changes too; "" when it changes none
    text_first  whether it returns (text, image) rather than (image, text)
    joint       `image` holds the text tokens too, first, and comes from blocks that had them apart
    rows        other arguments with an entry for each row, and the dimension they have it in; a size of 1
                serves all rows, a multiple of the rows is several batches one after the other
    dim         the dimension of rows in the tokens
    """

    image: str = "hidden_states"
    text: str = ""
    text_first: bool = True
    joint: bool = False
    rows: Mapping[str, int] = field(default_factory=dict)
    dim: int = 0


TEXT = "encoder_hidden_states"
_JOINT_ATTENTION = {"temb": 0, "joint_attention_kwargs": 0}
_HUNYUAN = Pattern(text=TEXT, text_first=False, rows={"temb": 0, "attention_mask": 0})

PATTERNS: Mapping[str, Pattern] = {
    "FluxTransformerBlock": Pattern(text=TEXT, rows=_JOINT_ATTENTION),
    "FluxSingleTransformerBlock": Pattern(text=TEXT, rows=_JOINT_ATTENTION),
    "Flux2TransformerBlock": Pattern(
        text=TEXT, rows={"temb_mod_img": 0, "temb_mod_txt": 0, "joint_attention_kwargs": 0}
    ),
    "Flux2SingleTransformerBlock": Pattern(joint=True, rows={"temb_mod": 0, "joint_attention_kwargs": 0}),
    "QwenImageTransformerBlock": Pattern(
        text=TEXT,
        rows={"encoder_hidden_states_mask": 0, "temb": 0, "joint_attention_kwargs": 0, "modulate_index": 0},
    ),
    "ZImageTransformerBlock": Pattern(image="x", rows={"attn_mask": 0, "freqs_cis": 0, "adaln_input": 0}),
    "ErnieImageSharedAdaLNBlock": Pattern(
        image="x", rows={"rotary_pos_emb": 0, "temb": 1, "attention_mask": 0}, dim=1
    ),
    "WanTransformerBlock": Pattern(rows={TEXT: 0, "temb": 0}),
    "JointTransformerBlock": Pattern(text=TEXT, rows=_JOINT_ATTENTION),
    "ChromaTransformerBlock": Pattern(text=TEXT, rows=_JOINT_ATTENTION | {"attention_mask": 0}),
    "ChromaSingleTransformerBlock": Pattern(joint=True, rows=_JOINT_ATTENTION | {"attention_mask": 0}),
    "HunyuanVideoTransformerBlock": _HUNYUAN,
    "HunyuanVideoSingleTransformerBlock": _HUNYUAN,
    "LTXVideoTransformerBlock": Pattern(
        rows={TEXT: 0, "temb": 0, "image_rotary_emb": 0, "encoder_attention_mask": 0}
    ),
}

#: The lists of blocks of each transformer, in the order they run.
BLOCK_LISTS: Mapping[str, tuple[str, ...]] = {
    "FluxTransformer2DModel": ("transformer_blocks", "single_transformer_blocks"),
    "Flux2Transformer2DModel": ("transformer_blocks", "single_transformer_blocks"),
    "QwenImageTransformer2DModel": ("transformer_blocks",),
    "ZImageTransformer2DModel": ("layers",),
    "ErnieImageTransformer2DModel": ("layers",),
    "WanTransformer3DModel": ("blocks",),
    "SD3Transformer2DModel": ("transformer_blocks",),
    "ChromaTransformer2DModel": ("transformer_blocks", "single_transformer_blocks"),
    "HunyuanVideoTransformer3DModel": ("transformer_blocks", "single_transformer_blocks"),
    "LTXVideoTransformer3DModel": ("transformer_blocks",),
}
