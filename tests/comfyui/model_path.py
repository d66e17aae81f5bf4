"""The MODEL path of a template as a graph: loaders, model nodes, guiders and samplers with their widgets.

Text and latents come from the test nodes, in the shapes of the small model that stands behind each file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from comfyui.graphs import Graph, Link, Subject, out, saved
from comfyui.workflow import Node, Source

SAMPLERS = ("KSampler", "KSamplerAdvanced", "SamplerCustom", "SamplerCustomAdvanced")
KEPT = frozenset({"MODEL", "GUIDER", "SAMPLER", "SIGMAS", "NOISE"})
VALUES = frozenset({"INT", "FLOAT", "BOOLEAN", "STRING", "COMBO"})
MATCH = "COMFY_MATCHTYPE_V3"
LOADER, SWITCH = "UNETLoader", "ComfySwitchNode"
AFTER_GENERATE = ("fixed", "increment", "decrement", "randomize")
STEPS = 2
#: Small things for inputs that are neither text nor latent.
STAND_INS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "VAE": ("VAELoader", {"vae_name": "pixel_space"}),
    "IMAGE": ("OutboardTestImage", {"height": 64, "width": 64}),
    "MODEL_PATCH": ("OutboardTestModelPatch", {}),
}


class ModelPath:
    """Builds `graph` from `nodes`. info: the server's /object_info; without: types of nodes to leave out.

    subject_of: the small model for a file's name, None for a file of another family. `dropped` lists nodes
    that lie on the way but need what a test does not have.
    """

    def __init__(
        self,
        nodes: Mapping[str, Node],
        info: Mapping[str, Any],
        subject_of: Callable[[str], Subject | None],
        without: tuple[str, ...] = (),
    ) -> None:
        self.graph = Graph()
        self.dropped: set[str] = set()
        self._nodes = nodes
        self._info = info
        self._subject_of = subject_of
        self._without = without
        self._made: dict[str, Link] = {}
        self._subject: Subject | None = None

    def build(self) -> list[Link]:
        """Add every sampler whose models are ours; returns a link to the report of each."""
        reports = []
        for node in self._nodes.values():
            files = self.files(node) if node.active and node.type in SAMPLERS else []
            subjects = [self._subject_of(file) for file in files]
            if subjects and None not in subjects:
                self._subject = subjects[0]
                latent = self._node(node.path)
                saved(self.graph, latent, "template")
                reports.append(self.graph.add("OutboardReport", latent=latent))
        return reports

    def files(self, node: Node) -> list[str]:
        """The files whose MODELs reach `node`."""
        return [self.widgets(found)["unet_name"] for found in self.upstream(node) if found.type == LOADER]

    def upstream(self, node: Node) -> Iterator[Node]:
        """`node`, and those that its MODEL and GUIDER come from."""
        yield node
        for name, source in node.inputs.items():
            if name in ("model", "guider", "on_true", "on_false") or name.startswith("model"):
                yield from self.upstream(self._nodes[source.node])

    def _node(self, path: str) -> Link:
        if path not in self._made:
            node = self._nodes[path]
            given = self._inputs(node)
            self._made[path] = self.graph.add(node.type, **given)
        return self._made[path]

    def _inputs(self, node: Node) -> dict[str, Any]:
        given: dict[str, Any] = {}
        widgets = self.widgets(node)
        for name, kind, required in self._declared(node.type):
            value = self._input(node, name, node_type(kind, node), required)
            if value is None:
                value = widgets.get(name)
            if value is not None:
                given[name] = value
        return given | _shortened(node.type, given)

    def _input(self, node: Node, name: str, kind: str, required: bool) -> Any:
        """What to give to one input: a link, or None for its widget."""
        source = node.inputs.get(name)
        if kind in VALUES:
            return self._value(source) if source else None
        if source is None and not required:
            return None
        if kind in KEPT:
            return self._kept(source, kind) if source else None
        if kind == "CONDITIONING":
            return self._text(source)
        if kind == "LATENT":
            return self._latent(source)
        if kind in STAND_INS and required:
            class_type, inputs = STAND_INS[kind]
            return self.graph.add(class_type, **inputs)
        return None

    def _kept(self, source: Source, kind: str) -> Link:
        node = self._nodes[source.node]
        lacking = [
            name for name, wanted, required in self._declared(node.type) if required and self._lacks(wanted)
        ]
        if kind == "MODEL" and (node.type in self._without or lacking):
            self.dropped.add(node.type)
            return self._kept(node.inputs["model"], kind)
        return out(self._node(source.node), source.slot)

    def _lacks(self, kind: str) -> bool:
        return kind not in (*KEPT, *VALUES, *STAND_INS, "CONDITIONING", "LATENT", MATCH)

    def _value(self, source: Source) -> Link | None:
        """A link to a node that computes a value from values alone, None for any other."""
        if not self._pure(source):
            return None
        return out(self._node(source.node), source.slot)

    def _pure(self, source: Source) -> bool:
        node = self._nodes[source.node]
        kinds = [node_type(kind, node) for _, kind, _ in self._declared(node.type)]
        plain = bool(kinds) and all(kind in VALUES for kind in kinds)
        return plain and all(map(self._pure, node.inputs.values()))

    def _text(self, source: Source | None) -> Link:
        node = self._nodes[source.node] if source else None
        if source is not None and node is not None and self._transforms(node):
            return out(self._node(node.path), source.slot)
        if node is not None and any(name in node.inputs for name in ("positive", "conditioning")):
            self.dropped.add(node.type)
        key = f"text {source}"
        if key not in self._made:
            self._made[key] = self._of().text(self.graph, 1 + len(self._made))
        return self._made[key]

    def _transforms(self, node: Node) -> bool:
        """Whether a node changes text with nothing but text, latents and values."""
        declared = self._declared(node.type)
        kinds = {kind for name, kind, required in declared if required or name in node.inputs}
        return "CONDITIONING" in kinds and kinds <= {"CONDITIONING", "LATENT", *VALUES}

    def _latent(self, source: Source | None) -> Link:
        node = self._nodes[source.node] if source else None
        if source is not None and node is not None and node.type in SAMPLERS and node.active:
            return out(self._node(node.path), source.slot)
        key = f"latent {source}"
        if key not in self._made:
            empty = node is None or node.type.startswith("Empty") or "VAEEncode" not in node.type
            self._made[key] = self._of().latent(self.graph, seed=0 if empty else 1 + len(self._made))
        return self._made[key]

    def _of(self) -> Subject:
        assert self._subject is not None
        return self._subject

    def _declared(self, class_type: str) -> list[tuple[str, str, bool]]:
        """Name, type and need of each input."""
        groups = self._info.get(class_type, {}).get("input", {})
        return [
            (name, "COMBO" if isinstance(kind, list) else str(kind), group == "required")
            for group in ("required", "optional")
            for name, (kind, *_) in groups.get(group, {}).items()
        ]

    def widgets(self, node: Node) -> dict[str, Any]:
        if isinstance(node.widgets, dict):
            return dict(node.widgets)
        values = list(node.widgets)
        found: dict[str, Any] = {}
        for name, kind, _ in self._declared(node.type):
            if kind in VALUES and values:
                found[name] = values.pop(0)
                if values and name in ("seed", "noise_seed", "value") and values[0] in AFTER_GENERATE:
                    values.pop(0)
        return found


def node_type(kind: str, node: Node) -> str:
    """The type of an input; one that matches whatever it is given has that of the node's output."""
    return node.outputs[0] if kind == MATCH else kind


def _shortened(class_type: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The few steps a test takes; an advanced sampler's first half ends where its second begins."""
    short: dict[str, Any] = {"steps": STEPS} if "steps" in given else {}
    if class_type == "KSamplerAdvanced":
        first = given["return_with_leftover_noise"] == "enable"
        ends = (0, STEPS // 2) if first else (STEPS // 2, 10000)
        short |= dict(zip(("start_at_step", "end_at_step"), ends, strict=True))
    return short
