"""Tensors in shared memory: segments a client owns, and the engine's view of them.

A segment is a file below the shared-memory root, mapped by both sides. Every segment belongs to the client
that made it, which holds a lock on it: when the client is gone, so is the lock, and anyone may sweep.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import stat
import sys
import tempfile
from collections import OrderedDict
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path
from uuid import getnode

from .errors import ProtocolError
from .limits import clip
from .messages.common import Slot
from .tensors import flat
from .transport import Placer, SegmentOpener
from .values import Place, WireTensor

if sys.platform != "win32":
    import fcntl

ALIGNMENT = 64
FAMILY = "outboard-"
_TOKEN = re.compile(r"[a-z0-9]{1,32}")
_NAME = re.compile(r"outboard-[a-z0-9]{1,32}-[0-9a-f]{16}-[0-9]{1,9}")
_FLAGS = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def shm_root() -> Path:
    """Where segments lie: /dev/shm, or the temporary directory where there is none."""
    root = Path("/dev/shm")  # noqa: S108 - the system's shared memory, not a scratch file
    return root if root.is_dir() and os.access(root, os.W_OK) else Path(tempfile.gettempdir())


def host_identity(root: Path | None = None) -> str:
    """Equal exactly for processes that can open each other's segments: same boot, same root, same user."""
    place = root or shm_root()
    boot = Path("/proc/sys/kernel/random/boot_id")
    host = boot.read_text(encoding="ascii").strip() if boot.exists() else f"{getnode():x}"
    info = place.stat()
    user = os.getuid() if sys.platform != "win32" else os.getlogin()
    text = f"{host}|{place}|{info.st_dev}|{info.st_ino}|{user}"
    return blake2b(text.encode(), digest_size=16).hexdigest()


def engine_prefix(engine: str) -> str:
    """What the names of all segments made for one engine begin with."""
    if not _TOKEN.fullmatch(engine):
        raise ProtocolError(f"{clip(engine)!r} is no engine id: 1 to 32 of a-z 0-9")
    return f"{FAMILY}{engine}-"


def session_prefix(engine: str, session: str) -> str:
    """What the names of one session's segments begin with. Names are public, so the session is hashed."""
    return f"{engine_prefix(engine)}{blake2b(session.encode(), digest_size=8).hexdigest()}-"


class Segment:
    """One mapped segment. Views of it stay valid after `unlink`; the memory goes with the last of them."""

    def __init__(self, path: Path, memory: mmap.mmap, descriptor: int) -> None:
        self.path = path
        self.size = len(memory)
        self._memory = memory
        self._descriptor = descriptor

    @property
    def name(self) -> str:
        """Its name on the wire."""
        return self.path.name

    @classmethod
    def create(cls, path: Path, size: int) -> Segment:
        """Make, fill and lock a new segment; OSError when there is no room for all of it."""
        descriptor = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            _reserve(descriptor, size)
            _lock(descriptor)
            return cls(path, mmap.mmap(descriptor, size), descriptor)
        except OSError:
            os.close(descriptor)
            path.unlink()
            raise

    @classmethod
    def open(cls, path: Path) -> Segment:
        """Map somebody else's segment; OSError when it is missing, foreign or no plain file."""
        descriptor = os.open(path, _FLAGS)
        try:
            info = os.fstat(descriptor)
            if not stat.S_ISREG(info.st_mode) or (sys.platform != "win32" and info.st_uid != os.geteuid()):
                raise PermissionError(f"{path} is no segment of this user")
            return cls(path, mmap.mmap(descriptor, info.st_size), -1)
        except ValueError as error:
            raise OSError(f"{path} is empty") from error
        finally:
            os.close(descriptor)

    def view(self, offset: int, nbytes: int) -> memoryview:
        """The bytes from `offset`; ProtocolError when they do not lie within the segment."""
        if offset < 0 or nbytes < 0 or offset + nbytes > self.size:
            raise ProtocolError(
                f"segment {self.name} has {self.size} bytes; {nbytes} from {offset} are not within"
            )
        return memoryview(self._memory)[offset : offset + nbytes]

    def export(self, offset: int, nbytes: int) -> ctypes.Array[ctypes.c_char]:
        """The same as an object that lives exactly as long as the last view of it."""
        self.view(offset, nbytes).release()
        return (ctypes.c_char * nbytes).from_buffer(self._memory, offset)

    def unlink(self) -> None:
        """Remove the name and the lock."""
        with suppress(OSError):
            self.path.unlink()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _reserve(descriptor: int, size: int) -> None:
    """Give the file all its pages now: a full /dev/shm must be an error here, not a SIGBUS later."""
    if sys.platform == "linux":
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.ftruncate(descriptor, size)


