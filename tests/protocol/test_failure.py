"""Errors cross the wire as the same class, whatever their size, and unknown codes are errors still."""

from __future__ import annotations

import pytest

from outboard.protocol.codec import Envelope, decode, encode
from outboard.protocol.errors import OutboardError, error_classes
from outboard.protocol.failure import from_message, to_message
from outboard.protocol.messages.engine import Error


@pytest.mark.parametrize("cls", list(error_classes()))
def test_every_error_crosses_the_wire(cls: type[OutboardError]) -> None:
    sent = cls("what happened", hint="what to do", details={"digests": "a b"})
    message = decode(encode(Envelope(to_message(sent), "r1"))).message
    assert isinstance(message, Error)
    error = from_message(message)
    assert type(error) is cls
    assert (error.message, error.hint, error.details) == (sent.message, sent.hint, sent.details)


def test_endless_texts_are_cut_to_what_the_wire_takes() -> None:
    error = OutboardError("m" * 10**6, hint="h" * 10**6, details={"traceback": "t" * 10**6})
    assert decode(encode(Envelope(to_message(error), "r1"))).id == "r1"


def test_an_unknown_code_is_an_error_that_names_it() -> None:
    error = from_message(Error(code="from_the_future", message="?"))
    assert type(error) is OutboardError
    assert "from_the_future" in str(error)
