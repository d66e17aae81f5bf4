"""The other side of the step benchmark: ComfyUI's module in a process of its own, with ComfyUI's Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...protocol.errors import InternalError

SCRIPT = Path(__file__).with_name("stock.py")


def find_comfyui(given: Path | None) -> Path | None:
    """The folder of a ComfyUI: `given`, else $COMFYUI_PATH, else ~/ComfyUI; None when it holds none."""
    folder = given or Path(os.environ.get("COMFYUI_PATH", Path.home() / "ComfyUI"))
    return folder.absolute() if (folder / "comfy" / "ops.py").is_file() else None


def find_python(given: Path | None, comfyui: Path) -> Path:
    """The Python of a ComfyUI: `given`, else the one in its own environment, else this one."""
    own = comfyui / ".venv" / "bin" / "python"
    return given or (own if own.exists() else Path(sys.executable))


class Comfyui:
    """A running `stock.py`."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log

    def ask(self, do: str, **request: Any) -> Mapping[str, Any]:
        """Send one request and wait for its answer. Raises InternalError when the process ends instead."""
        assert self._process.stdin and self._process.stdout
        try:
            self._process.stdin.write(json.dumps({"do": do} | request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            said = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise InternalError(
                f"ComfyUI's process ended at {do!r}: {said[-1] if said else 'without a word'}.",
                hint="Give ComfyUI's own Python with --comfyui-python.",
                details={"log": "\n".join(said[-40:])},
            )
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def running(folder: Path, python: Path, log: Path) -> Iterator[Comfyui]:
    """ComfyUI of `folder` under `python`, on the CPU with one thread; what it prints goes to `log`."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with log.open("w", encoding="utf-8") as errors:
        process = subprocess.Popen(
            [str(python), str(SCRIPT), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
        )
    with process:
        try:
            yield Comfyui(process, log)
        finally:
            process.kill()