def _lock(descriptor: int) -> None:
    if sys.platform != "win32":
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _abandoned(path: Path) -> bool:
    """Whether the segment's owner is gone. Windows removes no open file, so there the attempt is the test."""
    if sys.platform == "win32":
        return True
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError:
        return False
    try:
        _lock(descriptor)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def sweep(prefix: str, root: Path | None = None) -> int:
    """Remove every segment whose name begins with `prefix` (engine_prefix or session_prefix); their count."""
    return sum(_remove(path) for path in _segments(prefix, root))


def sweep_abandoned(prefix: str = FAMILY, root: Path | None = None) -> int:
    """Remove the segments below `prefix` whose owners are gone, however they died; their count."""
    return sum(_remove(path) for path in _segments(prefix, root) if _abandoned(path))


def _segments(prefix: str, root: Path | None) -> list[Path]:
    if not prefix.startswith(FAMILY):
        raise ProtocolError(f"{clip(prefix)!r} is no prefix of segment names")
    found = (root or shm_root()).glob(f"{FAMILY}*")
    return [path for path in found if path.name.startswith(prefix) and _NAME.fullmatch(path.name)]


def _remove(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False
    return True


class Segments:
    """The engine's side: opens the segments that requests name, and remembers the latest mappings."""

    def __init__(self, engine: str, *, root: Path | None = None, keep: int = 64) -> None:
        self._prefix = engine_prefix(engine)
        self._engine = engine
        self._root = root or shm_root()
        self._keep = keep
        self._open: OrderedDict[str, Segment] = OrderedDict()

    def opener(self, session: str) -> SegmentOpener:
        """What `decode` needs for a message of `session`: it opens that session's segments only."""
        return partial(self._view, session_prefix(self._engine, session))

    def placer(self, session: str, slot: Slot | None) -> Placer:
        """What `encode` needs for a reply: the first tensor that fits goes into the request's slot."""
        free = [slot] if slot is not None else []
        opener = self.opener(session)

        def place(tensor: WireTensor) -> Place | None:
            if not free or tensor.nbytes > free[0].nbytes:
                return None
            target = free.pop()
            opener(target.segment, target.offset, tensor.nbytes)[:] = flat(tensor.data)
            return Place(target.segment, target.offset)

        return place

    def forget(self, session: str) -> None:
        """Drop the mappings of a session that ended."""
        prefix = session_prefix(self._engine, session)
        for name in [name for name in self._open if name.startswith(prefix)]:
            del self._open[name]

    def _view(self, prefix: str, name: str, offset: int, nbytes: int) -> memoryview:
        if not _NAME.fullmatch(name) or not name.startswith(prefix):
            raise ProtocolError(f"{clip(name)!r} is no segment of this session")
        return self._segment(name).view(offset, nbytes)

    def _segment(self, name: str) -> Segment:
        found = self._open.get(name)
        if found is None:
            try:
                found = self._open[name] = Segment.open(self._root / name)
            except OSError as error:
                raise ProtocolError(f"segment {name} cannot be opened: {error.strerror or error}") from error
            while len(self._open) > self._keep:
                self._open.popitem(last=False)
        self._open.move_to_end(name)
        return found
