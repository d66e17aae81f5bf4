"""One session with an engine: requests with their events, cancellation, blobs and shared memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from .adapters import AdapterSet
from .address import Address
from .arena import Arena
from .blobs import SMALLEST, BlobMemory
from .curve import KeyPair
from .errors import (
    InvalidRequestError,
    LimitError,
    MissingBlobError,
    OutboardError,
    ProtocolError,
    UnsupportedRequestError,
)
from .exchange import Exchange, OnEvent, Poll
from .failure import from_message
from .handshake import shake
from .lifeline import Lifeline
from .limits import WireLimits
from .messages import Message
from .messages.client import CLIENT_MESSAGES, Hello, Predict, PutAdapters, PutBlob, Run
from .messages.common import Slot
from .messages.engine import Error, Welcome
from .shelf import Shelf
from .shm import host_identity, session_prefix
from .sockets import SocketChannel
from .tensors import digest
from .transport import Channel
from .values import Blob, Tree, WireTensor, leaves, map_leaves
from .version import CAPABILITIES, PROTOCOL_VERSION

_RESENDS = 2


class Client:
    """A session. Requests take turns, from whatever threads they come; `control` never waits for them."""

    def __init__(
        self,
        work: Channel,
        control: Channel,
        welcome: Welcome,
        *,
        alive: Callable[[], bool] | None = None,
        silence: float = 6.0,
        patience: float = 10.0,
        blob_memory: int = 1 << 30,
    ) -> None:
        """Over channels whose handshake is done.

        silence: seconds without a pong until the engine is lost; patience: seconds a cancelled request may
        take to end; blob_memory: bytes of interned tensors, and of adapters, kept for sending again.
        """
        self.welcome = welcome
        self._line = Lifeline(control, welcome.session, alive=alive, silence=silence)
        limits = WireLimits(
            header=welcome.limits.header, tensor=welcome.limits.tensor, message=welcome.limits.message
        )
        self._work = Exchange(work, self._line, welcome.session, limits, _arena(welcome), patience)
        self._blobs: BlobMemory[WireTensor] = BlobMemory(blob_memory)
        self._sets: BlobMemory[AdapterSet] = BlobMemory(blob_memory)

    @classmethod
    def connect(
        cls,
        address: Address,
        *,
        client: str,
        timeout: float = 10.0,
        alive: Callable[[], bool] | None = None,
        keys: KeyPair | None = None,
        **options: Any,
    ) -> Client:
        """Open a session at `address`. `keys` are this side's CURVE keys, needed beyond the loopback.

        `options` as for `over`. Raises EngineLostError when nobody answers within `timeout` seconds,
        AuthError, VersionError.
        """
        work = SocketChannel(address.work, keys=keys, server_key=address.server_key)
        try:
            control = SocketChannel(address.control, keys=keys, server_key=address.server_key)
        except OutboardError:
            work.close()
            raise
        return cls.over(
            work, control, client=client, token=address.token, timeout=timeout, alive=alive, **options
        )

    @classmethod
    def over(
        cls,
        work: Channel,
        control: Channel,
        *,
        client: str,
        token: str = "",
        version: str = "",
        timeout: float = 10.0,
        alive: Callable[[], bool] | None = None,
        **options: Any,
    ) -> Client:
        """Open a session over two channels, whatever carries them; they are closed when that fails.

        `version` is the client's own, for the engine's log; `options` as for the constructor.
        """
        hello = Hello(
            protocol=PROTOCOL_VERSION,
            client=client,
            version=version,
            token=token,
            host=host_identity(),
            capabilities=list(CAPABILITIES),
        )
        try:
            welcome = shake(work, hello, timeout=timeout, alive=alive)
        except OutboardError:
            work.close()
            control.close()
            raise
        return cls(work, control, welcome, alive=alive, **options)

    @property
    def ended(self) -> str:
        """Why the session has ended; empty while it lives. A new session needs a new client."""
        return self._work.ended

    def request(
        self, message: Message, *, on_event: OnEvent | None = None, poll: Poll | None = None
    ) -> Message:
        """Send work and return its terminal reply; events go to `on_event` as they come.

        `poll` is called at least every 20 ms. When it or `on_event` raises, the request is cancelled, its
        end awaited, and the exception raised again. Raises the engine's error, or EngineLostError.
        """
        if not isinstance(message, CLIENT_MESSAGES):
            raise InvalidRequestError(f"{message.type} is no message of the work channel")
        slot = message.reply if isinstance(message, Run | Predict) else None
        with self._work.turn(poll):
            try:
                return self._insist(message, slot, on_event, poll)
            finally:
                self._work.slots.end(slot, reusable=True)

    def control(self, message: Message, *, timeout: float = 5.0) -> Message:
        """Send a control message and return its reply; from any thread, also while `request` waits."""
        self._work.check()
        return self._line.ask(message, timeout)

    def intern(self, tree: Tree, *, poll: Poll | None = None) -> Tree:
        """`tree` with its large tensors as Blobs, which the engine holds from now on.

        The tensors are kept to be sent again: their memory must not change while the session lasts.
        """
        large = {id(leaf): leaf for leaf in leaves(tree) if _large(leaf)}
        names = {key: digest(leaf) for key, leaf in large.items()}
        for key, leaf in large.items():
            if self._blobs.touch(names[key]) is None:
                self.request(PutBlob(digest=names[key], tensor=leaf), poll=poll)
                self._blobs.add(names[key], leaf)
        self._blobs.trim(set(names.values()))
        return map_leaves(tree, lambda leaf: Blob(names[id(leaf)]) if id(leaf) in names else leaf)

    def adapt(self, adapters: AdapterSet, *, poll: Poll | None = None) -> str:
        """What `adapters` are called in a request; the engine holds them from now on. "" for none.

        Raises UnsupportedRequestError at an engine without adapters, ModelError for a LoRA file that it
        cannot use, LimitError for more than it keeps.
        """
        if not adapters.adapters:
            return ""
        if "adapters" not in self.welcome.capabilities:
            raise UnsupportedRequestError(
                f"The engine speaks protocol {self.welcome.protocol}, which has no LoRA.",
                hint="Update the engine.",
            )
        if self._sets.touch(adapters.digest) is None:
            with self._work.turn(poll):
                self._send_set(adapters, poll)
            self._sets.add(adapters.digest, adapters)
            self._sets.trim({adapters.digest})
        return adapters.digest

    def reply_slot(self, nbytes: int) -> Slot | None:
        """Room for one reply's tensor, for the `reply` of one request; None without shared memory.

        The tensor that comes back is a view of it, and the room is used again when that view is gone.
        """
        self._work.check()
        return self._work.slots.lend(nbytes)

    def shelf(self) -> Shelf | None:
        """Room for tensors that stay from message to message; None without shared memory."""
        self._work.check()
        return self._work.shelf()

    def close(self) -> None:
        """Say bye and let go of everything; a request under way in another thread ends in EngineLostError."""
        self._work.end("it was closed")
        self._blobs.clear()
        self._sets.clear()

    def _insist(
        self, message: Message, slot: Slot | None, on_event: OnEvent | None, poll: Poll | None
    ) -> Message:
        """Send, and send again with the blobs the engine has dropped meanwhile."""
        for attempt in range(_RESENDS + 1):
            reply = self._work.run(message, slot, on_event, poll)
            if not isinstance(reply, Error):
                return reply
            error = from_message(reply)
            if attempt == _RESENDS or not isinstance(error, MissingBlobError):
                raise error
            self._restore(error, poll)
        raise AssertionError("the last attempt returns or raises")

    def _restore(self, error: MissingBlobError, poll: Poll | None) -> None:
        names = _digests(error)
        if not names:
            raise error
        for name in names:
            tensor, adapters = self._blobs.touch(name), self._sets.touch(name)
            if adapters is not None:
                self._send_set(adapters, poll)
            elif tensor is not None:
                self._insist_once(PutBlob(digest=name, tensor=tensor), poll)
            else:
                raise error

    def _send_set(self, adapters: AdapterSet, poll: Poll | None) -> None:
        """Give the engine a set, and those of its tensors that it does not hold."""
        for _ in range(_RESENDS + 1):
            if all(self._send_part(adapters, message, poll) for message in adapters.messages):
                return
        raise LimitError(
            f"The engine does not keep adapters of {adapters.nbytes} bytes long enough to use them.",
            hint="Start the engine with a larger --adapter-budget.",
        )

    def _send_part(self, adapters: AdapterSet, message: PutAdapters, poll: Poll | None) -> bool:
        """False when the engine has meanwhile dropped an earlier part."""
        try:
            self._insist_once(message, poll)
        except MissingBlobError as error:
            missing = _digests(error)
            if not adapters.tensors.keys() >= set(missing):
                return False
            self._insist_once(adapters.with_tensors(message, missing), poll)
        return True

    def _insist_once(self, message: Message, poll: Poll | None) -> None:
        reply = self._work.run(message, None, None, poll)
        if isinstance(reply, Error):
            raise from_message(reply)


def _digests(error: MissingBlobError) -> list[str]:
    return error.details.get("digests", "").split()


def _large(leaf: object) -> bool:
    return isinstance(leaf, WireTensor) and leaf.nbytes >= SMALLEST


def _arena(welcome: Welcome) -> Arena | None:
    """Shared memory, when the engine is on this host and its ids make names for segments."""
    if welcome.host and welcome.host == host_identity():
        with suppress(ProtocolError):
            return Arena(session_prefix(welcome.engine, welcome.session))
    return None
