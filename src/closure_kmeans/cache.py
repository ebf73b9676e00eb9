"""On-disk cache of compiled kernels: one file per kernel, argument types, processor and Python version.

Numba's own cache is not used: it detects changes in one source file only, its index can refer to data of an earlier
version, it cannot read folders that it cannot write to, and it executes unverified files.

A file holds a digest of its name and contents, the stamp of the sources, and the code. It is written under a temporary
name and renamed. Before the code is loaded, the digest, the stamp, and the owners of the file and the folder are
checked. Unreadable kernels are compiled again. If no folder is writable, kernels are compiled in every process; a fit
never fails because of the cache.
"""

from __future__ import annotations

import errno
import os
import pickle
import stat
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, cast
from uuid import uuid4

import llvmlite
import numba
from numba import config, njit
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

from closure_kmeans import __version__
from closure_kmeans.compiler import say, watch_compiler

Function = TypeVar("Function", bound=Callable[..., Any])

PACKAGE = Path(__file__).resolve().parent
SUFFIX = ".kernel"
KEPT_SECONDS = 30 * 24 * 60 * 60
DIGEST_BYTES = sha256().digest_size
ADVICE = "set NUMBA_CACHE_DIR to a folder that you, and nobody else, can write to"

_said: set[str] = set()


def sources() -> list[Path]:
    """All source files that decide the compiled code: the kernels, and this module with the options of the compiler."""
    return [PACKAGE / "cache.py", *sorted(PACKAGE.glob("kernels/[a-z]*.py")), *sorted(PACKAGE.glob("*/kernels.py"))]


def _stamp() -> bytes | None:
    """Digest of the sources and versions; None if the sources are not on disk."""
    versions = (__version__, numba.__version__, llvmlite.__version__, sys.version)
    digest = sha256(repr(versions).encode())
    try:
        for path in sources():
            digest.update(sha256(path.read_bytes()).digest())
    except OSError:
        return None
    return digest.digest()


STAMP = _stamp()  # at import: files may be replaced before the first compilation


def folders() -> list[Path]:
    """Cache folders in the order of lookup. Kernels are written to the first writable one."""
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
    """Reason not to trust the kernels of a folder, if any: another user could have written them.

    Allowed owners are the user, root, and the owner of this package, whose code is executed anyway. Parent folders may
    be world-writable only if they are sticky. Not checked on Windows.
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


def obstacle(folder: Path) -> str | None:
    """Reason why kernels cannot be written to a folder, if any; the folder is created if needed."""
    try:
        _prepare(folder)
        if os.access(folder, os.W_OK):
            return None
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        return _reason(error, folder)


def _reason(error: OSError, folder: Path) -> str:
    return f"{error.strerror} in '{folder}'" if error.strerror else str(error)


def holds_kernels(folder: Path, *, of_another_version: bool = False) -> bool:
    """Whether a folder has kernels of the current sources, or of other ones, for any types."""
    for path in folder.glob(f"*{SUFFIX}"):
        with suppress(OSError, ValueError):
            if (_read(path) is None) == of_another_version:
                return True
    return False


def distrust(folder: Path) -> list[str]:
    """Reasons not to use kernels of a folder, one for each that is damaged or could be another user's."""
    reasons = []
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            _read(path)
        except (OSError, ValueError) as error:
            reasons.append(str(error))
    return reasons


def _prepare(folder: Path) -> None:
    for place in (*reversed(folder.parents), folder):  # readable by others, writable only by the owner
        place.mkdir(mode=0o755, exist_ok=True)
    reason = objection(folder)
    if reason is not None:
        raise PermissionError(reason)


def _read(path: Path) -> bytes | None:
    """Code in a file, or None if its stamp differs. Raises if the file must not be trusted."""
    reason = objection(path.parent)
    if reason is None and not path.is_file():  # opening a pipe would block
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
    """Write a file to the first writable folder."""
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
            _remove_old(folder)
            return
        except OSError as error:
            reasons.append(_reason(error, folder))
        finally:
            with suppress(OSError):
                beside.unlink()
    raise OSError(" and ".join(reasons))


@cache  # once in a process
def _remove_old(folder: Path) -> None:
    """Remove leftovers of killed processes, and kernels that this version cannot use, if unused for KEPT_SECONDS.

    Kernels whose functions were renamed would otherwise stay forever.
    """
    for path in folder.glob(f"*{SUFFIX}*"):
        with suppress(OSError):
            if path.stat().st_mtime < time.time() - KEPT_SECONDS and not (path.suffix == SUFFIX and _is_usable(path)):
                path.unlink()


def _is_usable(path: Path) -> bool:
    """Whether a kernel is undamaged and of this version."""
    try:
        return _read(path) is not None
    except ValueError:
        return False


def _digest(name: str, rest: bytes) -> bytes:
    return sha256(name.encode() + rest).digest()


def _say_once(topic: str, text: str) -> None:
    if topic not in _said:
        _said.add(topic)
        say(f"closure-kmeans: {text}")


# Reductions may be reordered, so that they vectorise; NaN and infinity keep their meaning.
FAST_FLOATS = {"reassoc", "contract", "nsz"}


def kernel(function: Function, inline: str = "never") -> Function:
    """Compile for the host processor on first use, and cache the result on disk."""
    compiled = njit(nogil=True, error_model="numpy", fastmath=FAST_FLOATS, inline=inline)(function)
    if not config.DISABLE_JIT:
        compiled._cache = KernelCache(function)
    return cast(Function, compiled)


def part(function: Function) -> Function:
    """Compile a function as a part of each kernel that calls it: its code is copied there, before types are known."""
    return kernel(function, inline="always")


watch_compiler()


class KernelCache(NullCache):
    """Numba's cache interface for one dispatcher."""

    def __init__(self, function: Any) -> None:
        self._name = f"{function.__module__}.{function.__qualname__}"

    @property
    def cache_path(self) -> str:
        """First cache folder."""
        return str(folders()[0])

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Code for a signature, or None."""
        context.refresh()
        name = self._file_name(signature, context.codegen())
        for folder in folders():
            path = folder / name
            try:
                code = _read(path) if os.path.exists(path) else None
                if code is not None:
                    with suppress(OSError):
                        os.utime(path)  # another version may be about to remove old ones
                    return CompileResult._rebuild(context, *pickle.loads(code))
            except Exception as error:  # on any error, compile the kernel
                _say_once("read", f"a kernel of the cache is not used, but compiled again: {error}")
        return None

    def save_overload(self, signature: Any, result: Any) -> None:
        """Write the code for a signature."""
        if result.library.has_dynamic_globals:
            return  # contains addresses of this process
        try:
            _write(self._file_name(signature, result.codegen), dumps(result._reduce()))
        except OSError as error:
            _say_once(
                "write", f"kernels are compiled again in every process because they cannot be cached: {error}; {ADVICE}"
            )

    def flush(self) -> None:
        """Delete all files of this kernel."""
        for folder in folders():
            for path in folder.glob(f"{self._name}-*{SUFFIX}"):
                with suppress(OSError):
                    path.unlink()

    def _file_name(self, signature: Any, codegen: Any) -> str:
        types = getattr(signature, "args", signature)
        fields = [getattr(kind, "fields", None) for kind in types]  # named tuples are defined in other sources
        target = (codegen.magic_tuple(), config.BOUNDSCHECK, sys.implementation.cache_tag)
        key = sha256(repr((types, fields, target)).encode()).hexdigest()
        return f"{self._name}-{key[:24]}{SUFFIX}"
