"""How the graphs of the node matrix differ from a plain one, each as a function of a scene."""

from __future__ import annotations

from typing import Any

from comfyui import matrix_files
from comfyui.graphs import Link, out
from comfyui.scene import Recipe, Scene, pair


def plain(scene: Scene) -> Link:
    return scene.sample()


def on_model(class_type: str, **given: Any) -> Recipe:
    """The node between the loader and the sampler."""
    return lambda scene: scene.sample(scene.node(class_type, model=scene.model(), **given))


def on_text(class_type: str, **given: Any) -> Recipe:
    """The node on the positive text."""
    return lambda scene: scene.sample(positive=scene.node(class_type, conditioning=scene.text(), **given))


def with_lora(class_type: str) -> Recipe:
    def build(scene: Scene) -> Link:
        name = matrix_files.lora(scene.subject)
        lora = {"lora_name": name, "strength_model": 1.0}
        return scene.sample(scene.node(class_type, model=scene.model(), **lora))

    return build


def hooked(scene: Scene) -> Link:
    lora = {"lora_name": matrix_files.lora(scene.subject), "strength_model": 1.0, "strength_clip": 0.0}
    both = scene.node(
        "PairConditioningSetProperties",
        positive_NEW=scene.text(1),
        negative_NEW=scene.text(2),
        hooks=scene.node("CreateHookLora", **lora),
    )
    return scene.sample(None, *pair(both))


def merged(class_type: str, **given: Any) -> Recipe:
    def build(scene: Scene) -> Link:
        second = scene.stock(matrix_files.other(scene.subject))
        return scene.sample(scene.node(class_type, model1=scene.model(), model2=second, **given))

    return build


def merged_into_stock(scene: Scene) -> Link:
    merge = {"model1": scene.stock(), "model2": scene.other(), "ratio": 0.5}
    return scene.sample(scene.node("ModelMergeSimple", **merge))


def saved_model(scene: Scene) -> None:
    scene.node("ModelSave", model=scene.model(), filename_prefix="models/matrix")


def saved_lora(scene: Scene) -> None:
    difference = scene.node("ModelMergeSubtract", model1=scene.model(), model2=scene.other())
    scene.node("LoraSave", model_diff=difference, filename_prefix="loras/matrix")


def ranges(scene: Scene) -> Link:
    first = scene.node("ConditioningSetTimestepRange", conditioning=scene.text(1), start=0.0, end=0.5)
    second = scene.node("ConditioningSetTimestepRange", conditioning=scene.text(3), start=0.5, end=1.0)
    return scene.sample(positive=combined(scene, first, second))


def area(scene: Scene) -> Link:
    place = {"width": 64, "height": 64, "x": 32, "y": 0, "strength": 0.8}
    part = scene.node("ConditioningSetArea", conditioning=scene.text(3), **place)
    return scene.sample(positive=combined(scene, scene.text(1), part))


def combined(scene: Scene, first: Link, second: Link) -> Link:
    return scene.node("ConditioningCombine", conditioning_1=first, conditioning_2=second)


def basic_guider(scene: Scene) -> Link:
    return scene.guided(scene.node("BasicGuider", model=scene.model(), conditioning=scene.text()))


def dual_cfg(scene: Scene) -> Link:
    texts = {"cond1": scene.text(1), "cond2": scene.text(2), "negative": scene.text(3)}
    return scene.guided(scene.node("DualCFGGuider", model=scene.model(), style="regular", **texts))


def perp_neg(scene: Scene) -> Link:
    texts = {"positive": scene.text(1), "negative": scene.text(2), "empty_conditioning": scene.text(3)}
    return scene.guided(scene.node("PerpNegGuider", model=scene.model(), cfg=3.0, **texts))


def dual_model(scene: Scene) -> Link:
    given = {"positive": scene.text(1), "negative": scene.text(2), "model_negative": scene.other()}
    return scene.guided(scene.node("DualModelGuider", model=scene.model(), **given))


