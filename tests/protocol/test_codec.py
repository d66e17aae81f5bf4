"""Messages survive the wire, and everything that is no message is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import pytest

import wire_samples
from outboard.protocol.codec import Envelope, Peek, decode, encode, peek
from outboard.protocol.errors import LimitError, ProtocolError, VersionError
from outboard.protocol.limits import WireLimits
from outboard.protocol.messages import MESSAGES, Message
from outboard.protocol.messages.client import Predict, PutBlob
from outboard.protocol.messages.control import Ping
from outboard.protocol.messages.engine import Error
from outboard.protocol.transport import Channel, Listener
from outboard.protocol.values import WireTensor
from wire_samples import DIGEST, SAMPLES, same, tensor


def header(**changes: Any) -> bytes:
    top = {"outboard": "2.0", "type": "ping", "id": "c1", "session": "s", "body": {}, "tensors": []}
    return msgpack.packb({**top, **changes})  # type: ignore[no-any-return]


def put(entry: object, *frames: bytes, body: object = None) -> list[bytes]:
    body = {"digest": DIGEST, "tensor": {"$tensor": 0}} if body is None else body
    return [header(type="put_blob", body=body, tensors=[entry]), *frames]


def test_there_is_a_sample_of_every_message() -> None:
    assert {type(sample) for sample in SAMPLES} == set(MESSAGES.values())


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: message.type)
def test_every_message_arrives_as_it_was_sent(
    message: Message, listen: Callable[[str], Listener], connect: Callable[[Listener], Channel]
) -> None:
    listener = listen("x")
    channel = connect(listener)
    channel.send(encode(Envelope(message, "r1", "s1")))
    peer, frames = listener.recv(5.0) or pytest.fail("nothing arrived")
    assert peek(frames) == Peek(message.type, "r1", "s1", "2.0")
    assert listener.send(peer, frames)
    answer = decode(channel.recv(5.0) or [])
    assert (answer.id, answer.session) == ("r1", "s1")
    assert same(answer.message, message)
    channel.close()
    listener.close()


def test_encoding_and_decoding_share_memory_with_the_tensor() -> None:
    sent = tensor(1000)
    frames = encode(Envelope(PutBlob(digest=DIGEST, tensor=sent), "r1"))
    sent.data[0] = 77
    message = decode(frames).message
    assert isinstance(message, PutBlob)
    assert message.tensor.data[0] == 77
    sent.data[1] = 78
    assert message.tensor.data[1] == 78


def test_a_tensor_used_twice_travels_once() -> None:
    shared = tensor(4)
    message = Predict(
        run="r", model=wire_samples.MODEL, x=shared, timestep=shared, conditioning={"a": [shared, shared]}
    )
    frames = encode(Envelope(message, "r1"))
    assert len(frames) == 2
    again = decode(frames).message
    assert isinstance(again, Predict)
    assert again.x is again.timestep is again.conditioning["a"][1]


def test_unknown_fields_and_header_keys_are_tolerated() -> None:
    assert decode([header(body={"newer": [1, {"a": None}]}, newer="x")]).message == Ping()


def test_another_major_version_is_a_version_error_but_can_be_peeked() -> None:
    frames = [header(outboard="3.3")]
    assert peek(frames).version == "3.3"
    with pytest.raises(VersionError, match=r"3\.3"):
        decode(frames)
    assert decode([header(outboard="2.9")]).message == Ping()


def test_an_unknown_type_can_be_peeked_and_answered() -> None:
    frames = [header(type="telepathy")]
    assert peek(frames).id == "c1"
    with pytest.raises(ProtocolError, match="telepathy"):
        decode(frames)


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b""],
        [b"\xc1"],
        [b"\x80"],
        [b"GET / HTTP/1.1\r\n\r\n"],
        [b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x07builtins\x94."],
        [header() + b"\x00"],
        [header()[:-1]],
        [msgpack.packb([1])],
        [header(), b"frame of nobody"],
        [header(type=7)],
        [header(type="a b")],
        [header(type="ping\0")],
        [header(id="../x")],
        [header(id="i" * 129)],
        [header(session="s\n")],
        [header(outboard="1")],
        [header(outboard="2.0.0")],
        [header(body=[])],
        [header(body=None)],
        [header(tensors={})],
        [header(body={1: 2})],
        [header(body={"x": b"bytes"})],
        [header(body={"x": msgpack.ExtType(4, b"x")})],
        [header(body={"x": msgpack.Timestamp(1, 2)})],
        [header(body={"x": float("nan")})],
        [header(body={"x": float("inf")})],
        [header(body={"$other": 1})],
        [header(body={"x": [1] * 20_000})],
        [header(body={"x": "y" * 300_000})],
        [header(body={"x": {"$tensor": 0}})],
        [header(body={"x": {"$tensor": True}})],
        [header(body={"x": {"$tensor": -1}})],
        [header(body={"x": {"$blob": "short"}})],
        [header(body={"x": {"$blob": DIGEST, "and": 1}})],
        [b"\x82\xa1a\x01\xa1a\x02"],
        [b"\xdf\xff\xff\xff\xff"],
        [b"\xdd\xff\xff\xff\xff"],
        [b"\x91" * 5000],
        [b"\x81\xa1a" * 5000],
    ],
)
def test_what_is_no_message_is_refused(frames: list[bytes]) -> None:
    with pytest.raises(ProtocolError):
        decode(frames)


GOOD = {"dtype": "uint8", "shape": [4], "frame": 1}


@pytest.mark.parametrize(
    ("entry", "frames"),
    [
        (GOOD, []),
        (GOOD, [b"123"]),
        (GOOD, [b"12345"]),
        (GOOD, [b"1234", b"more"]),
        ({**GOOD, "dtype": "float128"}, [b"1234"]),
        ({**GOOD, "dtype": ["uint8"]}, [b"1234"]),
        ({**GOOD, "dtype": "object"}, [b"1234"]),
        ({**GOOD, "shape": [-4]}, [b"1234"]),
        ({**GOOD, "shape": [-2, -2]}, [b"1234"]),
        ({**GOOD, "shape": [2**63, 2**63, 2**63]}, [b"1234"]),
        ({**GOOD, "shape": [2**62, 0]}, [b"1234"]),
        ({**GOOD, "shape": [4.0]}, [b"1234"]),
        ({**GOOD, "shape": [True, 4]}, [b"1234"]),
        ({**GOOD, "shape": "4"}, [b"1234"]),
        ({**GOOD, "shape": [1] * 8 + [4]}, [b"1234"]),
        ({**GOOD, "frame": 0}, [b"1234"]),
        ({**GOOD, "frame": 2}, [b"1234"]),
        ({**GOOD, "frame": -1}, [b"1234"]),
        ({**GOOD, "frame": "1"}, [b"1234"]),
        ({**GOOD, "segment": "outboard-e1-0123456789abcdef-1", "offset": 0}, [b"1234"]),
        ({"dtype": "uint8", "shape": [4]}, [b"1234"]),
        ({"dtype": "uint8", "shape": [4], "segment": "outboard-e1-0123456789abcdef-1", "offset": 0}, []),
        ([], [b"1234"]),
        (None, [b"1234"]),
    ],
)
def test_a_tensor_that_is_not_as_described_is_refused(entry: object, frames: list[bytes]) -> None:
    with pytest.raises(ProtocolError):
        decode(put(entry, *frames))


def test_a_tensor_without_a_field_is_refused() -> None:
    with pytest.raises(ProtocolError, match="no field"):
        decode([header(tensors=[GOOD]), b"1234"])


def test_two_tensors_never_share_a_frame() -> None:
    body = {"digest": DIGEST, "tensor": {"$tensor": 0}, "more": {"$tensor": 1}}
    with pytest.raises(ProtocolError, match="taken"):
        decode([header(type="put_blob", body=body, tensors=[GOOD, GOOD]), b"1234"])


def test_tensors_may_hold_nan() -> None:
    frames = put({"dtype": "float32", "shape": [1], "frame": 1}, b"\x00\x00\xc0\x7f")
    assert isinstance(decode(frames).message, PutBlob)


def test_a_wrong_field_is_named_and_its_value_is_not_echoed() -> None:
    body = {"digest": "x" * 100_000, "tensor": {"$tensor": 0}}
    with pytest.raises(ProtocolError, match=r"put_blob: digest: ") as caught:
        decode(put(GOOD, b"1234", body=body))
    assert len(str(caught.value)) < 400
    with pytest.raises(ProtocolError, match=r"load: model\.size: "):
        decode([header(type="load", body={"model": {"name": "a", "size": "12", "digest": DIGEST}})])


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../x", "a//x", "C:/x", "C:x", "a\\x", "", ".", "a\0"])
def test_a_model_name_that_leaves_its_root_is_refused(name: str) -> None:
    with pytest.raises(ProtocolError, match="name"):
        decode([header(type="load", body={"model": {"name": name, "size": 1, "digest": DIGEST}})])


def test_limits_are_kept() -> None:
    small = WireLimits(header=200, depth=3, tensors=1, tensor=8, message=12, dimensions=2)
    message = PutBlob(digest=DIGEST, tensor=tensor(2))
    assert decode(encode(Envelope(message, "r", ""), limits=small), limits=small).id == "r"
    with pytest.raises(LimitError):
        decode([header(body={"x": "y" * 200})], limits=small)
    with pytest.raises(LimitError):
        decode([header(body={"a": {"b": {"c": {}}}})], limits=small)
    with pytest.raises(LimitError):
        decode([header(), b"", b""], limits=small)
    with pytest.raises(LimitError):
        decode(put({"dtype": "uint8", "shape": [9], "frame": 1}, b"123456789"), limits=small)
    with pytest.raises(LimitError):
        decode(put({"dtype": "uint8", "shape": [1, 1, 1], "frame": 1}, b"1"), limits=small)


@pytest.mark.parametrize(
    "value",
    [
        object(),
        b"bytes",
        {1: 2},
        {"$tensor": 0},
        float("nan"),
        float("-inf"),
        2**64,
        -(2**63) - 1,
        "\ud800",
        {1, 2},
    ],
)
def test_what_the_wire_does_not_carry_is_not_sent(value: object) -> None:
    message = Predict(
        run="r", model=wire_samples.MODEL, x=tensor(1), timestep=tensor(1), conditioning={"a": [value]}
    )
    with pytest.raises(ProtocolError):
        encode(Envelope(message, "r1"))


def test_what_is_too_large_is_not_sent() -> None:
    deep: Any = {}
    for _ in range(20):
        deep = {"a": deep}
    message = Predict(run="r", model=wire_samples.MODEL, x=tensor(1), timestep=tensor(1), conditioning=deep)
    with pytest.raises(LimitError, match="16 levels"):
        encode(Envelope(message, "r1"))
    with pytest.raises(LimitError, match="8 are allowed"):
        encode(Envelope(PutBlob(digest=DIGEST, tensor=tensor(9)), "r1"), limits=WireLimits(tensor=8))
    with pytest.raises(LimitError, match="header of error"):
        encode(Envelope(Error(code="x", message="y" * 300), "r1"), limits=WireLimits(header=300))


def test_a_tensor_of_several_dimensions_of_memory_is_sent_as_bytes() -> None:
    memory = memoryview(bytearray(range(24))).cast("i", (2, 3))
    frames = encode(Envelope(PutBlob(digest=DIGEST, tensor=WireTensor("int32", (2, 3), memory)), "r1"))
    assert bytes(frames[1]) == bytes(range(24))
