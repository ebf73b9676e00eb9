"""Checkpoints: a stopped fit resumes and ends in the same bits as if it had never been stopped.

A checkpoint holds all that an iteration depends on: the state, the neighbourhoods, the random generator. The order of
the points is not stored: it follows from the data and the first state of the generator, and is computed again as fast
as it would be read. Labels are stored in the order of the user's rows, since on another processor the points may come
in another order.
"""

from __future__ import annotations

import hashlib
import os
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from closure_kmeans.clusters import Clusters
from closure_kmeans.environment import environment
from closure_kmeans.files import FileFormatError, check_room, reading, unfinished, warn
from closure_kmeans.iteration import Clustering, Iteration
from closure_kmeans.points import hash_rows
from closure_kmeans.storage import plain_parameters
from closure_kmeans.stores.memory import LocalState, LocalStore
from closure_kmeans.tensors import Arrays, read_facts, read_tensors, write_tensors
from closure_kmeans.trees import Neighborhoods

if TYPE_CHECKING:
    from closure_kmeans.estimator import BaseKMeans

FILE_NAME = "checkpoint.safetensors"
# Rows hashed at a time.
DIGESTED_ROWS = 1 << 20
LABELS = "state.labels"
GO_ON_ANYWAY = "continue with fit(X, resume='anyway'), on the command line with --resume-anyway"

# Whether to resume a saved fit; "anyway" also in another environment.
Resume: TypeAlias = bool | Literal["anyway"]


