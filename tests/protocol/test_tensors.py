"""The digest is the one SPEC.md defines, and tells tensors apart."""

from __future__ import annotations

from hashlib import blake2b

from outboard.protocol.tensors import digest
from outboard.protocol.values import WireTensor

BYTES = memoryview(bytes(range(24)))


def test_digest_is_blake2b_over_dtype_shape_and_bytes() -> None:
    expected = blake2b(b"float32:2,3:" + BYTES, digest_size=16).hexdigest()
    assert digest(WireTensor("float32", (2, 3), BYTES)) == expected
    assert (
        digest(WireTensor("uint8", (), memoryview(b"x"))) == blake2b(b"uint8::x", digest_size=16).hexdigest()
    )


def test_digest_differs_by_dtype_shape_and_content() -> None:
    names = {
        digest(WireTensor("float32", (2, 3), BYTES)),
        digest(WireTensor("int32", (2, 3), BYTES)),
        digest(WireTensor("float32", (3, 2), BYTES)),
        digest(WireTensor("float32", (6,), BYTES)),
        digest(WireTensor("float32", (6,), memoryview(bytes(24)))),
    }
    assert len(names) == 5
