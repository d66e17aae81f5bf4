"""The protocol's own version, apart from the package's; SPEC.md states the same number."""

from __future__ import annotations

PROTOCOL_VERSION = "2.0"


def compatible(mine: str, theirs: str) -> bool:
    """Peers understand each other when their major versions agree; minor ones only add fields and types."""
    return mine == theirs or mine.split(".", 1)[0] == theirs.split(".", 1)[0]