class Checkpoint:
    """The file that a fit is saved to every few seconds; ``path`` is its name, or that of its folder.

    ``identity`` must be equal in a fit and in the one that was saved: see ``fingerprint``. ``rng`` is the generator of
    the fit, at its beginning. It takes the first state of the saved fit, if there is one. If ``resume`` is "anyway",
    another environment is a warning.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        every: float,
        identity: dict[str, Any],
        rng: np.random.Generator,
        resume: Resume = True,
    ) -> None:
        self.path = checkpoint_file(path)
        # Of a saved fit, until it is restored: the state, the neighbourhoods and the offset of the centres.
        self._saved: Arrays = {}
        self.history: list[Iteration] = []  # the iterations that were saved
        self.converged = False  # whether the saved fit was at its end
        self._same_order = True  # whether the points come as in the saved fit
        self._every = every
        self._anyway = resume == "anyway"
        self._written = time.monotonic()
        self._rng = rng
        self._facts: dict[str, Any] = {"identity": identity, "environment": environment()}
        self._noted: tuple[Arrays, dict[str, Any]] | None = None
        self._prepare_folder()
        if self.path.exists():
            with reading(self.path, "a checkpoint"):
                self._read()
        self._facts["first_generator"] = dict(rng.bit_generator.state)

    def _prepare_folder(self) -> None:
        """Raise before the fit if the file cannot be written; remove temporary files of killed processes."""
        folder = self.path.parent
        file = next((place for place in (folder, *folder.parents) if place.is_file()), None)
        if file is not None:
            below = "" if file == folder else f"'{folder}', below "
            raise NotADirectoryError(
                f"checkpoint must be a folder, or a file whose name ends in {self.path.suffix}, "
                f"got {below}the file '{file}'"
            )
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(f"checkpoint must be in a writable folder, got '{folder}'")
        for leftover in unfinished(self.path):
            leftover.unlink(missing_ok=True)

    def _read(self) -> None:
        """Read the file, and take the state of the generator at the beginning."""
        facts = read_facts(self.path, "checkpoint")  # the arrays of another fit are not mapped
        what = f"the checkpoint '{self.path}'"
        check_identity(what, facts["identity"], self._facts["identity"])
        check_environment(
            what, facts["environment"], self._facts["environment"], _new_fit(self.path), anyway=self._anyway
        )
        self._saved, facts = _read_sound(self.path)
        self.history = [Iteration(*record) for record in facts["history"]]
        self.converged = facts["converged"]
        self._facts["order"] = facts["order"]
        self._generator = facts["generator"]
        self._rng.bit_generator.state = facts["first_generator"]

    def start(self, store: LocalStore[Any], init: str | NDArray[Any]) -> str | NDArray[Any]:
        """The start of a fit of the points of a store: ``init``, or if there is a saved fit, its labels.

        The points and their offset must be those of the saved fit, except that "anyway" lets them come otherwise.
        """
        self._store = store
        found = digest(store.order)
        if self._saved:
            with reading(self.path, "a checkpoint"):
                init = _labels_in(self._saved, store.n_points, store.n_clusters)
                saved = self._facts["order"], digest(self._saved["offset"])
                self._same_order = saved == (found, digest(store.offset))
                if not self._same_order:
                    self._object()
        self._facts["order"] = found
        return init

    def _object(self) -> None:
        """Raise, or if the fit goes on anyway warn, that the points or their offset are not those of the saved fit."""
        message = f"the points of '{self.path}' have another order or offset here"
        if not self._anyway:
            raise FileFormatError(
                f"{message}, although processor, BLAS and versions are equal: {GO_ON_ANYWAY}, or {_new_fit(self.path)}"
            )
        warn(message, UserWarning)

    def restore(self, state: LocalState, neighborhoods: Neighborhoods[Any]) -> LocalState:
        """The saved state, or the given one if none is saved; neighbourhoods and generator get their saved states.

        If the points come in another order than in the saved fit, the given state, which began from the saved labels,
        gets the saved penalties, and kept trees are grown again.
        """
        self._neighborhoods = neighborhoods
        if not self.converged:
            check_room({self.path: sum(array.nbytes for array in _arrays_of(state).values())})
        if not self._saved:
            return state
        with reading(self.path, "a checkpoint"):
            arrays = {name: np.array(array) for name, array in self._saved.items()}
            self._saved = {}  # closes the file, which is replaced from now on
            arrays[LABELS] = arrays[LABELS][self._store.order]
            restored = _as_state(arrays, state)
            of_leaves = _part(arrays, "neighborhoods.")
            if not self._same_order:
                penalties = restored.clusters.penalties
                restored = state._replace(clusters=state.clusters._replace(penalties=penalties))
                of_leaves = {name: array for name, array in of_leaves.items() if array.size == 1}  # no places of points
            neighborhoods.restore(of_leaves)
            self._rng.bit_generator.state = self._generator
        return restored

    def note(self, state: LocalState, history: list[Iteration], converged: bool) -> None:
        """Take the state after an iteration, and write it if it is time to and the fit goes on."""
        arrays = {"offset": self._store.offset} | {f"state.{name}": array for name, array in _arrays_of(state).items()}
        arrays |= {f"neighborhoods.{name}": array for name, array in self._neighborhoods.state().items()}
        generator = dict(self._rng.bit_generator.state)
        self._noted = arrays, {"generator": generator, "history": list(history), "converged": converged}
        if not converged and time.monotonic() - self._written >= self._every:
            self._write(ended=False)

    def finish(self) -> None:
        """Write the state that was noted last: the fit has ended."""
        self._write(ended=True)

    def _write(self, *, ended: bool) -> None:
        """Write the state that was noted last. A failure does not end the fit."""
        if self._noted is None:
            return
        arrays, facts = self._noted
        arrays = arrays | {LABELS: self._store.user_labels(arrays[LABELS])}
        try:
            facts = self._facts | facts | {"ended": ended, "checksum": _checksum(arrays)}
            write_tensors(self.path, "checkpoint", arrays, facts)
        except OSError as error:
            warn(f"the fit continues without a new checkpoint: {error.strerror}", RuntimeWarning)
        self._written = time.monotonic()


def checkpoint_file(path: str | os.PathLike[str]) -> Path:
    """The file of a checkpoint that is given as a file or as a folder."""
    path = Path(path)
    return path if path.suffix == Path(FILE_NAME).suffix else path / FILE_NAME


def check_new(path: str | os.PathLike[str]) -> None:
    """Raise if there is a checkpoint already, for a fit that is not to resume it."""
    file = checkpoint_file(path)
    if file.exists():
        read_status(file)  # it may be another kind of file
        raise FileExistsError(f"the checkpoint '{file}' holds a fit: resume it with fit(X, resume=True), or remove it")


def check_identity(what: str, saved: dict[str, Any], own: dict[str, Any]) -> None:
    """Raise if a saved fit has other parameters or data."""
    differences = _differences(saved, own)
    if differences:
        raise FileFormatError(f"{what} belongs to another fit: {differences}. Remove it to start over")


def check_environment(what: str, saved: dict[str, str], own: dict[str, str], new_fit: str, *, anyway: bool) -> None:
    """A fit must go on where it ends in the same bits (see ``environment``), or ``anyway``, with a warning.

    ``new_fit`` is what else can be done here.
    """
    differences = _differences(saved, own)
    if not differences:
        return
    message = f"{what} may end with other bits here: {differences}"
    if not anyway:
        raise FileFormatError(f"{message}. Resume it where it was started, {GO_ON_ANYWAY}, or {new_fit}")
    warn(message, UserWarning)


def _new_fit(path: Path) -> str:
    centers = f"closure_kmeans.checkpoint.read_centers({os.fspath(path)!r})"
    return f"start another fit from its centres, with init={centers} and another checkpoint"


def _differences(saved: dict[str, Any], own: dict[str, Any]) -> str:
    return "; ".join(
        f"{name} was {saved.get(name)!r} and is {value!r}" for name, value in own.items() if saved.get(name) != value
    )


def identify(model: BaseKMeans, init: str | NDArray[Any]) -> dict[str, Any]:
    """The parameters that must be equal in a fit and the one that it resumes."""
    parameters = plain_parameters(model)
    del parameters["max_iter"]
    return parameters | {"init": init if isinstance(init, str) else f"an array with digest {digest(init)}"}


def fingerprint(model: BaseKMeans, X: NDArray[Any], weights: NDArray[Any], init: str | NDArray[Any]) -> dict[str, Any]:
    """The parameters and the data that must be equal in a fit and the one that it resumes."""
    return identify(model, init) | {
        "sample_weight": digest(weights),
        "X": f"{X.shape[0]} x {X.shape[1]} {X.dtype}",
        "the digest of X": digest_rows(X),
    }


def _arrays_of(state: LocalState) -> Arrays:
    arrays = {"labels": state.labels} | {f"clusters.{name}": array for name, array in state.clusters._asdict().items()}
    return arrays if state.previous is None else arrays | {"previous": state.previous}


def _labels_in(arrays: Arrays, n_points: int, n_clusters: int) -> NDArray[np.int32]:
    """Labels from saved arrays, in the order of the user's rows."""
    labels = np.array(arrays[LABELS])
    if (labels.shape, labels.dtype) != ((n_points,), np.dtype(np.int32)):
        raise ValueError(f"labels must be {(n_points,)} int32, but is {labels.shape} {labels.dtype}")
    if labels.min() < 0 or labels.max() >= n_clusters:
        raise ValueError(f"labels must lie in 0..{n_clusters - 1}")
    return labels


