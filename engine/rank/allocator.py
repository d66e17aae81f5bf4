"""The C allocator on the CPU: buffers of one step are kept for the next instead of faulted in again.

glibc gives freed memory at the end of its heap back to the system, so that every step of a network pays for
the same pages once more, zeroed and mapped one by one. What is kept is returned by `trim`.
"""

from __future__ import annotations

import ctypes
import sys

# Parameters of mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
#: Bytes that may lie unused at the end of the heap.
KEPT = 1 << 30
#: Buffers from this size on are mapped one by one and given back when freed; the most that glibc allows.
MAPPED = 32 << 20


def keep_buffers() -> bool:
    """Keep freed memory in this process; False where the C library is another than glibc."""
    library = _glibc()
    if library is None:
        return False
    return bool(library.mallopt(_TRIM_THRESHOLD, KEPT) and library.mallopt(_MMAP_THRESHOLD, MAPPED))


def trim() -> None:
    """Give all unused memory back to the system, where there is a way to ask for it."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "gnu_get_libc_version") else None
