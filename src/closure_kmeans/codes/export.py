"""Export: FAISS indexes that decode to the same rows, ids as text, Parquet tables."""

from __future__ import annotations

import os
import string
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from closure_kmeans.export import write_faiss
from closure_kmeans.files import library, replacing

if TYPE_CHECKING:
    from closure_kmeans.codes.estimator import ResidualKMeans

# Rows written to a table at a time.
TABLE_ROWS = 1 << 16


def to_faiss(model: ResidualKMeans, codes: ArrayLike | None = None) -> Any:
    """Build a FAISS index of a residual quantizer with the codebooks of a model: ``IndexResidualQuantizer``.

    It decodes codes to the same rows as the model. FAISS's own encoding is greedy (``index.rq.max_beam_size`` is 1) and
    exhaustive. Codebooks are padded to a power of two with copies of their first centre.

    Parameters
    ----------
    model : ResidualKMeans
        A fitted model without ``normalize_residuals``, which FAISS does not support.
    codes : (n, n_levels) array, default=None
        Codes of rows to add to the index.

    Returns
    -------
    index : faiss.IndexResidualQuantizer
        Trained, and empty without ``codes``.

    Raises
    ------
    ValueError
        If the model has ``normalize_residuals``.
    ImportError
        If FAISS is not installed: ``pip install 'closure-kmeans[faiss]'``.

    See Also
    --------
    to_faiss_ivf : Index with inverted lists.
    save_faiss : Write the index to a file.

    Examples
    --------
    >>> from closure_kmeans import ResidualKMeans
    >>> from closure_kmeans.datasets import load_sift
    >>> X = load_sift()[:2000]
    >>> model = ResidualKMeans([16, 16], random_state=0).fit(X)
    >>> codes = model.encode(X)
    >>> index = to_faiss(model, codes)
    >>> bool(np.allclose(index.reconstruct_n(0, 2000), model.decode(codes), rtol=1e-5))
    True
    """
    faiss = library("faiss", "faiss", "an index of FAISS")
    codebooks = _codebooks(model)
    index = faiss.IndexResidualQuantizer(codebooks[0].shape[1], _n_bits(faiss, codebooks), faiss.METRIC_L2)
    _train(faiss, index.rq, codebooks)
    index.is_trained = True
    if codes is not None:
        index.add_sa_codes(_packed(faiss, index.rq, model.level_codes(codes)))
    return index


def to_faiss_ivf(model: ResidualKMeans, codes: ArrayLike | None = None) -> Any:
    """Build a FAISS index whose inverted lists are the clusters of the first level: ``IndexIVFResidualQuantizer``.

    The lists hold the codes of the other levels. The index decodes to the same rows as the model.

    Parameters
    ----------
    model : ResidualKMeans
        A fitted model of two levels or more, without ``normalize_residuals``.
    codes : (n, n_levels) array, default=None
        Codes of rows to add to the index.

    Returns
    -------
    index : faiss.IndexIVFResidualQuantizer
        Trained, and empty without ``codes``.

    Raises
    ------
    ValueError
        If the model has one level only, or ``normalize_residuals``.
    ImportError
        If FAISS is not installed: ``pip install 'closure-kmeans[faiss]'``.

    See Also
    --------
    to_faiss : Index without inverted lists.
    save_faiss : Write the index to a file.

    Examples
    --------
    >>> from closure_kmeans import ResidualKMeans
    >>> from closure_kmeans.datasets import load_sift
    >>> model = ResidualKMeans([16, 16], random_state=0).fit(load_sift()[:2000])
    >>> index = to_faiss_ivf(model, model.codes_)
    >>> index.nlist, index.ntotal
    (16, 2000)
    """
    faiss = library("faiss", "faiss", "an index of FAISS")
    codebooks = _codebooks(model)
    if len(codebooks) < 2:
        raise ValueError(f"an inverted file of codes needs two levels or more, got {len(codebooks)}")
    (n_lists, width), rest = codebooks[0].shape, codebooks[1:]
    quantizer = faiss.IndexFlatL2(width)
    quantizer.add(codebooks[0])
    index = faiss.IndexIVFResidualQuantizer(quantizer, width, n_lists, _n_bits(faiss, rest), faiss.METRIC_L2)
    index.referenced_objects = [quantizer]  # the index has only a pointer to it
    _train(faiss, index.rq, rest)
    index.is_trained = True
    if codes is not None:
        checked = model.level_codes(codes)
        packed = _packed(faiss, index.rq, checked[:, 1:])
        order = np.argsort(checked[:, 0], kind="stable")
        lists, starts = np.unique(checked[order, 0], return_index=True)
        for number, rows in zip(lists.tolist(), np.split(order, starts[1:]), strict=True):
            entries = np.ascontiguousarray(packed[rows])
            ids = rows.astype(np.int64)
            index.invlists.add_entries(number, len(rows), faiss.swig_ptr(ids), faiss.swig_ptr(entries))
        index.ntotal = len(checked)
    return index


