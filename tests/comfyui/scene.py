"""One side of a cell in the node matrix: a graph on one MODEL, stock's or ours, built node by node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from comfyui import matrix_files
from comfyui.graphs import Graph, Link, Subject, out, sampled

#: Builds a graph and returns the latent to compare, or nothing for a node that only saves.
Recipe = Callable[["Scene"], Link | None]
Texts = tuple[Link, Link]


class AbsentError(Exception):
    """A node that this version of ComfyUI does not have."""


class Shared(Graph):
    """A graph in which equal nodes are one."""

    def add(self, class_type: str, **inputs: Any) -> Link:
        wanted = {"class_type": class_type, "inputs": inputs}
        found = next((name for name, node in self.nodes.items() if node == wanted), None)
        return [found, 0] if found else super().add(class_type, **inputs)


@dataclass(frozen=True)
class Scene:
    """`info`: what the server's nodes take; `widgets`: those of every sampler, unless told otherwise."""

    graph: Graph
    subject: Subject
    info: Mapping[str, Any]
    ours: bool
    widgets: Mapping[str, Any] = field(default_factory=dict)

    def node(self, class_type: str, **given: Any) -> Link:
        """Add a node; required widgets that are not given get this version's defaults."""
        if class_type not in self.info:
            raise AbsentError(class_type)
        required = self.info[class_type]["input"].get("required", {})
        defaults = {name: default_of(*spec) for name, spec in required.items() if name not in given}
        return self.graph.add(class_type, **{k: v for k, v in defaults.items() if v is not None}, **given)

    def model(self, file: str = "") -> Link:
        return self._loaded("OutboardUNETLoader" if self.ours else "UNETLoader", file)

    def other(self) -> Link:
        """The same network with other weights."""
        return self.model(matrix_files.other(self.subject))

    def stock(self, file: str = "") -> Link:
        """A stock MODEL on either side."""
        return self._loaded("UNETLoader", file)

    def _loaded(self, loader: str, file: str) -> Link:
        return self.graph.add(loader, unet_name=file or self.subject.file, weight_dtype="default")

    def text(self, seed: int = 1) -> Link:
        return self.subject.text(self.graph, seed)

    def latent(self, seed: int = 0, batch: int = 1) -> Link:
        return self.subject.latent(self.graph, seed, batch)

    def masked(self, batch: int = 1) -> Link:
        """A latent of which a part is kept."""
        size = {
            "height": self.subject.height * self.subject.scale,
            "width": self.subject.width * self.subject.scale,
        }
        mask = self.graph.add("OutboardTestMask", **size)
        return self.graph.add("SetLatentNoiseMask", samples=self.latent(5, batch), mask=mask)

    def sample(
        self,
        model: Link | None = None,
        positive: Link | None = None,
        negative: Link | None = None,
        latent: Link | None = None,
        **widgets: Any,
    ) -> Link:
        """A KSampler; what is not given is plain."""
        return sampled(
            self.graph,
            model or self.model(),
            positive or self.text(1),
            negative or self.text(2),
            latent or self.latent(),
            **{**self.widgets, **widgets},
        )

    def part(self, latent: Link, start: int, end: int, noise: str, leftover: str) -> Link:
        """A KSamplerAdvanced over some of four steps."""
        return self.node(
            "KSamplerAdvanced",
            model=self.model(),
            positive=self.text(1),
            negative=self.text(2),
            latent_image=latent,
            noise_seed=42,
            steps=4,
            cfg=4.0,
            sampler_name="euler",
            scheduler="simple",
            start_at_step=start,
            end_at_step=end,
            add_noise=noise,
            return_with_leftover_noise=leftover,
        )

    def guided(self, guider: Link, sampler: Link | None = None, sigmas: Link | None = None) -> Link:
        """A SamplerCustomAdvanced over `guider`."""
        plain = {"model": self.model(), "scheduler": "simple", "steps": 3, "denoise": 1.0}
        return self.node(
            "SamplerCustomAdvanced",
            noise=self.node("RandomNoise", noise_seed=3),
            guider=guider,
            sampler=sampler or self.node("KSamplerSelect", sampler_name="euler"),
            sigmas=sigmas or self.node("BasicScheduler", **plain),
            latent_image=self.latent(),
        )

    def cfg_guider(self) -> Link:
        texts = {"positive": self.text(1), "negative": self.text(2)}
        return self.node("CFGGuider", model=self.model(), cfg=3.0, **texts)


def default_of(kind: Any, options: Mapping[str, Any] | None = None) -> Any:
    """The value of a widget that nobody touched; None for a socket."""
    options = options or {}
    if "default" in options:
        return options["default"]
    choices = kind if isinstance(kind, list) else options.get("options")
    if choices:
        return choices[0]
    return {"BOOLEAN": False, "STRING": ""}.get(str(kind))


def pair(link: Link) -> Texts:
    """The two conditionings that a node gives."""
    return link, out(link, 1)
