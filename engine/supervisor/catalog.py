"""The catalog: from what a client calls a file to the one below the engine's roots that it is."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from ...protocol.errors import CheckpointError, ModelError, ModelNotFoundError, UnsupportedModelError
from ...protocol.messages.adapters import LoraFile
from ...protocol.messages.common import ModelRef
from ..models.header import read_header

#: Kind of root -> the kinds of files it is searched for.
SUFFIXES: Mapping[str, tuple[str, ...]] = {
    "diffusion_models": (".safetensors", ".gguf"),
    "loras": (".safetensors",),
}
FileRef = ModelRef | LoraFile


class Catalog:
    """Model and LoRA files below `roots`. A symlink inside a root is its owner's choice and is followed."""

    def __init__(self, roots: Mapping[str, tuple[Path, ...]]) -> None:
        self._roots = roots
        self._digests: dict[tuple[Path, int, int], str] = {}

    def find(self, model: FileRef) -> Path:
        """The file that has the name, the size and the header digest of `model`.

        Raises UnsupportedModelError (no kind of file it opens), ModelNotFoundError (no file of that name) or
        CheckpointError (there is one, and it is another or damaged).
        """
        suffixes = SUFFIXES[model.folder]
        if not model.name.endswith(suffixes):
            kinds = " or ".join(suffixes)
            raise UnsupportedModelError(
                f"{model.name} is not a {kinds} file, and the engine opens no other kind in {model.folder}.",
                hint=f"Use its {kinds} file.",
            )
        candidates = list(self._candidates(model))
        if not candidates:
            raise self._not_found(model)
        differences = [(path, self._difference(path, model)) for path in candidates]
        for path, difference in differences:
            if difference is None:
                return path
        raise next(difference for _, difference in differences if difference is not None)

    def _candidates(self, model: FileRef) -> Iterator[Path]:
        for root in self._roots.get(model.folder, ()):
            path = Path(os.path.normpath(root / model.name))
            if path.is_relative_to(os.path.normpath(root)) and path.is_file():
                yield path

    def _difference(self, path: Path, model: FileRef) -> ModelError | None:
        size = path.stat().st_size
        if size != model.size:
            return _differs(path, model, f"{size} bytes there, {model.size} bytes at the client")
        try:
            digest = self._digest(path)
        except ModelError as error:
            return error
        if digest != model.digest:
            return _differs(path, model, f"header digest {digest} there, {model.digest} at the client")
        return None

    def _digest(self, path: Path) -> str:
        found = path.stat()
        key = (path, found.st_size, found.st_mtime_ns)
        if key not in self._digests:
            self._digests[key] = read_header(path).digest
        return self._digests[key]

    def _not_found(self, model: FileRef) -> ModelNotFoundError:
        roots = ", ".join(str(root) for root in self._roots.get(model.folder, ()))
        return ModelNotFoundError(
            f"The engine has no {model.folder} file {model.name}.",
            hint=f"It looks below {roots or 'no folder at all'}; add --root {model.folder}=<folder>.",
        )


def _differs(path: Path, model: FileRef, how: str) -> CheckpointError:
    return CheckpointError(
        f"The engine's file for {model.name} ({path}) differs from the client's: {how}.",
        hint="Make both sides see the same file: copy it again, or rename one of them.",
    )