def _as_state(arrays: Arrays, like: LocalState) -> LocalState:
    """State from saved arrays; raise unless shapes and dtypes are those of a given one."""
    found, expected = _part(arrays, "state."), _arrays_of(like)
    if "previous" in found:
        expected["previous"] = like.clusters.centers
    for name, wanted in expected.items():
        array = found[name]
        if (array.shape, array.dtype) != (wanted.shape, wanted.dtype):
            raise ValueError(f"{name} must be {wanted.shape} {wanted.dtype}, but is {array.shape} {array.dtype}")
    return Clustering(found["labels"], Clusters(**_part(found, "clusters.")), found.get("previous"))


def _part(arrays: Arrays, prefix: str) -> Arrays:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _read_sound(path: Path) -> tuple[Arrays, dict[str, Any]]:
    """Read a file and verify its checksum."""
    arrays, facts = read_tensors(path, "checkpoint")
    if _checksum(arrays) != facts["checksum"]:
        raise FileFormatError(f"'{path}' is damaged: its checksum does not match its values")
    return arrays, facts


def _checksum(arrays: Arrays) -> int:
    """Checksum of some arrays."""
    total = 0
    for name in sorted(arrays):
        total = zlib.crc32(np.ascontiguousarray(arrays[name]).data.cast("B"), zlib.crc32(name.encode(), total))
    return total


