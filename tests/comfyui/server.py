"""A real ComfyUI server in a folder of its own, spoken to over HTTP."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from comfyui import versions

START_TIMEOUT = 120.0
PROMPT_TIMEOUT = 120.0


@dataclass(frozen=True)
class Outcome:
    """What became of a prompt: its outputs by node, and the error that ended it."""

    id: str
    outputs: dict[str, Any]
    error: dict[str, Any] | None
    interrupted: bool = False

    def text(self, node: str) -> str:
        return str(self.outputs[node]["text"][0])


@dataclass
class ComfyServer:
    """One process. `base` holds models, custom_nodes, output and user; `extra` are further options."""

    tree: Path
    python: Path
    base: Path
    environment: dict[str, str]
    extra: list[str] = field(default_factory=list)
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.base / "comfyui.log"

    def start(self) -> None:
        """Start and wait until it answers; the log's end is in the error when it does not."""
        self.port = free_port()
        command = [str(self.python), "main.py", "--cpu", "--base-directory", str(self.base)]
        command += ["--port", str(self.port), "--disable-auto-launch", "--disable-api-nodes", *self.extra]
        command += ["--database-url", "sqlite:///:memory:"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=self.tree, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_TIMEOUT
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"ComfyUI did not start:\n{self.log.read_text()[-4000:]}")
            time.sleep(0.2)

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def get(self, path: str) -> Any:
        return self._call(path)

    def post(self, path: str, body: Any) -> Any:
        return self._call(path, json.dumps(body).encode())

    def submit(self, nodes: dict[str, Any], **extra_data: Any) -> str:
        """Queue a prompt; in an old version, leave the test if it lacks one of the nodes."""
        body = {"prompt": nodes, "client_id": "tests", "extra_data": extra_data}
        try:
            answer = self.post("/prompt", body)
        except RuntimeError as error:
            absent = re.search(r"node (\S+) does not exist", str(error))
            if absent and versions.first().old:
                pytest.skip(f"this ComfyUI has no {absent[1]}")
            raise
        return str(answer["prompt_id"])

    def wait(self, prompt: str, timeout: float = PROMPT_TIMEOUT) -> Outcome:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            found = self.get(f"/history/{prompt}").get(prompt)
            if found is not None:
                return outcome(prompt, found)
            time.sleep(0.02)
        raise TimeoutError(f"prompt {prompt} has not ended in {timeout} s:\n{self.log.read_text()[-4000:]}")

    def run(self, nodes: dict[str, Any], **extra_data: Any) -> Outcome:
        return self.wait(self.submit(nodes, **extra_data))

    def latent_path(self, done: Outcome, node: str) -> Path:
        place = done.outputs[node]["latents"][0]
        return self.base / "output" / str(place["subfolder"]) / str(place["filename"])

    def _call(self, path: str, body: bytes | None = None) -> Any:
        """The JSON that ComfyUI answers, None for an empty answer; RuntimeError with what it refused."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {"Content-Type": "application/json"} if body is not None else {}
        try:
            connection.request("GET" if body is None else "POST", path, body, headers)
            answer = connection.getresponse()
            raw = answer.read()
        finally:
            connection.close()
        if answer.status >= 400:
            raise RuntimeError(f"{path}: {answer.status} {raw.decode()[:2000]}")
        return json.loads(raw) if raw else None

    def _answers(self) -> bool:
        try:
            self.get("/system_stats")
        except (OSError, ValueError):
            return False
        return True


def outcome(prompt: str, found: dict[str, Any]) -> Outcome:
    messages = dict(found["status"]["messages"])
    return Outcome(
        prompt, found["outputs"], messages.get("execution_error"), "execution_interrupted" in messages
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def environment(runtime: Path, engine_python: str) -> dict[str, str]:
    """The variables of a server whose engine runs in `engine_python`, on the CPU, one thread each."""
    ours = {
        "OUTBOARD_PYTHON": engine_python,
        "OUTBOARD_RUNTIME_DIR": str(runtime),
        "OUTBOARD_DEVICE": "cpu",
        "OUTBOARD_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OUTBOARD_", "PYTHON"))}
    return {**kept, **ours}
