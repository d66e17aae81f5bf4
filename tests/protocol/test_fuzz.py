"""Whatever the bytes, decoding gives an Envelope or a ProtocolError, and peeking no less."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outboard.protocol.codec import Envelope, decode, encode, peek
from outboard.protocol.errors import ProtocolError
from outboard.protocol.messages import MESSAGES
from outboard.protocol.messages.client import PutBlob
from outboard.protocol.shm import Segment, Segments, session_prefix
from outboard.protocol.transport import SegmentOpener
from wire_samples import DIGEST, SAMPLES, same, tensor

VALID = [[bytes(frame) for frame in encode(Envelope(sample, "r1", "s1"))] for sample in SAMPLES]
NAME = session_prefix("e1", "s1") + "1"

HOSTILE: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 7, 2**31, 2**63 - 1, 2**64 - 1, -(2**63), 0.5, float("nan"), float("inf")),
    *("", "x", "x" * 70_000, "../../etc/passwd", "/dev/shm/x", "a\0b", "C:\\x", "\u202e", NAME, NAME + "/.."),
    *(b"", b"\x80\x04.", msgpack.ExtType(1, b"x"), msgpack.Timestamp(0), [], {}, [[]], [-1], [2**63] * 3),
    *({"$tensor": 0}, {"$tensor": 9}, {"$blob": "z"}, {"$tensor": 0, "$blob": DIGEST}, {"$x": 1}),
    *({"dtype": "uint8", "shape": [64], "segment": NAME, "offset": offset} for offset in (0, 63, -64, 2**62)),
    *(
        {"dtype": "uint8", "shape": [shape], "segment": NAME, "offset": 0}
        for shape in (4096, 4097, -1, 2**60)
    ),
    *({"dtype": "uint8", "shape": [1], "frame": frame} for frame in (0, 1, -1, 99, None, "1")),
    *("float32", "bfloat16", "float7", "telepathy", "outboard-e1-../x-1", *MESSAGES),
)

#: Mutations per drawn seed: drawing costs far more than decoding. In all 23,100 cases.
BATCH = 40

fuzz = settings(
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def opener(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SegmentOpener]:
    """An engine's opener beside one real segment of 4096 bytes."""
    root: Path = tmp_path_factory.mktemp("shm")
    segment = Segment.create(root / NAME, 4096)
    yield Segments("e1", root=root).opener("s1")
    segment.unlink()


def survives(frames: list[bytes], opener: SegmentOpener) -> None:
    try:
        peek(frames)
        envelope = decode(frames, opener=opener)
    except ProtocolError as error:
        message = str(error)
    else:
        message = ""
        unchanged(envelope)
    assert len(message) < 1000, "an error echoes what was sent"


def unchanged(envelope: Envelope) -> None:
    again = decode(encode(envelope))
    assert same(again.message, envelope.message)


@settings(fuzz, max_examples=1000)
@given(frames=st.lists(st.binary(max_size=200), max_size=4))
def test_random_frames(frames: list[bytes], opener: SegmentOpener) -> None:
    survives(frames, opener)


json_like = st.recursive(
    st.none() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=9) | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@settings(fuzz, max_examples=500)
@given(
    kind=st.sampled_from(sorted(MESSAGES)), body=json_like, tensors=json_like, frame=st.binary(max_size=16)
)
def test_random_bodies(kind: str, body: Any, tensors: Any, frame: bytes, opener: SegmentOpener) -> None:
    top = {"outboard": "2.0", "type": kind, "id": "r1", "session": "s1", "body": body, "tensors": tensors}
    survives([msgpack.packb(top), frame], opener)


def flip(frames: list[bytes], random: Random) -> None:
    """Change, cut, double or insert bytes of one frame; the header is hit most often."""
    index = 0 if random.random() < 0.8 else random.randrange(len(frames))
    data = bytearray(frames[index])
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(data) + 1)
        act = random.randrange(4)
        if act == 0 and at < len(data):
            data[at] = random.randrange(256)
        elif act == 1:
            del data[at : at + random.randint(1, 9)]
        elif act == 2:
            data[at:at] = data[at : at + random.randint(1, 9)]
        else:
            data[at:at] = random.randbytes(random.randint(1, 9))
    frames[index] = bytes(data)


def shuffle(frames: list[bytes], random: Random) -> None:
    """Lose, repeat, swap or grow whole frames."""
    act, at = random.randrange(4), random.randrange(len(frames))
    if act == 0:
        del frames[at]
    elif act == 1:
        frames.insert(at, frames[random.randrange(len(frames))])
    elif act == 2:
        random.shuffle(frames)
    else:
        frames[at] += bytes(random.randint(1, 2_000_000 if random.random() < 0.01 else 64))


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (container, key) of everything inside `value`."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(pairs):
        yield value, key
        yield from places(item)


def poison(frames: list[bytes], random: Random) -> None:
    """Put hostile values where the header has good ones, or beside them."""
    top = msgpack.unpackb(frames[0])
    for _ in range(random.randint(1, 3)):
        spots = list(places(top))
        if not spots:
            break
        container, key = random.choice(spots)
        value = deepcopy(random.choice(HOSTILE))
        if isinstance(container, list) and random.random() < 0.3:
            container.append(value)
        elif isinstance(container, dict) and random.random() < 0.2:
            container[random.choice(["$tensor", "$blob", "segment", "offset", "frame", "x"])] = value
        elif isinstance(container, dict) and random.random() < 0.2:
            del container[key]
        else:
            container[key] = value
    frames[0] = msgpack.packb(top)


@pytest.mark.parametrize(("mutate", "examples"), [(flip, 240), (shuffle, 60), (poison, 240)])
def test_mutated_messages(
    mutate: Callable[[list[bytes], Random], None], examples: int, opener: SegmentOpener
) -> None:
    @settings(fuzz, max_examples=examples)
    @given(seed=st.integers(0, 2**64 - 1))
    def check(seed: int) -> None:
        random = Random(seed)
        for _ in range(BATCH):
            frames = list(random.choice(VALID))
            mutate(frames, random)
            survives(frames, opener)

    check()


def test_the_fuzz_reaches_shared_memory_and_its_bounds(opener: SegmentOpener) -> None:
    top = msgpack.unpackb(encode(Envelope(PutBlob(digest=DIGEST, tensor=tensor(1)), "r1", "s1"))[0])
    top["tensors"] = [{"dtype": "uint8", "shape": [4096], "segment": NAME, "offset": 0}]
    assert decode([msgpack.packb(top)], opener=opener).id == "r1"
    top["tensors"][0]["shape"] = [4097]
    with pytest.raises(ProtocolError, match="4096 bytes"):
        decode([msgpack.packb(top)], opener=opener)
