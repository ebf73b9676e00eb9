"""Files that this process has open or mapped, which Windows neither replaces nor removes."""

import os
from contextlib import suppress
from pathlib import Path

ERROR_USER_MAPPED_FILE = 1224
CHANGES = ("replace", "rename", "unlink", "remove")


def held_files():
    """The names of all files that this process has open or mapped (Linux)."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    held = {line.split(maxsplit=5)[5] for line in maps if "/" in line}
    for handle in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            held.add(os.readlink(handle))
    return held


def refuse_held(monkeypatch):
    """Have the functions of ``os`` refuse what Windows refuses; a list of what they refused, which grows."""
    refused = []

    def name_of(path, folder):
        folder = os.getcwd() if folder is None else os.readlink(f"/proc/self/fd/{folder}")
        parent, name = os.path.split(os.path.join(folder, os.fspath(path)))
        return os.path.join(os.path.realpath(parent), name)  # a link itself is changed, not its target

    def refusing(change):
        def changed(*paths, dir_fd=None, **options):
            for path in paths:
                if (name := name_of(path, dir_fd)) in held_files():
                    refused.append(name)
                    error = PermissionError(13, "The file has a section that is mapped", name)
                    error.winerror = ERROR_USER_MAPPED_FILE
                    raise error
            return change(*paths, **options, **({} if dir_fd is None else {"dir_fd": dir_fd}))

        return changed

    for name in CHANGES:
        monkeypatch.setattr(os, name, refusing(getattr(os, name)))
    return refused
