"""Graphs in API form, built node by node."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Link = list[Any]


@dataclass
class Graph:
    """`add` returns the new node's first output; `out` names another one."""

    nodes: dict[str, Any] = field(default_factory=dict)

    def add(self, class_type: str, **inputs: Any) -> Link:
        name = str(len(self.nodes) + 1)
        self.nodes[name] = {"class_type": class_type, "inputs": inputs}
        return [name, 0]


def out(link: Link, slot: int) -> Link:
    return [link[0], slot]


@dataclass(frozen=True)
class Subject:
    """One model with what its graphs need: the sizes of its text and of its latents.

    words: how many tokens count, 0 for a text without mask; frames: 0 for pictures; scale: pixels to a
    latent's; picture: channels of the latent that image to video concatenates; clip: its CLIP tokens.
    """

    file: str
    context: int
    pooled: int
    channels: int = 16
    height: int = 8
    width: int = 8
    tokens: int = 4
    kind: str = "flux"
    words: int = 0
    frames: int = 0
    scale: int = 8
    picture: int = 0
    clip: int = 0
    steps: int = 5
    #: On max|ours - stock| / max|stock| over a whole latent, in fp32.
    tolerance: float = 1e-5

    def text(self, graph: Graph, seed: int, tokens: int | None = None) -> Link:
        if self.kind == "digits":
            return graph.add("OutboardDigitPrompt", digit=str(seed))
        text = graph.add(
            "OutboardTestConditioning",
            seed=seed,
            tokens=tokens or self.tokens,
            width=self.context,
            pooled=self.pooled,
            words=self.words,
        )
        if not self.picture:
            return text
        size = {"frames": self.frames, "height": self.height, "width": self.width}
        return graph.add(
            "OutboardTestPicture", conditioning=text, channels=self.picture, clip=self.clip, **size
        )

    def texts(self, graph: Graph) -> tuple[Link, Link]:
        """A positive and a negative."""
        return self.text(graph, 1), self.text(graph, 2)

    def latent(self, graph: Graph, seed: int = 0, batch: int = 1, scale: int = 1) -> Link:
        return graph.add(
            "OutboardTestLatent",
            seed=seed,
            batch=batch,
            channels=self.channels,
            height=self.height * scale,
            width=self.width * scale,
            frames=self.frames,
        )

    def masked(self, graph: Graph) -> Link:
        """A latent of which a part is kept."""
        size = {"height": self.height * self.scale, "width": self.width * self.scale}
        mask = graph.add("OutboardTestMask", **size)
        return graph.add("SetLatentNoiseMask", samples=self.latent(graph, seed=5), mask=mask)

    def model(self, graph: Graph, ours: bool) -> Link:
        loader = "OutboardUNETLoader" if ours else "UNETLoader"
        return graph.add(loader, unet_name=self.file, weight_dtype="default")


#: Trained weights under guidance answer rounding more strongly than random ones do, most in few large steps.
DIGITS = Subject("outboard-digits.safetensors", context=64, pooled=32, kind="digits", steps=12)
FLUX = Subject("tiny-flux.safetensors", context=48, pooled=24, height=10, width=14, tokens=9)
ERNIE = Subject(
    "tiny-ernie.safetensors", context=48, pooled=0, channels=128, height=6, width=10, kind="ernie"
)


def sampled(
    graph: Graph,
    model: Link,
    positive: Link,
    negative: Link,
    latent: Link,
    *,
    node: str = "KSampler",
    **widgets: Any,
) -> Link:
    """A KSampler over them, 5 steps of euler at cfg 1 unless told otherwise."""
    settings: dict[str, Any] = {
        "seed": 42,
        "steps": 5,
        "cfg": 1.0,
        "sampler_name": "euler",
        "scheduler": "simple",
        "denoise": 1.0,
        **widgets,
    }
    return graph.add(node, model=model, positive=positive, negative=negative, latent_image=latent, **settings)


def saved(graph: Graph, latent: Link, name: str) -> Link:
    return graph.add("SaveLatent", samples=latent, filename_prefix=name)
