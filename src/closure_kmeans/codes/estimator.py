"""ResidualKMeans: k-means on rows, then on their residuals, level after level."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data
from tqdm.auto import tqdm

from closure_kmeans import ClosureKMeans, Iteration
from closure_kmeans import validation as check
from closure_kmeans.arrays import check_labels, check_new_rows, check_weights
from closure_kmeans.checkpoint import Resume, read_status
from closure_kmeans.codes.encoding import BLOCK_ROWS, count_collisions, encode_by_beam, encode_greedily
from closure_kmeans.codes.report import Report, judge
from closure_kmeans.codes.residuals import Residuals, as_floats, fit_gains
from closure_kmeans.codes.storage import CODES, pack_codes, unpack_codes
from closure_kmeans.files import FileFormatError, reading
from closure_kmeans.parallel import Threads, count_threads
from closure_kmeans.search import CenterIndex
from closure_kmeans.tensors import read_tensors, write_tensors
from closure_kmeans.vectors import Vectors

# Parameters passed on to each level.
SHARED = ("max_size", "max_iter", "tol", "target_accuracy", "checkpoint_every", "n_threads")


@dataclass(eq=False, repr=False)
class ResidualKMeans(BaseEstimator):
    """Residual k-means: encodes rows as short tuples of cluster numbers, for semantic ids and compression.

    The first level clusters the rows; each further level clusters the residuals: the rows minus the centres of their
    clusters in all previous levels. The codes of a row are its cluster numbers in all levels; the sum of their centres
    approximates the row. The levels are fitted by :class:`ClosureKMeans`, whose cost depends little on the number of
    clusters.

    Residuals are computed from the rows and the codes, block by block. Those of uint8, int8 and float16 rows are stored
    in float16, and with ``memory_limit`` in a temporary file only.

    Parameters
    ----------
    levels : sequence of int, default=(256, 256, 256)
        Number of clusters in each level.
    metric : {"euclidean", "cosine"}, default="euclidean"
        "cosine" L2-normalises the rows first; decoded rows approximate the normalised rows.
    normalize_residuals : bool, default=False
        L2-normalise residuals before each level, as some trainers of semantic ids do. Codes are used more evenly, and
        the distortion is higher. For decoding, the centres of each level are multiplied by one factor, fitted to the
        rows.
    unique : bool, default=False
        Append a number that distinguishes rows with equal codes: 0 for the first one, in the order of the rows. Codes
        then depend on the rows that are encoded together.
    max_size : float, default=None
        Upper bound on the cluster size in each level, in rows or total weight. It holds for ``codes_``; ``encode``
        takes the nearest centres and is not balanced.
    max_iter : int, default=100
        Maximum number of iterations per level.
    tol : float, default=5e-4
        A level has converged when its distortion changes by less than this fraction in an iteration.
    max_time : float, default=None
        Time budget in seconds for all levels. Each level gets an equal share of the remaining time, and does at least
        one iteration.
    target_accuracy : float, default=0.95
        Share of rows to be assigned to their nearest centre: see :class:`ClosureKMeans`.
    memory_limit : int or str, default=None
        Memory for the fit beyond the centres, in bytes or as a string such as "1GB". Rows, and the residuals of each
        level in the precision of the arithmetic, are then written to a temporary file.
    checkpoint : str or PathLike, default=None
        Folder for checkpoints, one file per level. ``fit(X, resume=True)`` continues from there.
    checkpoint_every : float, default=60
        Seconds between two checkpoints; 0 saves after every iteration.
    random_state : int, RandomState instance or None, default=None
        Seed. The same seed gives the same result, bit for bit, on any number of threads.
    n_threads : int, default=None
        Number of threads; ``None`` means all cores that the process, or its container, may use.
    callback : callable, default=None
        Called after each iteration with the number of the level, from 0, and the record of the iteration; a true return
        value ends the level.
    verbose : int, default=0
        Show a progress bar: of all levels in ``fit``, of the rows in ``encode``.

    Attributes
    ----------
    levels_ : list of ClosureKMeans
        The fitted levels, without ``labels_``: see ``codes_``.
    gains_ : (n_levels,) array of float64
        Factors of the centres of each level for decoding: 1 without ``normalize_residuals``.
    codes_ : (n, n_levels) array of int32
        Codes of the rows of the fit, with which the levels were trained; one more column if ``unique``. For up to a few
        per cent of the rows ``encode`` finds nearer centres.
    n_features_in_ : int
        Number of features.

    See Also
    --------
    ClosureKMeans : Fits the levels.
    closure_kmeans.codes.to_faiss : Codes in a FAISS index.

    Examples
    --------
    >>> from closure_kmeans import ResidualKMeans
    >>> from closure_kmeans.datasets import load_sift
    >>> X = load_sift()
    >>> model = ResidualKMeans([64, 64], random_state=0).fit(X)
    >>> codes = model.encode(X)
    >>> codes.shape, model.decode(codes).shape
    ((20000, 2), (20000, 128))
    >>> first, second = model.report(X).distortion
    >>> second < first
    True
    """

    levels: Sequence[int] = (256, 256, 256)
    _: KW_ONLY
    metric: Literal["euclidean", "cosine"] = "euclidean"
    normalize_residuals: bool = False
    unique: bool = False
    max_size: float | None = None
    max_iter: int = 100
    tol: float = 5e-4
    max_time: float | None = None
    target_accuracy: float = 0.95
    memory_limit: int | str | None = None
    checkpoint: str | os.PathLike[str] | None = None
    checkpoint_every: float = 60.0
    random_state: int | np.random.RandomState | None = None
    n_threads: int | None = None
    callback: Callable[[int, Iteration], Any] | None = None
    verbose: int = 0

    def _check_parameters(self) -> None:
        if np.ndim(self.levels) != 1 or len(self.levels) == 0:
            raise TypeError(f"levels must be a sequence of numbers of clusters, got {self.levels!r}")
        for size in self.levels:
            check.integer("each of levels", size, 1)
        check.choice("metric", self.metric, ("euclidean", "cosine"))
        check.boolean("normalize_residuals", self.normalize_residuals)
        check.boolean("unique", self.unique)
        check.number("max_time", self.max_time, 0, optional=True)
        check.verbose(self.verbose)
        if self.callback is not None and not callable(self.callback):
            raise TypeError(f"callback must be callable, got {self.callback!r}")
        if self.checkpoint is not None and not isinstance(self.checkpoint, str | os.PathLike):
            raise TypeError(f"checkpoint must be a path, got {self.checkpoint!r}")

    # -- fit -----------------------------------------------------------------------------------------------------------

    def fit(
        self, X: ArrayLike, y: None = None, sample_weight: ArrayLike | None = None, *, resume: Resume = False
    ) -> Self:
        """Fit the levels, one after the other.

        After Ctrl-C there is no model; with ``checkpoint`` the fit can be continued.

        Parameters
        ----------
        X : (n, d) array
            Rows of any kind that :meth:`ClosureKMeans.fit` takes.
        y : None
            Ignored.
        sample_weight : (n,) array, default=None
            Weights of the rows.
        resume : bool or "anyway", default=False
            Continue from ``checkpoint`` if it exists: see :meth:`ClosureKMeans.fit`.

        Returns
        -------
        ResidualKMeans
            The fitted estimator itself.

        Raises
        ------
        ValueError
            If a level has more clusters than there are rows, or a parameter is out of range.
        FileExistsError
            If there is a checkpoint, and ``resume`` is false.

        See Also
        --------
        ResidualKMeans.encode : Codes of new rows.

        Examples
        --------
        >>> from closure_kmeans import ResidualKMeans
        >>> model = ResidualKMeans([2, 2], random_state=0).fit([[0.0], [1.0], [9.0], [10.0]])
        >>> model.codes_.shape
        (4, 2)
        """
        began = time.perf_counter()
        self._check_parameters()
        check.resume(resume, "checkpoint", self.checkpoint)
        X = check.rows(X)
        rows = check.stored_rows(X) if self.memory_limit is not None else check.fitted_rows(X, self)
        if max(self.levels) > len(rows):
            raise ValueError(f"levels must be at most the number of rows, {len(rows)}, got {max(self.levels)}")
        weights = np.ones(1) if sample_weight is None else check_weights(sample_weight, len(rows))
        spherical = self.metric == "cosine"
        codes = np.empty((len(rows), len(self.levels)), np.int32)
        fitted: list[ClosureKMeans] = []
        seeds = self._seeds()
        with _Progress(self) as progress:
            for number in range(len(self.levels)):
                centers = [level.cluster_centers_ for level in fitted]
                residuals = Residuals(rows, codes, centers, spherical=spherical, normalized=self.normalize_residuals)
                given = self._given(rows, residuals, is_first=number == 0)
                level = self._level(number, seeds[number], codes.nbytes, began, resume)
                level.callback = progress.level(number)
                try:
                    level.fit(given, sample_weight=sample_weight, resume=resume)
                except ValueError as error:
                    if number == 0 or isinstance(error, FileFormatError):
                        raise
                    raise ValueError(f"in level {number + 1}, where X is the residuals: {error}") from error
                codes[:, number] = level.labels_
                level.set_params(callback=None, max_iter=self.max_iter)
                del level.labels_, given
                fitted.append(level)
        gains = np.ones(len(fitted))
        if self.normalize_residuals:
            gains = fit_gains(rows, codes, [level.cluster_centers_ for level in fitted], weights, spherical=spherical)
        validate_data(self, X, skip_check_array=True)
        self.levels_, self.gains_, self.codes_ = fitted, gains, self._numbered(codes)
        return self

    def _given(self, rows: Any, residuals: Residuals, *, is_first: bool) -> Any:
        """The input of a level: the rows, or residuals in memory, or residuals that are computed when read."""
        if is_first and self.metric == "euclidean" and not self.normalize_residuals:
            return rows
        if self.memory_limit is not None:
            return residuals
        dtype = np.float16 if rows.dtype.itemsize < residuals.dtype.itemsize else residuals.dtype
        with Threads(count_threads(self.n_threads)) as threads:
            return residuals.hold(dtype, threads)

    def _level(self, number: int, seed: Any, code_bytes: int, began: float, resume: Resume) -> ClosureKMeans:
        """The estimator of a level."""
        settings: dict[str, Any] = {name: getattr(self, name) for name in SHARED}
        if self.max_time is not None:
            left = self.max_time - (time.perf_counter() - began)
            settings["max_time"] = max(0.0, left) / (len(self.levels) - number)
        if self.memory_limit is not None:
            settings["memory_limit"] = max(1, check.n_bytes("memory_limit", self.memory_limit) - code_bytes)
        if self.checkpoint is not None:
            path, following = (Path(self.checkpoint) / f"level-{i}.safetensors" for i in (number + 1, number + 2))
            settings["checkpoint"] = path
            if resume and path.exists() and following.exists():  # this level ended here, for whatever reason
                settings["max_iter"] = len(read_status(path).history)
        return ClosureKMeans(int(self.levels[number]), random_state=seed, **settings)

    def _seeds(self) -> Sequence[Any]:
        """One seed per level; ``None`` without ``random_state``."""
        if self.random_state is None:
            return [None] * len(self.levels)
        return [int(seed) for seed in check.generator(self.random_state).integers(2**32, size=len(self.levels))]

    # -- codes ---------------------------------------------------------------------------------------------------------

    @property
    def codebooks_(self) -> list[NDArray[Any]]:
        """The (k, d) centres of each level, multiplied by ``gains_``.

        See Also
        --------
        ResidualKMeans.decode : Sums of these centres.

        Examples
        --------
        >>> from closure_kmeans import ResidualKMeans
        >>> model = ResidualKMeans([3, 2], random_state=0).fit([[0.0], [1.0], [9.0], [10.0]])
        >>> [centers.shape for centers in model.codebooks_]
        [(3, 1), (2, 1)]
        """
        check_is_fitted(self, "levels_")
        pairs = zip(self.levels_, self.gains_, strict=True)
        return [level.cluster_centers_ * level.cluster_centers_.dtype.type(gain) for level, gain in pairs]

    def encode(self, X: ArrayLike, *, beam: int = 1) -> NDArray[np.int32]:
        """Encode rows.

        Parameters
        ----------
        X : (n, d) array
            Rows of any kind that ``fit`` takes; ``Vectors`` are read block by block.
        beam : int, default=1
            Number of paths of the beam search. 1 is greedy: the nearest centre in each level, found as by
            :meth:`ClosureKMeans.predict`. More paths lower the distortion and take more than ``beam`` times as long.

        Returns
        -------
        codes : (n, n_levels) array of int32
            A pure function of each row, except for the last column if ``unique``.

        See Also
        --------
        ResidualKMeans.decode : Approximate rows from their codes.
        closure_kmeans.codes.as_text : Codes as tokens.

        Examples
        --------
        >>> from closure_kmeans import ResidualKMeans
        >>> X = np.array([[0.0], [1.0], [9.0], [10.0]])
        >>> model = ResidualKMeans([2, 2], random_state=0).fit(X)
        >>> model.encode(X).shape
        (4, 2)
        """
        check.integer("beam", beam, 1)
        return self._encode(self._check(X), beam)

    def _encode(self, rows: Any, beam: int = 1) -> NDArray[np.int32]:
        codes = np.empty((len(rows), len(self.levels_)), np.int32)
        indexes = self._indexes()
        with tqdm(total=len(rows), desc="encoding", unit=" rows", unit_scale=True, disable=not self.verbose) as bar:
            for some, block in self._blocks(rows, max(1, BLOCK_ROWS // beam)):
                if beam == 1:
                    codes[some] = encode_greedily(block, indexes, self.normalize_residuals)
                else:
                    codes[some] = encode_by_beam(block, indexes, self.normalize_residuals, beam)
                bar.update(len(block))
        return self._numbered(codes)

    def decode(self, codes: ArrayLike) -> NDArray[Any]:
        """Decode codes: sums of the centres of the codes, which approximate the rows.

        With the metric "cosine" they approximate the L2-normalised rows.

        Parameters
        ----------
        codes : array-like of int, shape (n, n_levels)
            Codes, with or without the last column of ``unique``.

        Returns
        -------
        rows : (n, d) array of float32 or float64
            Approximations of the rows.

        Raises
        ------
        ValueError
            If the codes are not those of this model: see ``level_codes``.

        See Also
        --------
        ResidualKMeans.encode : Codes of rows.

        Examples
        --------
        >>> from closure_kmeans import ResidualKMeans
        >>> X = np.array([[0.0], [1.0], [9.0], [10.0]])
        >>> model = ResidualKMeans([2, 2], random_state=0).fit(X)
        >>> model.decode(model.encode(X)).ravel().tolist()
        [0.0, 1.0, 9.0, 10.0]
        """
        codebooks = self.codebooks_
        checked = self.level_codes(codes)
        decoded: NDArray[Any] = codebooks[0][checked[:, 0]]
        for level, centers in enumerate(codebooks[1:], 1):
            decoded += centers[checked[:, level]]
        return decoded

    def report(self, X: ArrayLike, codes: ArrayLike | None = None) -> Report:
        """Measure the quality of codes: distortion, unique ids, usage and perplexity of the levels.

        Parameters
        ----------
        X : (n, d) array
            Rows of any kind that ``encode`` takes.
        codes : (n, n_levels) array, default=None
            Codes of the rows, such as ``codes_``; by default those of ``encode``.

        Returns
        -------
        closure_kmeans.codes.Report
            The measurements.

        Raises
        ------
        ValueError
            If ``codes`` and ``X`` differ in the number of rows.

        See Also
        --------
        closure_kmeans.codes.count_collisions : Rows with equal codes.

        Examples
        --------
        >>> from closure_kmeans import ResidualKMeans
        >>> X = np.array([[0.0], [1.0], [9.0], [10.0]])
        >>> ResidualKMeans([2, 2], random_state=0).fit(X).report(X).distortion
        [0.25, 0.0]
        """
        rows = self._check(X)
        given = self.level_codes(self._encode(rows) if codes is None else codes)
        if len(given) != len(rows):
            raise ValueError(f"codes must be of the {len(rows)} rows of X, got {len(given)}")
        return judge(self._blocks(rows, BLOCK_ROWS), given, self.codebooks_)

    def _check(self, X: ArrayLike) -> Any:
        """Check new rows: an array, or vectors in a file."""
        check_is_fitted(self, "levels_")
        given = check.rows(X)
        as_they_are = isinstance(given, Vectors) and given.dtype in check.DTYPES
        rows = given if as_they_are else check.fitted_rows(given, self)
        validate_data(self, given, reset=False, skip_check_array=True)
        return rows

    def _blocks(self, rows: Any, size: int) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Blocks of rows as floats, L2-normalised for cosine."""
        center = self.levels_[0].cluster_centers_[0]
        for first in range(0, len(rows), size):
            some = slice(first, min(first + size, len(rows)))
            block = np.asarray(rows[some])
            check_new_rows(block, center, first)
            floats = as_floats(block, self.metric == "cosine", range(some.start, some.stop))
            yield some, floats.astype(np.result_type(floats, center), copy=False)

    def _indexes(self) -> list[CenterIndex]:
        for level in self.levels_:
            level.n_threads = self.n_threads
        return [level.center_index_ for level in self.levels_]

    def _numbered(self, codes: NDArray[np.int32]) -> NDArray[np.int32]:
        """Append the numbers that make codes unique, if ``unique``."""
        return np.column_stack([codes, count_collisions(codes)]) if self.unique else codes

    def level_codes(self, codes: ArrayLike) -> NDArray[Any]:
        """Check codes; returns them without the numbers that make them unique.

        Parameters
        ----------
        codes : array-like of int, shape (n, n_levels)
            Codes, with or without the last column of ``unique``.

        Returns
        -------
        codes : (n, n_levels) array of int
            One number per level.

        Raises
        ------
        ValueError
            If the shape does not match the model, or a number is not that of a cluster of its level.

        See Also
        --------
        closure_kmeans.codes.count_collisions : The numbers of the last column.

        Examples
        --------
        >>> from closure_kmeans import ResidualKMeans
        >>> model = ResidualKMeans([2, 2], unique=True, random_state=0).fit([[0.0], [1.0], [9.0], [9.0]])
        >>> model.codes_.shape, model.level_codes(model.codes_).shape
        ((4, 3), (4, 2))
        """
        array = np.asarray(codes)
        widths = (len(self.levels_), len(self.levels_) + 1)[: 1 + self.unique]
        if array.ndim != 2 or array.shape[1] not in widths:
            wanted = " or ".join(map(str, widths))
            raise ValueError(f"codes must have shape (n, {wanted}), one number for each level, got {array.shape}")
        for number, level in enumerate(self.levels_):
            check_labels(f"codes of level {number + 1}", array[:, number], len(array), len(level.cluster_centers_))
        return array[:, : len(self.levels_)]

    # -- files ---------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a ``.safetensors`` file, for ``ResidualKMeans.load``.

        The loaded model encodes and decodes to the same bits. The file does not contain ``codes_``.

        Parameters
        ----------
        path : str or PathLike
            File to write; an existing one is replaced atomically.

        See Also
        --------
        ResidualKMeans.load : Read the file.

        Examples
        --------
        >>> from tempfile import TemporaryDirectory
        >>> from closure_kmeans import ResidualKMeans
        >>> model = ResidualKMeans([2, 2], random_state=0).fit([[0.0], [1.0], [9.0], [10.0]])
        >>> with TemporaryDirectory() as folder:
        ...     model.save(f"{folder}/items.codes.safetensors")
        ...     ResidualKMeans.load(f"{folder}/items.codes.safetensors").levels
        [2, 2]
        """
        check_is_fitted(self, "levels_")
        write_tensors(Path(path), CODES, *pack_codes(self))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Load a saved model; ``n_threads``, ``verbose`` and other parameters of a run have their defaults.

        Parameters
        ----------
        path : str or PathLike
            File written by ``save``.

        Returns
        -------
        ResidualKMeans
            The fitted model, without ``codes_``.

        Raises
        ------
        FileFormatError
            A ``ValueError``: the file is truncated, damaged, or not a model of codes.

        See Also
        --------
        ResidualKMeans.save : Write the file.

        Examples
        --------
        >>> from tempfile import TemporaryDirectory
        >>> from closure_kmeans import ResidualKMeans
        >>> from closure_kmeans.datasets import load_sift
        >>> model = ResidualKMeans([16, 16], random_state=0).fit(load_sift()[:2000])
        >>> with TemporaryDirectory() as folder:
        ...     model.save(f"{folder}/items.codes.safetensors")
        ...     loaded = ResidualKMeans.load(f"{folder}/items.codes.safetensors")
        >>> bool((loaded.encode(load_sift()) == model.encode(load_sift())).all())
        True
        """
        path = Path(path)
        path.stat()
        with reading(path, "codes"):
            model = unpack_codes(cls, path, *read_tensors(path, CODES))
            model._check_parameters()
        return model


class _Progress:
    """Progress bar over the iterations of all levels; calls the callback."""

    def __init__(self, model: ResidualKMeans) -> None:
        self._callback, self._max_iter, self._n_levels = model.callback, model.max_iter, len(model.levels)
        self._bar = tqdm(
            total=self._n_levels * self._max_iter, disable=not model.verbose, unit="it", desc=type(model).__name__
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.total = self._bar.n  # complete, even if below max_iter
        self._bar.close()

    def level(self, number: int) -> Callable[[Iteration], Any]:
        """The callback of a level. Previous levels have ended: the total counts only the iterations that they did."""
        self._bar.total = self._bar.n + (self._n_levels - number) * self._max_iter
        self._bar.set_description(f"level {number + 1} of {self._n_levels}")

        def note(record: Iteration) -> Any:
            self._bar.set_postfix_str(f"inertia {record.inertia:.6g}", refresh=False)
            self._bar.update()
            return self._callback is not None and self._callback(number, record)

        return note
