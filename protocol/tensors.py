"""What a tensor is called by its content."""

from __future__ import annotations

from hashlib import blake2b

from .transport import Frame
from .values import WireTensor


def digest(tensor: WireTensor) -> str:
    """BLAKE2b-128 over "dtype:len,len,...:" in ASCII and then the raw bytes, in lower-case hexadecimal."""
    shape = ",".join(str(length) for length in tensor.shape)
    state = blake2b(f"{tensor.dtype}:{shape}:".encode("ascii"), digest_size=16)
    state.update(flat(tensor.data))
    return state.hexdigest()


def flat(data: memoryview) -> Frame:
    """`data` as one row of bytes, without a copy."""
    if data.nbytes == 0:
        return b""
    return data if data.format == "B" and data.ndim == 1 else data.cast("B")
