"""What one checkpoint offers to a family: its tensors under the family's own key names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from ...protocol.errors import CheckpointError
from .header import TensorInfo


class Contents(Mapping[str, TensorInfo]):
    """The tensors of `path` by canonical key; questions about a missing key end in a CheckpointError.

    `metadata` is the text that the file carries beside its tensors.
    """

    def __init__(
        self, path: Path, tensors: Mapping[str, TensorInfo], metadata: Mapping[str, str] | None = None
    ) -> None:
        self.path = path
        self.metadata = metadata or {}
        self._tensors = tensors

    def __getitem__(self, key: str) -> TensorInfo:
        return self._tensors[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def has(self, prefix: str) -> bool:
        """Whether some key is `prefix` or starts with it."""
        return any(key.startswith(prefix) for key in self._tensors)

    def shape(self, key: str, dims: int) -> tuple[int, ...]:
        """Shape of `key`, which must exist and have `dims` dimensions."""
        if key not in self._tensors:
            raise CheckpointError(f"{self.path}: tensor {key!r} is missing.", hint="The file is incomplete.")
        shape = self._tensors[key].shape
        if len(shape) != dims:
            raise CheckpointError(
                f"{self.path}: tensor {key!r} has shape {list(shape)}, expected {dims} dimensions."
            )
        return shape

    def count(self, prefix: str) -> int:
        """Number of different block indices N among the keys `<prefix>N.<rest>`."""
        return len({key[len(prefix) :].split(".", 1)[0] for key in self._tensors if key.startswith(prefix)})
