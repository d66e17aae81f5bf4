"""The first exchange of a session: hello, and welcome or an error."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from .codec import Envelope, decode, encode
from .errors import EngineLostError, ProtocolError, VersionError
from .failure import from_message
from .limits import clip
from .messages.client import Hello
from .messages.engine import Error, Welcome
from .transport import Channel
from .version import PROTOCOL_VERSION, compatible

_TICK = 0.02
_ID = "hello"


def shake(
    channel: Channel, hello: Hello, *, timeout: float, alive: Callable[[], bool] | None = None
) -> Welcome:
    """Send `hello` and return the engine's welcome.

    Raises EngineLostError when no answer comes within `timeout` seconds or `alive` turns false,
    AuthError or VersionError when the engine refuses.
    """
    channel.send(encode(Envelope(hello, _ID)))
    deadline = monotonic() + timeout
    while monotonic() < deadline and (alive is None or alive()):
        frames = channel.recv(_TICK)
        if frames is not None:
            return _welcome(frames)
    raise EngineLostError(
        f"no engine answered within {timeout:g} seconds",
        hint="Is it running, and are its keys, if it uses any, the ones this side expects?",
    )


def _welcome(frames: list[memoryview]) -> Welcome:
    message = decode(frames).message
    if isinstance(message, Error):
        raise from_message(message)
    if not isinstance(message, Welcome):
        raise ProtocolError(f"the engine answered hello with {message.type}")
    if not compatible(PROTOCOL_VERSION, message.protocol):
        raise VersionError(
            f"the engine speaks protocol {clip(message.protocol)}, this side {PROTOCOL_VERSION}"
        )
    return message
