"""Compiled kernels on disk: a file for each kernel, types of its arguments, processor and Python.

Numba's own cache is not used: it notices changes of one source file only, its index can vouch for data of an earlier
version, it reads no folder that it cannot write to, and it runs whatever it finds there.

A file holds a digest of all that follows and of its own name, the stamp of the sources that the code was compiled from,
and the code. It is written under another name and then renamed, and nothing of it is run before the digest, the stamp
and the owners of the file and of its folder have been looked at. What cannot be read is compiled again, and where
nothing can be written kernels are compiled in every process: a fit never fails for it.
"""

from __future__ import annotations

import os
import pickle
import stat
import sys
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import llvmlite
import numba
from numba import config
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

from closure_kmeans import __version__
from closure_kmeans.compiler import say

PACKAGE = Path(__file__).resolve().parent
SUFFIX = ".kernel"
DIGEST_BYTES = sha256().digest_size
ADVICE = "set NUMBA_CACHE_DIR to a folder that you, and nobody else, can write to"

_said: set[str] = set()


def sources() -> list[Path]:
    """All files that are compiled in."""
    return [PACKAGE / "instructions.py", PACKAGE / "kernels.py", *sorted(PACKAGE.glob("*/kernels.py"))]


def _stamp() -> bytes | None:
    """A digest of all sources that are compiled in, and of the versions; none where the sources are not on disk."""
    versions = (__version__, numba.__version__, llvmlite.__version__, sys.version)
    digest = sha256(repr(versions).encode())
    try:
        for path in sources():
            digest.update(sha256(path.read_bytes()).digest())
    except OSError:
        return None
    return digest.digest()


STAMP = _stamp()  # when the sources are imported: they may be replaced before the first kernel is compiled


def folders() -> list[Path]:
    """Where kernels are looked for, in this order; they are written to the first that can be written to."""
    own = f"closure_kmeans_{sha256(str(PACKAGE).encode()).hexdigest()[:16]}"
    if config.CACHE_DIR:
        return [Path(config.CACHE_DIR).absolute() / own]
    if sys.platform == "win32":
        home = os.environ.get("LOCALAPPDATA", "")
    elif sys.platform == "darwin":
        home = os.path.expanduser("~/Library/Caches")
    else:
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return [PACKAGE / "__pycache__" / "kernels", *([Path(home) / own] if os.path.isabs(home) else [])]


def objection(folder: Path) -> str | None:
    """Why kernels of a folder must not be run, if so: somebody else could have put them there.

    The owner may be the user, root, or the owner of this package, whose code is run anyway. Others may write to a
    folder above only if it is sticky, so that they cannot move what is not theirs. Windows shows none of this.
    """
    if os.name == "nt":
        return None
    above = folder.parent.resolve()
    for place in (above, *above.parents):
        if place.stat().st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH:
            return f"everybody can write to '{place}'"
    return _objection_to(folder, folder.lstat())


def _objection_to(path: Path, status: os.stat_result) -> str | None:
    if os.name == "nt":
        return None
    if stat.S_ISLNK(status.st_mode):
        return f"'{path}' is a link"
    if status.st_uid not in (0, os.geteuid(), PACKAGE.stat().st_uid):
        return f"'{path}' belongs to user {status.st_uid}, neither you nor root"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others can write to '{path}'"
    return None


def is_writable(folder: Path) -> bool:
    """Whether kernels can be written to a folder, which is made if need be."""
    try:
        _prepare(folder)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def holds_kernels(folder: Path) -> bool:
    """Whether a folder has kernels of this very version, for whatever types."""
    for path in folder.glob(f"*{SUFFIX}"):
        with suppress(OSError, ValueError):
            if _read(path) is not None:
                return True
    return False


def _prepare(folder: Path) -> None:
    for place in (*reversed(folder.parents), folder):  # for others to read, whatever the umask lets them write
        place.mkdir(mode=0o755, exist_ok=True)
    reason = objection(folder)
    if reason is not None:
        raise PermissionError(reason)