def digest(array: NDArray[Any]) -> str:
    """Hash of the contents of an array."""
    return hashlib.blake2b(np.ascontiguousarray(array).data.cast("B"), digest_size=8).hexdigest()


class Status(NamedTuple):
    """The progress of a saved fit."""

    history: list[Iteration]
    converged: bool
    ended: bool  # for whatever reason; a fit that was killed has not
    identity: dict[str, Any]  # what makes it the same fit: see ``fingerprint``
    environment: dict[str, str]  # what it ends in the same bits with


def read_status(path: str | os.PathLike[str]) -> Status:
    """Read the progress of a saved fit, and none of its arrays."""
    path = checkpoint_file(path)
    with reading(path, "a checkpoint"):
        facts = read_facts(path, "checkpoint")
        history = [Iteration(*record) for record in facts["history"]]
        return Status(history, facts["converged"], facts["ended"], facts["identity"], facts["environment"])


def read_centers(path: str | os.PathLike[str]) -> NDArray[Any]:
    """Read the centres of a checkpoint, to start another fit from them (``init``).

    Use it where the fit itself cannot be resumed, for example with other parameters.

    Parameters
    ----------
    path : str or PathLike
        The ``checkpoint`` of the fit: a folder or file.

    Returns
    -------
    (k, d) array
        Centres after the last saved iteration.

    Raises
    ------
    FileFormatError
        A ``ValueError``: the checkpoint is truncated, damaged or of another version.

    See Also
    --------
    closure_kmeans.ClosureKMeans.fit : Resumes a checkpoint with ``resume=True``.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from closure_kmeans import ClosureKMeans
    >>> from closure_kmeans.checkpoint import read_centers
    >>> from closure_kmeans.datasets import load_sift
    >>> with TemporaryDirectory() as folder:
    ...     model = ClosureKMeans(100, max_iter=3, checkpoint=folder).fit(load_sift()[:2000])
    ...     centers = read_centers(folder)
    >>> bool((centers == model.cluster_centers_).all())
    True
    """
    path = checkpoint_file(path)
    with reading(path, "a checkpoint"):
        arrays, _ = _read_sound(path)
        centers: NDArray[Any] = arrays["state.clusters.centers"] + arrays["offset"]
        return centers


def digest_rows(X: Any) -> str:
    """Hash of all rows in their order."""
    whole = hashlib.blake2b(digest_size=8)
    for first in range(0, X.shape[0], DIGESTED_ROWS):
        whole.update(hash_rows(X, first, first + DIGESTED_ROWS).data)
    return whole.hexdigest()


def describe_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Summary of a checkpoint, for reports."""
    path = checkpoint_file(path)
    with reading(path, "a checkpoint"):
        status = read_status(path)
        last = status.history[-1]
        return {
            "kind": "checkpoint",
            "iterations": last.iteration,
            "seconds": last.seconds,
            "inertia": last.inertia,
            "converged": status.converged,
            "bytes": path.stat().st_size,
            **status.identity,
            **status.environment,
        }