def beta_scheduler(scene: Scene) -> Link:
    sigmas = scene.node("BetaSamplingScheduler", model=scene.model(), steps=3)
    return scene.guided(scene.cfg_guider(), sigmas=sigmas)


def sa_solver(scene: Scene) -> Link:
    return scene.guided(scene.cfg_guider(), scene.node("SamplerSASolver", model=scene.model()))


def masked(scene: Scene) -> Link:
    return scene.sample(latent=scene.masked())


def differential(batch: int = 1) -> Recipe:
    def build(scene: Scene) -> Link:
        changed = scene.node("DifferentialDiffusion", model=scene.model())
        return scene.sample(changed, latent=scene.masked(batch))

    return build


def upscaled(class_type: str, **given: Any) -> Recipe:
    """A second pass over the first one's latent, made larger."""

    def build(scene: Scene) -> Link:
        larger = scene.node(class_type, samples=scene.sample(), **given)
        return scene.sample(latent=larger, denoise=0.5, seed=43)

    return build


def split(noise: str, leftover: str) -> Recipe:
    def build(scene: Scene) -> Link:
        first = scene.part(scene.latent(), 0, 2, "enable", leftover)
        return scene.part(first, 2, 10000, noise, "disable")

    return build


def referred(scene: Scene) -> Link:
    text = scene.text()
    for seed in (8, 9):
        text = scene.node("ReferenceLatent", conditioning=text, latent=scene.latent(seed))
    return text


def with_references(scene: Scene) -> Link:
    return scene.sample(positive=referred(scene))


def reference_method(scene: Scene) -> Link:
    method = {"reference_latents_method": "index"}
    changed = scene.node("FluxKontextMultiReferenceLatentMethod", conditioning=referred(scene), **method)
    return scene.sample(positive=changed)


def kv_cache(scene: Scene) -> Link:
    return scene.sample(scene.node("FluxKVCache", model=scene.model()), positive=referred(scene))


def controlled(scene: Scene) -> Link:
    size = {"height": scene.subject.height * 8, "width": scene.subject.width * 8}
    both = scene.node(
        "ControlNetApplyAdvanced",
        positive=scene.text(1),
        negative=scene.text(2),
        control_net=scene.node("ControlNetLoader", control_net_name="tiny-controlnet.safetensors"),
        image=scene.node("OutboardTestImage", **size),
    )
    return scene.sample(None, *pair(both))


def inpainted(scene: Scene) -> Link:
    size = {"height": scene.subject.height * 8, "width": scene.subject.width * 8}
    given = scene.node(
        "InpaintModelConditioning",
        positive=scene.text(1),
        negative=scene.text(2),
        vae=scene.node("OutboardTestVAE"),
        pixels=scene.node("OutboardTestImage", **size),
        mask=scene.node("OutboardTestMask", **size),
    )
    return scene.sample(None, *pair(given), latent=out(given, 2))


def windows(scene: Scene) -> Link:
    """Along the third axis: a picture's rows, a video's frames."""
    length = {"context_length": 2 if scene.subject.frames else 6, "context_overlap": 1, "dim": 2}
    return scene.sample(scene.node("ContextWindowsManual", model=scene.model(), **length))


def from_batch(scene: Scene) -> Link:
    chosen = scene.node("LatentFromBatch", samples=scene.latent(batch=3), batch_index=1, length=2)
    return scene.sample(latent=chosen)


def two_latents(scene: Scene) -> Link:
    return scene.sample(latent=scene.latent(batch=2))


def skipped_layers(scene: Scene) -> Link:
    layers = {"double_layers": "0", "single_layers": "0", "start_percent": 0.0, "end_percent": 1.0}
    return scene.sample(scene.node("SkipLayerGuidanceDiT", model=scene.model(), **layers))


def skipped_layers_simple(scene: Scene) -> Link:
    layers = {"double_layers": "0", "single_layers": "0"}
    return scene.sample(scene.node("SkipLayerGuidanceDiTSimple", model=scene.model(), **layers))
