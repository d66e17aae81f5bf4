"""CURVE keys for everything that leaves the machine: key files, who may come in, and what may not be opened.

The cryptography and the ZAP handshake are libzmq's and pyzmq's; here is only which keys are used where.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

import zmq
import zmq.auth
from zmq.auth.thread import ThreadAuthenticator

from .address import is_loopback
from .errors import AuthError

_HINT = "Create keys with `outboard keys`, or stay on ipc:// or tcp://127.0.0.1."


@dataclass(frozen=True)
class KeyPair:
    """One side's CURVE keys, Z85 text of 40 characters each."""

    public: str
    secret: str = field(repr=False)


def create_keys(directory: Path, name: str) -> KeyPair:
    """Write `name`.key (public) and `name`.key_secret (0600) into `directory` (made 0700) and return them.

    Raises AuthError when they exist: keys are never overwritten.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    secret = directory / f"{name}.key_secret"
    if secret.exists() or (directory / f"{name}.key").exists():
        raise AuthError(f"{secret} exists already", hint="Remove the old keys first, or choose another name.")
    # libzmq's helper opens the file itself; an empty one made first keeps the secret private throughout.
    os.close(os.open(secret, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    zmq.auth.create_certificates(directory, name)
    return load_keys(secret)


def load_keys(path: Path) -> KeyPair:
    """Read a .key_secret file. Raises AuthError when it is missing, damaged, or readable by others."""
    public, secret = _read(path)
    if secret is None:
        raise AuthError(f"{path} holds no secret key", hint="Name the .key_secret file, not the .key file.")
    if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise AuthError(f"{path} can be read by other users", hint=f"chmod 600 {path}")
    return KeyPair(public, secret)


def load_public(path: Path) -> str:
    """The public key in a .key file, Z85."""
    return _read(path)[0]


def allow(certificate: Path, clients: Path) -> Path:
    """Copy a client's public .key file into the directory of those who may connect; return the copy."""
    public = load_public(certificate)
    clients.mkdir(parents=True, exist_ok=True, mode=0o700)
    target = clients / f"{certificate.stem}.key"
    target.write_text(f'metadata\ncurve\n    public-key = "{public}"\n', encoding="ascii")
    return target


def _read(path: Path) -> tuple[str, str | None]:
    try:
        public, secret = zmq.auth.load_certificate(path)
    except (OSError, ValueError) as error:
        raise AuthError(f"{path} is no readable key file: {error}", hint=_HINT) from error
    return public.decode("ascii"), secret.decode("ascii") if secret else None


def check_bind(endpoint: str, keys: object | None) -> None:
    """Raise AuthError when `endpoint` is reachable from other machines and there are no keys to guard it."""
    if keys is None and not is_loopback(endpoint):
        raise AuthError(f"refusing to listen on {endpoint} without keys", hint=_HINT)


def check_connect(endpoint: str, keys: KeyPair | None, server_key: str) -> None:
    """Raise AuthError when `endpoint` leaves the machine and one of the two sides' keys is missing."""
    if not is_loopback(endpoint) and (keys is None or not server_key):
        raise AuthError(f"refusing to connect to {endpoint} without both sides' keys", hint=_HINT)
    if server_key and keys is None:
        raise AuthError(f"the engine at {endpoint} uses CURVE; this side has no keys", hint=_HINT)


class Gate:
    """Lets in the clients whose public keys lie in a directory; one per ZeroMQ context, before any bind."""

    def __init__(self, keys: KeyPair, clients: Path, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.context = context
        self._keys = keys
        self._clients = clients
        self._authenticator = ThreadAuthenticator(context)
        self._authenticator.start()
        self.reload()

    def reload(self) -> None:
        """Read the directory again; a key added or removed counts from the next connection on."""
        self._authenticator.configure_curve(domain="*", location=self._clients)

    def guard(self, socket: zmq.Socket[bytes]) -> None:
        """Make `socket` a CURVE server of this gate."""
        socket.curve_secretkey = self._keys.secret.encode("ascii")
        socket.curve_publickey = self._keys.public.encode("ascii")
        socket.curve_server = True

    def close(self) -> None:
        """Stop answering; sockets of this context accept nobody new afterwards."""
        self._authenticator.stop()


def identify(socket: zmq.Socket[bytes], keys: KeyPair, server_key: str) -> None:
    """Make `socket` a CURVE client that trusts only `server_key` (Z85)."""
    socket.curve_secretkey = keys.secret.encode("ascii")
    socket.curve_publickey = keys.public.encode("ascii")
    socket.curve_serverkey = server_key.encode("ascii")