def _read(path: Path) -> bytes | None:
    """The code in a file; None if it is of other sources. Where it must not be run, an error says why."""
    reason = objection(path.parent)
    if reason is None and not path.is_file():  # to open a pipe would take for ever
        raise ValueError(f"'{path}' is not a file")
    if reason is None:
        with path.open("rb") as file:
            reason = _objection_to(path, os.fstat(file.fileno()))
            found = file.read()
    if reason is not None:
        raise PermissionError(f"{reason}; {ADVICE}")
    digest, rest = found[:DIGEST_BYTES], found[DIGEST_BYTES:]
    if digest != _digest(path.name, rest):
        raise ValueError(f"'{path}' is damaged")
    stamp, code = rest[:DIGEST_BYTES], rest[DIGEST_BYTES:]
    return code if stamp == STAMP else None


def _write(name: str, code: bytes) -> None:
    """Write a file to the first folder that takes it."""
    if STAMP is None:
        raise FileNotFoundError(f"the sources of the kernels are not in '{PACKAGE}'")
    rest = STAMP + code
    reasons = []
    for folder in folders():
        beside = folder / f".{name}.{uuid4().hex[:8]}"
        try:
            _prepare(folder)
            with open(beside, "xb", opener=partial(os.open, mode=0o644)) as file:
                file.write(_digest(name, rest) + rest)
            beside.replace(folder / name)
            return
        except OSError as error:
            reasons.append(f"{error.strerror} in '{folder}'" if error.strerror else str(error))
        finally:
            with suppress(OSError):
                beside.unlink()
    raise OSError(" and ".join(reasons))


def _digest(name: str, rest: bytes) -> bytes:
    return sha256(name.encode() + rest).digest()


def _say_once(topic: str, text: str) -> None:
    if topic not in _said:
        _said.add(topic)
        say(f"closure-kmeans: {text}")


def keep_on_disk(dispatcher: Any) -> None:
    """Let a function that Numba compiles be kept in our cache."""
    if not config.DISABLE_JIT:
        dispatcher._cache = KernelCache(dispatcher.py_func)


class KernelCache(NullCache):
    """What a dispatcher of Numba asks for compiled code, and gives it to."""

    def __init__(self, function: Any) -> None:
        self._name = f"{function.__module__}.{function.__qualname__}"

    @property
    def cache_path(self) -> str:
        """The first folder."""
        return str(folders()[0])

    def load_overload(self, signature: Any, context: Any) -> Any:
        """The code for some types of arguments, or None."""
        context.refresh()
        name = self._file_name(signature, context.codegen())
        for folder in folders():
            path = folder / name
            try:
                code = _read(path) if os.path.exists(path) else None
                if code is not None:
                    return CompileResult._rebuild(context, *pickle.loads(code))
            except Exception as error:  # whatever it is, the kernel can be compiled
                _say_once("read", f"a kernel of the cache is not used, but compiled again: {error}")
        return None

    def save_overload(self, signature: Any, result: Any) -> None:
        """Keep what was compiled."""
        if result.library.has_dynamic_globals:
            return  # addresses in this process
        try:
            _write(self._file_name(signature, result.codegen), dumps(result._reduce()))
        except OSError as error:
            _say_once("write", f"kernels are compiled in every process, for they cannot be kept: {error}; {ADVICE}")

    def flush(self) -> None:
        """Forget what there is of this kernel."""
        for folder in folders():
            for path in folder.glob(f"{self._name}-*{SUFFIX}"):
                with suppress(OSError):
                    path.unlink()

    def _file_name(self, signature: Any, codegen: Any) -> str:
        types = getattr(signature, "args", signature)
        fields = [getattr(kind, "fields", None) for kind in types]  # of named tuples, which are defined elsewhere
        target = (codegen.magic_tuple(), config.BOUNDSCHECK, sys.implementation.cache_tag)
        key = sha256(repr((types, fields, target)).encode()).hexdigest()
        return f"{self._name}-{key[:24]}{SUFFIX}"
