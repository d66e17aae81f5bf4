"""Where a value in a graph comes from: the nodes upstream of a node, in the prompt as ComfyUI got it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from server import PromptServer

Prompt = Mapping[str, Any]


def sources(prompt: Prompt, node: str) -> list[str]:
    """The nodes whose outputs are linked to inputs of `node`."""
    inputs = prompt.get(node, {}).get("inputs", {})
    return [str(value[0]) for value in inputs.values() if isinstance(value, list) and len(value) == 2]


def upstream(prompt: Prompt, node: str) -> Iterator[str]:
    """Every node that `node` depends on, each once, the nearest first."""
    seen, level = {node}, [node]
    while level:
        found = dict.fromkeys(source for name in level for source in sources(prompt, name))
        level = [source for source in found if source not in seen]
        seen.update(level)
        yield from level


def signature(prompt: Prompt, node: str) -> str:
    """A text that is equal for equal work: `node` and all it depends on; "" for a node not in `prompt`."""
    if node not in prompt:
        return ""
    names = [node, *upstream(prompt, node)]
    parts = {
        name: [prompt[name].get(key) for key in ("class_type", "inputs")] for name in names if name in prompt
    }
    return json.dumps(parts, sort_keys=True)


def running_prompt() -> Prompt:
    """The prompt that is executing, {} outside of one."""
    running = list(PromptServer.instance.prompt_queue.currently_running.values())
    prompt: Prompt = running[0][2] if running else {}
    return prompt
