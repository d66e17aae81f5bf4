"""The node matrix as data: which node, how its graph differs from a plain one, and what may become of it.

A result equal to stock's is always right. A row says in words which refusal may stand in its place, which
error stock itself has, and where the node has no effect in stock either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from comfyui import matrix_recipes as recipes
from comfyui.families import WAN
from comfyui.graphs import FLUX, Subject
from comfyui.matrix_files import FILL
from comfyui.matrix_recipes import on_model, on_text, plain
from comfyui.scene import Recipe

FAMILIES: Mapping[str, Subject] = {"flux": FLUX, "wan": WAN}
BOTH = frozenset(FAMILIES)
FLUX_ONLY, WAN_ONLY = frozenset({"flux"}), frozenset({"wan"})
LONG = {"steps": 8, "cfg": 4.0}
WEIGHTS = "The weights of this MODEL are in the Outboard engine"


@dataclass(frozen=True)
class Row:
    """One node. `base`: the same graph without it, None where there is no such graph.

    widgets: of the samplers; subjects: what of each family it runs on; refused: words of the refusal that may
    come; fails: words of the errors that stock may have; inert: families where stock ignores the node; skips:
    whether it must leave steps out.
    """

    title: str
    build: Recipe
    base: Recipe | None = plain
    widgets: Mapping[str, Any] = field(default_factory=lambda: {"steps": 3, "cfg": 4.0})
    subjects: Mapping[str, Subject] = field(default_factory=lambda: FAMILIES)
    refused: str = ""
    fails: tuple[str, ...] = ()
    inert: frozenset[str] = frozenset()
    skips: bool = False


def guidance(
    title: str, inert: frozenset[str] = frozenset(), fails: tuple[str, ...] = (), **given: Any
) -> Row:
    """A node that only changes the MODEL, in ways that reach no weight."""
    return Row(title, on_model(title, **given), inert=inert, fails=fails)


SAMPLING = (
    Row("plain", plain, base=None),
    guidance("ModelSamplingFlux", max_shift=1.15, base_shift=0.5, width=112, height=80),
    guidance("ModelSamplingAuraFlow", shift=2.5),
    guidance("ModelSamplingSD3", shift=4.0),
    guidance("ModelNoiseScale", noise_scale=1.5, fails=("no attribute 'multiplier'",)),
    Row("BasicGuider+SamplerCustomAdvanced", recipes.basic_guider, base=None),
    Row("CFGGuider", lambda scene: scene.guided(scene.cfg_guider()), base=None),
    Row("DualCFGGuider", recipes.dual_cfg, base=None),
    Row("PerpNegGuider", recipes.perp_neg, base=None),
    Row("BetaSamplingScheduler", recipes.beta_scheduler, base=None),
    Row("DualModelGuider", recipes.dual_model, base=None),
    Row("SamplerSASolver", recipes.sa_solver, base=None),
    Row("KSampler denoise .5 after LatentUpscaleBy", recipes.upscaled("LatentUpscaleBy", scale_by=1.5), None),
    Row("LatentUpscale two-pass", recipes.upscaled("LatentUpscale", width=128, height=96), None),
    Row("KSamplerAdvanced split", recipes.split("enable", "disable"), base=None),
    Row("KSamplerAdvanced chain with leftover noise", recipes.split("disable", "enable"), base=None),
    Row("LatentFromBatch (batch_index)", recipes.from_batch, base=recipes.two_latents),
)
CONDITIONING = (
    Row("FluxGuidance", on_text("FluxGuidance", guidance=7.0), inert=WAN_ONLY),
    Row("FluxDisableGuidance", on_text("FluxDisableGuidance"), inert=WAN_ONLY),
    Row("ConditioningSetTimestepRange", recipes.ranges),
    Row("ConditioningSetArea+Combine", recipes.area),
    Row("SetLatentNoiseMask", recipes.masked),
    Row("DifferentialDiffusion", recipes.differential(), base=recipes.masked),
    Row("DifferentialDiffusion, batch 2", recipes.differential(batch=2)),
    Row("ReferenceLatent", recipes.with_references, inert=WAN_ONLY),
    Row(
        "FluxKontextMultiReferenceLatentMethod",
        recipes.reference_method,
        base=recipes.with_references,
        inert=WAN_ONLY,
    ),
    Row("ControlNetApplyAdvanced", recipes.controlled, fails=("too many values to unpack",)),
    Row("InpaintModelConditioning", recipes.inpainted, base=None, subjects={"flux": FILL}),
)
GUIDANCE = (
    Row("EasyCache", on_model("EasyCache", reuse_threshold=3.0), widgets=LONG, skips=True),
    Row("LazyCache", on_model("LazyCache", reuse_threshold=3.0), widgets=LONG, skips=True),
    guidance("RescaleCFG", multiplier=0.7),
    guidance("CFGNorm"),
    guidance("CFGZeroStar"),
    guidance("APG"),
    guidance("TCFG"),
    guidance("Mahiro"),
    guidance("Epsilon Scaling", scaling_factor=1.05),
    guidance("TemporalScoreRescaling", tsr_k=0.8),
    guidance("CFGOverride", cfg=1.5, end_percent=0.5),
    guidance("FreSca", scale_high=1.5, freq_cutoff=2),
    guidance("RenormCFG", cfg_trunc=0.5, fails=("no attribute 'in_channels'",)),
    Row("ContextWindowsManual", recipes.windows),
    guidance("PerturbedAttentionGuidance", inert=BOTH),
    guidance("SelfAttentionGuidance", inert=BOTH, fails=("'NoneType' object has no attribute 'shape'",)),
)
WEIGHT = (
    Row("LoraLoaderModelOnly", recipes.with_lora("LoraLoaderModelOnly"), refused="LoraLoader"),
    Row(
        "LoraLoaderBypassModelOnly",
        recipes.with_lora("LoraLoaderBypassModelOnly"),
        refused="LoraLoaderBypass",
    ),
    Row("CreateHookLora (cond hooks)", recipes.hooked, refused="hook"),
    Row("ModelMergeSimple", recipes.merged("ModelMergeSimple", ratio=0.5), refused="ModelMerge"),
    Row("ModelMergeAdd", recipes.merged("ModelMergeAdd"), refused="ModelMerge"),
    Row("ModelMergeSubtract", recipes.merged("ModelMergeSubtract"), refused="ModelMerge"),
    Row("ModelMergeSimple, ours as model2", recipes.merged_into_stock, refused=WEIGHTS),
    Row("ModelSave", recipes.saved_model, base=None, refused=WEIGHTS),
    Row("LoraSave", recipes.saved_lora, base=None, refused=WEIGHTS),
    guidance("UNetSelfAttentionMultiply", inert=BOTH, q=1.2, k=1.1, v=0.9),
)
INSIDE = (
    Row("FluxKVCache", recipes.kv_cache, refused="FluxKVCache", fails=("broadcast shape", "KV_Attn_Input")),
    Row("SkipLayerGuidanceDiT", recipes.skipped_layers, refused="SkipLayerGuidanceDiT"),
    Row("SkipLayerGuidanceDiTSimple", recipes.skipped_layers_simple, refused="SkipLayerGuidanceDiT"),
    Row("NAGuidance", on_model("NAGuidance"), refused="NAGuidance", inert=WAN_ONLY),
    guidance("ScaleROPE", scale_x=1.2, shift_x=0.3, scale_y=1.1, shift_t=0.2),
    guidance("FreeU", fails=("model_channels",)),
    Row("HyperTile", on_model("HyperTile"), refused="attn1_patch", fails=("hypertile_in",), inert=BOTH),
    Row("TomePatchModel", on_model("TomePatchModel"), refused="attn1_patch", fails=("tomesd_m",), inert=BOTH),
    guidance("PatchModelAddDownscale", inert=BOTH),
)
COMPUTING = (
    Row("ModelComputeDtype", on_model("ModelComputeDtype", dtype="bf16"), refused="ModelComputeDtype"),
    guidance("ModelAttentionBackend", inert=BOTH),
    Row("SelectModelDevice(cpu)", on_model("SelectModelDevice", device="cpu"), inert=BOTH),
    Row("SelectModelDevice(default)", on_model("SelectModelDevice", device="default"), inert=BOTH),
    guidance("MultiGPU_WorkUnits", inert=BOTH),
    guidance("TorchCompileModel", inert=BOTH, backend="cudagraphs"),
)
ROWS: tuple[Row, ...] = (*SAMPLING, *CONDITIONING, *GUIDANCE, *WEIGHT, *INSIDE, *COMPUTING)
