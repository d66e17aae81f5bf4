"""What another interpreter can import, and which device its torch sees: asked in a process of its own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..protocol.errors import EngineStartError
from .environment import child_environment

#: What an engine's Python must be able to import; the last one is diffusers' own test that torch suits it.
ENGINE_MODULES = (
    "torch", "diffusers", "transformers", "safetensors", "numpy", "zmq", "msgpack", "pydantic",
    "diffusers.models.transformers",
)  # fmt: skip
TIMEOUT = 300.0

#: Runs in the other interpreter. The current folder must not lend it modules.
_SCRIPT = """
import sys
del sys.path[0]
import importlib, json, platform
found = {"python": platform.python_version(), "versions": {}, "missing": {}, "devices": []}
for name in sys.argv[1:]:
    try:
        module = importlib.import_module(name)
    except (ImportError, OSError) as error:
        found["missing"][name] = str(error)
    else:
        found["versions"][name] = str(getattr(module, "__version__", ""))
torch = sys.modules.get("torch")
if torch is not None and torch.cuda.is_available():
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        found["devices"].append([torch.cuda.get_device_name(index), free, total])
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Probe:
    """`versions` and `missing` (with the reason) by module; `devices` are (name, free bytes, total bytes)."""

    python: str
    versions: dict[str, str]
    missing: dict[str, str]
    devices: list[tuple[str, int, int]]


def probe(python: Path, modules: Sequence[str], *, require: bool = True) -> Probe:
    """Import `modules` in `python`.

    Raises EngineStartError when it does not answer, or, unless `require` is false, when a module is missing.
    """
    answer = _ask(python, modules)
    devices = [(str(name), int(free), int(total)) for name, free, total in answer["devices"]]
    found = Probe(answer["python"], answer["versions"], answer["missing"], devices)
    if require and found.missing:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in found.missing.items())
        raise EngineStartError(
            f"{python} cannot import everything ({reasons}).", hint="Run `outboard setup`."
        )
    return found


def _ask(python: Path, modules: Sequence[str]) -> dict[str, Any]:
    command = [str(python), "-c", _SCRIPT, *modules]
    try:
        run = subprocess.run(
            command,
            env=child_environment(other_python=True),
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=True,
        )
    except subprocess.CalledProcessError as error:
        reason = (error.stderr.strip().splitlines() or [f"status {error.returncode}"])[-1]
        raise EngineStartError(f"{python} failed: {reason}", hint="Run `outboard setup`.") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineStartError(
            f"{python} does not answer ({error}).", hint="Check OUTBOARD_PYTHON."
        ) from error
    answer: dict[str, Any] = json.loads(run.stdout.strip().splitlines()[-1])
    return answer
