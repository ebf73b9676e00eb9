"""Parameters of version 0.1, and their replacements."""

from __future__ import annotations

from collections.abc import Iterable

from closure_kmeans.method import Method

RENAMED = {
    "n_jobs": "n_threads",
    "column": "name",
    "scratch": "the environment variable TMPDIR",
    **{name: f"method=Method({name}=...)" for name in Method._fields},
}


def check_renamed(kind: type, names: Iterable[str]) -> None:
    """Raise if a name is a parameter of version 0.1 that the estimator no longer has; name its replacement."""
    known = kind._get_param_names()  # type: ignore[attr-defined]
    for name in names:
        new = RENAMED.get(name)
        if new is not None and name not in known and ("method" in known or not new.startswith("method")):
            raise TypeError(f"{kind.__name__} has no parameter {name!r} (removed in version 0.2): use {new}")