def save_faiss(
    path: str | os.PathLike[str], model: ResidualKMeans, codes: ArrayLike | None = None, *, ivf: bool = False
) -> None:
    """Write the index of ``to_faiss``, or of ``to_faiss_ivf``, to a file, for ``faiss.read_index``.

    Parameters
    ----------
    path : str or PathLike
        File to write; an existing one is replaced atomically.
    model : ResidualKMeans
        A fitted model without ``normalize_residuals``.
    codes : (n, n_levels) array, default=None
        Codes of rows to add to the index.
    ivf : bool, default=False
        Whether to write the index of ``to_faiss_ivf``.

    Raises
    ------
    ImportError
        If FAISS is not installed: ``pip install 'closure-kmeans[faiss]'``.

    See Also
    --------
    to_faiss : The index in memory.
    to_faiss_ivf : The index with inverted lists in memory.

    Examples
    --------
    >>> import faiss
    >>> from tempfile import TemporaryDirectory
    >>> from closure_kmeans import ResidualKMeans
    >>> from closure_kmeans.datasets import load_sift
    >>> model = ResidualKMeans([16, 16], random_state=0).fit(load_sift()[:2000])
    >>> with TemporaryDirectory() as folder:
    ...     save_faiss(f"{folder}/codes.faiss", model, model.codes_)
    ...     faiss.read_index(f"{folder}/codes.faiss").ntotal
    2000
    """
    write_faiss(path, (to_faiss_ivf if ivf else to_faiss)(model, codes))


def as_text(codes: ArrayLike) -> list[str]:
    """Format codes as text tokens for language models: a letter for the level, and the number.

    Parameters
    ----------
    codes : array-like of int, shape (n, n_levels)
        Codes of the rows, of at most 26 levels.

    Returns
    -------
    tokens : list of str
        One text per row.

    Raises
    ------
    ValueError
        If ``codes`` has another shape.

    See Also
    --------
    save_table : Write the text and the codes to a file.

    Examples
    --------
    >>> as_text([[17, 4021, 77]])
    ['<a_17><b_4021><c_77>']
    """
    array = np.asarray(codes)
    if array.ndim != 2 or array.shape[1] > len(string.ascii_lowercase):
        raise ValueError(f"codes must have shape (n, at most 26 levels), got {array.shape}")
    template = "".join(f"<{letter}_{{}}>" for letter in string.ascii_lowercase[: array.shape[1]])
    return [template.format(*row) for row in array.tolist()]


def save_table(path: str | os.PathLike[str], codes: NDArray[np.int32]) -> None:
    """Write a Parquet file with the columns ``row``, ``id`` (the codes as text) and ``codes`` (a list of numbers).

    Parameters
    ----------
    path : str or PathLike
        File to write; an existing one is replaced atomically.
    codes : (n, n_levels) array of int32
        Codes of the rows.

    Raises
    ------
    ImportError
        If PyArrow is not installed: ``pip install 'closure-kmeans[io]'``.

    See Also
    --------
    as_text : The texts.

    Examples
    --------
    >>> import pyarrow.parquet
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     save_table(f"{folder}/ids.parquet", np.array([[1, 2], [3, 4]], np.int32))
    ...     pyarrow.parquet.read_table(f"{folder}/ids.parquet")["id"].to_pylist()
    ['<a_1><b_2>', '<a_3><b_4>']
    """
    arrow = library("pyarrow", "io", "a Parquet file")
    parquet = library("pyarrow.parquet", "io", "a Parquet file")

    def table_of(first: int) -> Any:
        some = codes[first : first + TABLE_ROWS]
        lists = arrow.FixedSizeListArray.from_arrays(arrow.array(some.ravel()), codes.shape[1])
        return arrow.table({"row": np.arange(first, first + len(some)), "id": as_text(some), "codes": lists})

    with (
        replacing(Path(path)) as beside,
        beside.open("wb") as file,  # closes the file after an error, too
        parquet.ParquetWriter(file, table_of(0).schema) as writer,
    ):
        for first in range(0, len(codes), TABLE_ROWS):
            writer.write_table(table_of(first))


def _codebooks(model: ResidualKMeans) -> list[NDArray[np.float32]]:
    if model.normalize_residuals:
        raise ValueError("FAISS has no residual quantizer with normalize_residuals=True: export a model without it")
    return [np.ascontiguousarray(centers, np.float32) for centers in model.codebooks_]


def _n_bits(faiss: Any, codebooks: list[NDArray[np.float32]]) -> Any:
    """Bits per code of each codebook, as a FAISS vector."""
    n_bits = faiss.UInt64Vector()
    for centers in codebooks:
        n_bits.push_back(max(1, (len(centers) - 1).bit_length()))
    return n_bits


def _train(faiss: Any, quantizer: Any, codebooks: list[NDArray[np.float32]]) -> None:
    """Set the codebooks of a FAISS residual quantizer."""
    filled = []
    for centers in codebooks:
        size = 2 ** max(1, (len(centers) - 1).bit_length())
        filled += [centers, np.tile(centers[:1], (size - len(centers), 1))]
    faiss.copy_array_to_vector(np.concatenate(filled).ravel(), quantizer.codebooks)
    quantizer.max_beam_size = 1
    quantizer.train_type |= faiss.ResidualQuantizer.Skip_codebook_tables  # for beam search only
    quantizer.is_trained = True


def _packed(faiss: Any, quantizer: Any, codes: NDArray[Any]) -> NDArray[np.uint8]:
    """Pack codes into the bits that FAISS stores."""
    numbers = np.ascontiguousarray(codes, np.int32)
    packed = np.zeros((len(codes), quantizer.code_size), np.uint8)
    quantizer.pack_codes(len(codes), faiss.swig_ptr(numbers), faiss.swig_ptr(packed))
    return packed
