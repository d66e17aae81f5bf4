"""Workflows as the page saves them: nodes in subgraphs, bypassed and muted ones, and their links."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

OUTSIDE_IN, INSIDE_OUT = -10, -20
ACTIVE, MUTED, BYPASSED = 0, 2, 4


@dataclass(frozen=True)
class Source:
    """One output of a node, by the node's path through the subgraphs ("57:28")."""

    node: str
    slot: int


@dataclass(frozen=True, eq=False)
class Node:
    """A node that is none of subgraph, reroute and the like, with what feeds each of its inputs."""

    path: str
    type: str
    inputs: Mapping[str, Source]
    outputs: tuple[str, ...]
    widgets: Any
    active: bool


@dataclass(frozen=True, eq=False)
class Scope:
    """The nodes and links of one level: the workflow's own, or those inside one use of a subgraph."""

    nodes: Mapping[int, dict[str, Any]]
    links: Mapping[int, tuple[int, int, int, int]]
    definitions: Mapping[str, dict[str, Any]]
    prefix: str = ""
    parent: Scope | None = None
    instance: dict[str, Any] = field(default_factory=dict)
    active: bool = True

    def inside(self, instance: dict[str, Any]) -> Scope:
        body = self.definitions[instance["type"]]
        prefix = f"{self.prefix}{instance['id']}:"
        active = self.active and instance.get("mode", ACTIVE) == ACTIVE
        return Scope(*_contents(body), self.definitions, prefix, self, instance, active)

    def source(self, link: int | None) -> Source | None:
        """What feeds `link`, seen through subgraphs, reroutes and bypassed nodes; None for nothing."""
        if link is None or link not in self.links:
            return None
        origin, slot, _, _ = self.links[link]
        if origin == OUTSIDE_IN:
            return self._from_outside(slot)
        node = self.nodes[origin]
        mode = node.get("mode", ACTIVE)
        if mode == MUTED:
            return None
        if mode == BYPASSED or node["type"] == "Reroute":
            return self.source(_passed_through(node, slot))
        if node["type"] in self.definitions:
            return self.inside(node).result(slot)
        return Source(f"{self.prefix}{origin}", slot)

    def result(self, slot: int) -> Source | None:
        """What feeds the output `slot` of this subgraph."""
        found = (link for link, ends in self.links.items() if ends[2] == INSIDE_OUT and ends[3] == slot)
        return self.source(next(found, None))

    def _from_outside(self, slot: int) -> Source | None:
        assert self.parent is not None
        name = self.definitions[self.instance["type"]]["inputs"][slot]["name"]
        links = [given.get("link") for given in self.instance["inputs"] if given["name"] == name]
        return self.parent.source(links[0]) if links else None


def flatten(workflow: dict[str, Any]) -> dict[str, Node]:
    """Every node of `workflow` by its path."""
    subgraphs = workflow.get("definitions", {}).get("subgraphs", [])
    top = Scope(*_contents(workflow), {body["id"]: body for body in subgraphs})
    return {node.path: node for node in _walk(top)}


def _walk(scope: Scope) -> Iterator[Node]:
    for number, node in scope.nodes.items():
        if node["type"] in scope.definitions:
            yield from _walk(scope.inside(node))
            continue
        fed = {given["name"]: scope.source(given.get("link")) for given in node.get("inputs", [])}
        yield Node(
            path=f"{scope.prefix}{number}",
            type=node["type"],
            inputs={name: source for name, source in fed.items() if source is not None},
            outputs=tuple(str(made["type"]) for made in node.get("outputs") or ()),
            widgets=node.get("widgets_values", []),
            active=scope.active and node.get("mode", ACTIVE) == ACTIVE,
        )


def _contents(body: dict[str, Any]) -> tuple[dict[int, Any], dict[int, tuple[int, int, int, int]]]:
    return {int(node["id"]): node for node in body["nodes"]}, dict(map(_ends, body["links"]))


def _ends(link: Any) -> tuple[int, tuple[int, int, int, int]]:
    """A link's id, and its ends; the workflow's own are lists, those of subgraphs objects."""
    if isinstance(link, list):
        return link[0], (link[1], link[2], link[3], link[4])
    keys = ("origin_id", "origin_slot", "target_id", "target_slot")
    origin, origin_slot, target, target_slot = (int(link[key]) for key in keys)
    return link["id"], (origin, origin_slot, target, target_slot)


def _passed_through(node: dict[str, Any], slot: int) -> int | None:
    """The link that a bypassed node hands on at `slot`: that of its first input of the same type."""
    made = node["outputs"][slot]["type"]
    links = [given.get("link") for given in node.get("inputs", []) if given["type"] in (made, "*")]
    return links[0] if links else None
