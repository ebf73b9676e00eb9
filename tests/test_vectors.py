import pickle
import struct
import subprocess
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from mutations import read_mutated

from closure_kmeans import ClosureKMeans
from closure_kmeans.vectors import FileFormatError, Vectors, open_vectors, save_vectors

N_ROWS, WIDTH = 50, 8
DTYPES = {
    ".npy": np.float16,
    ".fvecs": np.float32,
    ".bvecs": np.uint8,
    ".ivecs": np.int32,
    ".fbin": np.float32,
    ".u8bin": np.uint8,
    ".i8bin": np.int8,
    ".hdf5": np.float32,
    ".h5": np.float32,
    ".parquet": np.float32,
    ".pq": np.float64,
}
MAPPED = [".npy", ".fvecs", ".bvecs", ".ivecs", ".fbin", ".u8bin", ".i8bin", ".hdf5"]


def values(suffix):
    X = np.random.default_rng(0).integers(0, 127, (N_ROWS, WIDTH))
    return X.astype(DTYPES[suffix])


def as_lists(X, fixed=True):
    if not fixed:
        return pa.array(list(X))
    return pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), X.shape[1])


def write(path, X):
    """A file of each kind, those that we do not write ourselves by their own libraries."""
    if path.suffix in (".hdf5", ".h5"):
        chunks = {"chunks": (7, 3), "compression": "gzip"} if path.suffix == ".h5" else {}
        with h5py.File(path, "w") as file:
            file.create_dataset("train", data=X, **chunks)
            file["test"] = X[:3]
    elif path.suffix in (".parquet", ".pq"):
        table = {"id": range(len(X)), "vector": as_lists(X, fixed=path.suffix == ".parquet")}
        pq.write_table(pa.table(table), path, row_group_size=20)
    else:
        save_vectors(path, X)
    return path


@pytest.fixture(params=DTYPES)
def suffix(request):
    return request.param


def test_all_formats_give_back_what_was_written(suffix, tmp_path):
    X = values(suffix)
    rows = open_vectors(write(tmp_path / f"rows{suffix}", X))
    assert rows.shape == X.shape
    assert rows.dtype == X.dtype
    np.testing.assert_array_equal(np.asarray(rows), X)
    for some in (slice(3, 29), slice(None, None, 7), slice(45, 90), slice(19, 41, 20), slice(7, 7)):
        assert isinstance(rows[some], np.ndarray)
        np.testing.assert_array_equal(rows[some], X[some])


def test_threads_read_at_once(suffix, tmp_path):
    """An open Parquet file that several threads read from took the process down."""
    X = values(suffix)
    rows = open_vectors(write(tmp_path / f"rows{suffix}", X))
    some = [slice(first, first + 15) for first in np.random.default_rng(0).integers(0, 40, 500)]
    with ThreadPoolExecutor(8) as pool:
        for part, read in zip(some, pool.map(rows.__getitem__, some), strict=True):
            np.testing.assert_array_equal(read, X[part])


CHUNK = 100


@pytest.fixture
def chunks_read(monkeypatch):
    """The first row of every chunk of HDF5, and every row group of Parquet, each time that it is read."""
    read = []
    read_hdf5, read_parquet = h5py.Dataset.__getitem__, pq.ParquetFile.iter_batches

    def note_chunks(data, rows):
        first, last, _ = rows.indices(len(data))
        read.extend(range(first // CHUNK * CHUNK, last, CHUNK))
        return read_hdf5(data, rows)

    def note_groups(file, *arguments, **options):
        read.extend(CHUNK * group for group in options.get("row_groups", ()))
        return read_parquet(file, *arguments, **options)

    monkeypatch.setattr(h5py.Dataset, "__getitem__", note_chunks)
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", note_groups)
    return read


def write_chunks(path, X):
    if path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            file.create_dataset("train", data=X, chunks=(CHUNK, 3), compression="gzip")
    else:
        pq.write_table(pa.table({"vector": as_lists(X)}), path, row_group_size=CHUNK)
    return path


@pytest.mark.parametrize("group_bytes", [1, 10_000])  # a chunk at a time, and three
@pytest.mark.parametrize("suffix", [".h5", ".parquet"])
def test_each_chunk_is_read_once(suffix, group_bytes, tmp_path, chunks_read, monkeypatch):
    """Small blocks in order, or every so many-th row: chunks larger than HDF5's cache were read for each block."""
    monkeypatch.setattr("closure_kmeans.vectors.rows.GROUP_BYTES", group_bytes)
    X = np.random.default_rng(0).normal(size=(1050, 8)).astype(np.float32)
    path = write_chunks(tmp_path / f"rows{suffix}", X)
    for step in (1, 13):
        rows = open_vectors(path)
        for first in range(0, len(X), 30 * step):
            some = slice(first, first + 30 * step, step)
            np.testing.assert_array_equal(rows[some], X[some])
        assert chunks_read == list(range(0, len(X), CHUNK))
        chunks_read.clear()
    np.testing.assert_array_equal(np.asarray(open_vectors(path)), X)
    assert chunks_read == list(range(0, len(X), CHUNK))


@pytest.mark.parametrize("suffix", [".h5", ".parquet"])
def test_a_fit_reads_each_chunk_a_few_times(suffix, tmp_path, chunks_read, monkeypatch):
    """Once to look for distinct rows, twice for a sample, once to find the cells and once to write them."""
    monkeypatch.setattr("closure_kmeans.vectors.rows.GROUP_BYTES", 1)
    monkeypatch.setattr("closure_kmeans.vectors.rows.KEPT_BYTES", 1)
    monkeypatch.setattr("closure_kmeans.stores.layout.WIDENED_VALUES", 8 * 10)  # blocks of ten rows
    X = np.random.default_rng(0).normal(size=(1050, 8)).astype(np.float32)
    rows = open_vectors(write_chunks(tmp_path / f"rows{suffix}", X))
    ClosureKMeans(9, memory_limit="5MB", random_state=0, n_threads=1).fit(rows)
    assert 3 <= len(chunks_read) / len(set(chunks_read)) <= 5


def test_arrays_in_chunks_are_read_by_chunks():
    class Chunked:  # as zarr and h5py have it
        chunks = (CHUNK, 8)

        def __init__(self, array):
            self.array, self.shape, self.dtype, self.read = array, array.shape, array.dtype, []

        def __getitem__(self, rows):
            self.read.append(rows)
            return self.array[rows]

    source = Chunked(np.arange(8 * 1050, dtype=np.float64).reshape(1050, 8))
    rows = open_vectors(source)
    for first in range(0, 1050, 30):
        np.testing.assert_array_equal(rows[first : first + 30], source.array[first : first + 30])
    assert source.read == [slice(0, 1050)]  # small chunks are read together


@pytest.mark.parametrize("suffix", [".h5", ".parquet"])
def test_two_groups_are_in_memory_at_most(suffix, tmp_path, monkeypatch):
    monkeypatch.setattr("closure_kmeans.vectors.rows.GROUP_BYTES", 1)
    monkeypatch.setattr("closure_kmeans.vectors.rows.KEPT_BYTES", 1)
    X = np.random.default_rng(0).normal(size=(CHUNK, 2500)).astype(np.float32)
    for i in range(6):
        write_chunks(tmp_path / f"{i}{suffix}", X)
    rows = open_vectors(tmp_path)
    assert rows.group_bytes == X.nbytes
    tracemalloc.start()
    for first in range(0, len(rows), 10):
        assert len(rows[first : first + 10]) == 10
    assert len(rows[::7]) == 86
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * X.nbytes


@pytest.mark.parametrize("suffix", MAPPED)
def test_rows_that_lie_side_by_side_are_mapped(suffix, tmp_path):
    rows = open_vectors(write(tmp_path / f"rows{suffix}", values(suffix)))
    assert isinstance(rows, np.memmap)
    assert not rows.flags.writeable


def test_layouts_byte_for_byte(tmp_path):
    X = np.array([[1, 2, 3], [4, 5, 6]], np.uint8)
    save_vectors(tmp_path / "rows.bvecs", X)
    assert (tmp_path / "rows.bvecs").read_bytes() == struct.pack("<i3Bi3B", 3, 1, 2, 3, 3, 4, 5, 6)
    save_vectors(tmp_path / "rows.u8bin", X)
    assert (tmp_path / "rows.u8bin").read_bytes() == struct.pack("<II6B", 2, 3, 1, 2, 3, 4, 5, 6)
    save_vectors(tmp_path / "rows.fvecs", X)  # what fits is widened
    assert (tmp_path / "rows.fvecs").read_bytes() == struct.pack("<i3fi3f", 3, 1, 2, 3, 3, 4, 5, 6)


def test_many_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr("closure_kmeans.vectors.rows.BLOCK_BYTES", 100)
    monkeypatch.setattr("closure_kmeans.vectors.binary.BLOCK_BYTES", 100)
    for suffix in DTYPES:
        X = values(suffix)
        np.testing.assert_array_equal(np.asarray(open_vectors(write(tmp_path / f"rows{suffix}", X))), X)


def test_a_folder_of_shards(suffix, tmp_path):
    X = values(suffix)
    for name, some in (("b", slice(20, 40)), ("a", slice(0, 20)), ("c", slice(40, 50))):
        write(tmp_path / f"{name}{suffix}", X[some])
    (tmp_path / "README.md").write_text("not vectors")
    rows = open_vectors(tmp_path)
    assert isinstance(rows, Vectors)
    assert f"50 x 8 {X.dtype}" in repr(rows)
    np.testing.assert_array_equal(np.asarray(rows), X)
    np.testing.assert_array_equal(rows[10:48:9], X[10:48:9])


def test_bad_folders(tmp_path):
    with pytest.raises(FileFormatError, match="must hold files of vectors of one kind, but there is none"):
        open_vectors(tmp_path)
    save_vectors(tmp_path / "a.fbin", np.ones((3, 4), np.float32))
    save_vectors(tmp_path / "b.fbin", np.ones((3, 5), np.float32))
    with pytest.raises(FileFormatError, match=r"b.fbin' must have the width of '.*a.fbin', 4, but has 5"):
        open_vectors(tmp_path)
    save_vectors(tmp_path / "b.npy", np.ones((3, 4)))
    with pytest.raises(FileFormatError, match=r"of one kind, but there are \.fbin, \.npy"):
        open_vectors(tmp_path)
    (tmp_path / "a.fbin").unlink()
    (tmp_path / "b.fbin").unlink()
    save_vectors(tmp_path / "c.npy", np.ones((3, 4), np.float32))
    with pytest.raises(FileFormatError, match=r"c.npy' must have the dtype of '.*b.npy', float64, but has float32"):
        open_vectors(tmp_path)


def test_arrays_are_taken_as_they_are():
    X = np.ones((3, 2), np.float16)
    assert open_vectors(X) is X
    rows = open_vectors(zarr.array(values(".fbin"), chunks=(7, 8)))
    np.testing.assert_array_equal(rows[5:30], values(".fbin")[5:30])
    assert open_vectors(rows) is rows


def test_tensors_share_their_memory():
    class Tensor:  # as much of PyTorch's as is needed
        def __init__(self, array):
            self.array = array

        def detach(self):
            return self

        def cpu(self):
            return self

        def numpy(self):
            return self.array

    X = values(".fbin")
    assert open_vectors(Tensor(X)) is X


def test_a_real_tensor():
    torch = pytest.importorskip("torch")
    tensor = torch.ones((3, 2), requires_grad=True)
    assert open_vectors(tensor).ctypes.data == tensor.data_ptr()


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ([[1, 2]], TypeError, "must be a path, or an array with shape, dtype and slices, got list"),
        (np.ones(3), FileFormatError, "'ndarray' must have two dimensions, but has shape"),
        (np.ones((3, 0)), FileFormatError, "must have rows and columns, but is 3 x 0"),
        (
            np.ones((3, 2), complex),
            FileFormatError,
            "integers or floating-point numbers, but holds complex128",
        ),
        (np.ones((3, 2), object), FileFormatError, "must hold integers or floating-point numbers, but holds object"),
        ("nowhere.npy", FileNotFoundError, "nowhere.npy"),
        ("nowhere.txt", FileNotFoundError, "nowhere.txt"),
        (__file__, FileFormatError, "test_vectors.py' must end in one of .npy, .fvecs, "),
    ],
)
def test_bad_sources(source, error, message):
    with pytest.raises(error, match=message):
        open_vectors(source)


def test_bad_slices(tmp_path):
    rows = open_vectors(write(tmp_path / "rows.h5", values(".h5")))
    with pytest.raises(TypeError, match="read by slices of rows, got int"):
        rows[3]
    with pytest.raises(ValueError, match="must go forward, got a step of -1"):
        rows[::-1]
    with pytest.raises(ValueError, match="without a copy"):
        rows.__array__(copy=False)


def npy(header, data=b""):
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.npy", b"", "must have at least 10 bytes, but is empty"),
        ("a.npy", b"P5 640 480 255 ", "must begin like a .npy file, but it begins with the bytes 50 35 20 36$"),
        ("a.npy", b"PK\x03\x04" + bytes(100), r"must begin like a \.npy file, but it begins like a \.npz file$"),
        ("a.npy", npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4)}", b"\0" * 47), "48 bytes|but has 175"),
        ("a.npy", npy("{'descr': '<f4', 'fortran_order': False, 'shape': (9**9, 4)}"), "cannot be read as .npy"),
        ("a.npy", npy("{'descr': '|O', 'fortran_order': False, 'shape': (3, 4)}", b"\0" * 96), "but holds object"),
        ("a.npy", npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-3, -4)}", b"\0" * 48), "but is -3 x -4"),
        ("a.npy", npy("{'descr': '<f4', 'fortran_order': False, 'shape': (True, 4)}", b"\0" * 16), "whole numbers"),
        ("a.npy", npy("{'descr': '<f4', 'fortran_order': False, 'shape': (12,)}", b"\0" * 48), "two dimensions"),
        ("a.npy", npy("__import__('os').abort()"), "cannot be read as .npy"),
        ("a.npy", b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "12 bytes, but a header of 4294967295 bytes"),
        ("a.npy", b"\x93NUMPY\x09\x00\x01\x00\x00\x00 ", "cannot be read as .npy"),
        ("a.fvecs", b"", "is empty"),
        ("a.fvecs", struct.pack("<i3f", 4, 1, 2, 3), "16 bytes, but its first row should have 4 values of float32"),
        ("a.fvecs", struct.pack("<i3f", -3, 1, 2, 3), "should have -3 values"),
        ("a.fvecs", struct.pack(">i3f", 3, 1, 2, 3), "should have 50331648 values"),
        (
            "a.fvecs",
            struct.pack("<i3fi2f", 3, 1, 2, 3, 3, 4, 5),
            "whole rows of 16 bytes .* 28 bytes, 12 too many",
        ),
        ("a.fvecs", struct.pack("<i3fi3f", 3, 1, 2, 3, 2, 4, 5, 6), "row 0 has 3 values and row 1 has 2"),
        ("a.bvecs", npy("{}"), r"begins like a \.npy file"),
        ("a.fbin", struct.pack("<II", 1, 1), "must have at least 12 bytes, but has 8"),
        (
            "a.fbin",
            struct.pack("<II3f", 2, 2, 1, 2, 3),
            "2 x 2 values of float32, 24 bytes in all, but has 20",
        ),
        (
            "a.fbin",
            struct.pack("<II4B", 2, 2, 1, 2, 3, 4),
            "2 x 2 values of 8 bits, but by its name they are float32",
        ),
        (
            "a.u8bin",
            struct.pack("<II4f", 2, 2, 1, 2, 3, 4),
            "2 x 2 values of 32 bits, but by its name they are uint8",
        ),
        ("a.fbin", struct.pack("<IIf", 2**32 - 1, 2**32 - 1, 1), "73786976260478205960 bytes|should have 4294967295 x"),
        ("a.u8bin", struct.pack("<II4B", 0, 2, 1, 2, 3, 4), "should have 0 x 2"),
        ("a.fbin", b"PAR1" + bytes(100), r"begins like a \.parquet file"),
        ("a.hdf5", b"", "is empty"),
        ("a.hdf5", bytes(100), "cannot be read as HDF5"),
        ("a.h5", b"PAR1" + bytes(100), r"must begin like a \.hdf5 file, but it begins like a \.parquet file$"),
        ("a.parquet", b"PAR1" + bytes(100), "cannot be read as Parquet"),
        ("a.pq", b"\x89HDF\r\n" + bytes(100), r"must begin like a \.parquet file, but it begins like a \.hdf5 file$"),
    ],
)
def test_bad_files(name, content, message, tmp_path):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=message) as caught:
        open_vectors(path)
    assert str(path) in str(caught.value)


def test_which_data_set(tmp_path):
    path = tmp_path / "rows.hdf5"
    X = values(".fbin")
    with h5py.File(path, "w") as file:
        file["flat"] = X[0]
        file["empty"] = h5py.Empty("f4")
    with pytest.raises(FileFormatError, match=r"must have a data set of two dimensions, but has none$"):
        open_vectors(path)
    with h5py.File(path, "a") as file:
        file["group/inner"] = X
    np.testing.assert_array_equal(open_vectors(path), X)  # the only one of two dimensions, in whatever group
    with h5py.File(path, "a") as file:
        file["first"] = X
    np.testing.assert_array_equal(open_vectors(path, "group/inner"), X)
    with pytest.raises(FileFormatError, match=r"'group'; those of two dimensions are: 'first', 'group/inner'$"):
        open_vectors(path, "group")
    with pytest.raises(FileFormatError, match="must have two dimensions, but has shape"):
        open_vectors(path, "flat")
    with h5py.File(path, "a") as file:
        file["second"] = X
        file.create_dataset("unwritten", (1 << 40, 128), np.float32, chunks=(1024, 128))
        file.create_dataset("squeezed", data=np.zeros((1 << 20, 128), np.uint8), chunks=(1 << 20, 128), compression=9)
    told = r"must be told which of its data sets of two dimensions to read, by name \(--name\): 'first', 'group/inner'"
    with pytest.raises(FileFormatError, match=told):
        open_vectors(path)
    with pytest.raises(FileFormatError, match="should have 562949953421312 bytes of values, but 0 bytes are stored"):
        open_vectors(path, "unwritten")
    assert open_vectors(path, "squeezed").shape == (1 << 20, 128)  # the most that deflate can do
    with h5py.File(path, "a") as file:
        for i in range(20):
            file[f"layer{i:02}"] = X
    with pytest.raises(FileFormatError, match=r"'layer07' and 15 more$"):
        open_vectors(path)
    with h5py.File(path, "a") as file:
        file["other"] = X + 1
        file["train"] = h5py.SoftLink("/other")
    np.testing.assert_array_equal(open_vectors(path), X + 1)
    with h5py.File(tmp_path / "link.hdf5", "w") as file:
        file["train"] = h5py.ExternalLink("rows.hdf5", "/first")
    with pytest.raises(FileFormatError, match=r"link.hdf5:train' must be in the file itself, but is a link to '.*rows"):
        open_vectors(tmp_path / "link.hdf5")


def test_which_column(tmp_path):
    path = tmp_path / "rows.parquet"
    X = values(".fbin")
    pq.write_table(pa.table({"a": as_lists(X), "b": as_lists(X[:, :3]), "name": ["x"] * len(X)}), path)
    assert open_vectors(path, "b").shape == (N_ROWS, 3)
    with pytest.raises(FileFormatError, match=r"columns of lists to read, by name \(--name\): 'a', 'b'$"):
        open_vectors(path)
    with pytest.raises(
        FileFormatError, match=r"column 'name' of lists of numbers; the columns of lists are: 'a', 'b'$"
    ):
        open_vectors(path, "name")
    for lists, message in (
        ([[1.0, 2.0], [3.0]], "must hold lists of one length, 2, but row 1 has 1 values"),
        ([[1.0, 2.0]] * 3 + [[3.0], [4.0, 5.0, 6.0]], "must hold lists of one length, 2, but row 3 has 1 values"),
        ([[1.0, 2.0], [3.0, 4.0], None], "must have no missing values, but row 2 has some"),
        ([[1.0, 2.0], [3.0, None]], "must have no missing values, but row 1 has some"),
        ([None, [1.0, 2.0]], "must have no missing values, but row 0 has some"),
        ([[]], "must have rows and columns, but is 1 x 0"),
    ):
        pq.write_table(pa.table({"vector": pa.array(lists, pa.list_(pa.float32()))}), path, row_group_size=2)
        with pytest.raises(FileFormatError, match=message):
            np.asarray(open_vectors(path))
    pq.write_table(pa.table({"vector": pa.array([[1, 2], None], pa.list_(pa.float32(), 2))}), path)
    with pytest.raises(FileFormatError, match="must have no missing values, but row 1 has some"):
        np.asarray(open_vectors(path))
    pq.write_table(pa.table({"name": ["x"] * 3, "x0": [1.0] * 3, "x1": [2.0] * 3}), path)
    with pytest.raises(FileFormatError, match="are: none; join its 2 columns of numbers into one, if they are the vec"):
        open_vectors(path)
    pq.write_table(pa.table({"name": ["x"] * 3, "id": [1, 2, 3]}), path)
    with pytest.raises(FileFormatError, match=r"the columns of lists are: none$"):
        open_vectors(path)
    pq.write_table(pa.table({"vector": pa.array([], pa.list_(pa.float32(), 4))}), path)
    with pytest.raises(FileFormatError, match="must have rows and columns, but is 0 x 4"):
        open_vectors(path)


def test_optional_libraries_are_named(tmp_path, monkeypatch):
    paths = write(tmp_path / "a.h5", values(".h5")), write(tmp_path / "a.parquet", values(".parquet"))
    for path, name in zip(paths, ("h5py", "pyarrow"), strict=True):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, name, None)
            patch.delitem(sys.modules, "pyarrow.parquet", raising=False)
            with pytest.raises(ImportError, match=rf"needs {name}: pip install 'closure-kmeans\[io\]'"):
                open_vectors(path)


@pytest.mark.parametrize(
    "X", [values(".fbin"), np.asfortranarray(values(".fbin")), values(".fbin").astype(np.float16)[::2], np.arange(5)]
)
def test_npy_is_as_numpy_has_it(X, tmp_path):
    save_vectors(tmp_path / "ours.npy", X)
    np.save(tmp_path / "numpy.npy", np.ascontiguousarray(X))
    assert (tmp_path / "ours.npy").read_bytes() == (tmp_path / "numpy.npy").read_bytes()


def test_writers_lose_nothing(tmp_path):
    with pytest.raises(ValueError, match=r"an \.npy file holds numbers, which object is not"):
        save_vectors(tmp_path / "a.npy", np.ones((2, 2), object))
    with pytest.raises(ValueError, match=r"a \.fbin file holds float32, which float64 does not fit"):
        save_vectors(tmp_path / "a.fbin", np.ones((2, 2)))
    with pytest.raises(ValueError, match="must have two dimensions, and rows and columns, got shape"):
        save_vectors(tmp_path / "a.fvecs", np.ones(3, np.float32))
    with pytest.raises(ValueError, match=r"must end in one of \.npy, .*, got 'a.h5'"):
        save_vectors(tmp_path / "a.h5", np.ones((2, 2)))
    with pytest.raises(FileNotFoundError, match=r"the folder .* does not exist"):
        save_vectors(tmp_path / "none" / "a.npy", np.ones((2, 2)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", [".fbin", ".fvecs", ".h5", ".parquet"])
def test_fit_takes_them_like_an_array(suffix, tmp_path):
    X = np.random.default_rng(0).normal(size=(300, 8)).astype(np.float32)
    rows = open_vectors(write(tmp_path / f"rows{suffix}", X))
    from_file = ClosureKMeans(9, random_state=0).fit(rows)
    from_array = ClosureKMeans(9, random_state=0).fit(X)
    np.testing.assert_array_equal(from_file.cluster_centers_, from_array.cluster_centers_)
    np.testing.assert_array_equal(from_file.predict(rows), from_array.predict(X))


# Run in a process of its own, which a read beyond the end of a mapped file would end.
CUT = """
import os, shutil, sys
from pathlib import Path
import numpy as np

from closure_kmeans import ClosureKMeans, metrics
from closure_kmeans.stores import layout, memory
from closure_kmeans.vectors import FileFormatError, open_vectors

folder, suffix = Path(sys.argv[1]), sys.argv[2]

def opened(name):
    (folder / name).mkdir()
    path = folder / name / f"rows{suffix}"
    shutil.copy(folder / f"rows{suffix}", path)
    return path, open_vectors(path)

def cut(path):
    os.truncate(path, 10_000)

def cut_by(module, name, path):
    \"\"\"Cut the file when a function has been called.\"\"\"
    function = getattr(module, name)
    def call(*arguments):
        function(*arguments)
        setattr(module, name, function)
        cut(path)
    setattr(module, name, call)

def fails(function, *arguments):
    try:
        function(*arguments)
    except FileFormatError as error:
        size = (folder / f"rows{suffix}").stat().st_size
        assert f"must keep its {size} bytes while it is memory-mapped, but has 10000: " in str(error), error
    else:
        raise AssertionError("no error")

path, rows = opened("slices")
rows = open_vectors(path.parent)  # a folder is read by slices
assert len(rows[:10]) == 10
cut(path)
fails(rows.__getitem__, slice(15_000, 15_010))

path, rows = opened("predict")
model = ClosureKMeans(20, max_iter=2, random_state=0).fit(rows)
cut(path)
def weighted(rows):
    return model.fit(rows, sample_weight=np.arange(len(rows)) % 2)

def distortion(rows):
    return metrics.distortion(rows, model.cluster_centers_)

def start(rows):
    return ClosureKMeans(20, init=rows[:20]).fit(np.ones((30, 8)))

for method in (model.predict, model.transform, model.score, model.fit, weighted, distortion, start):
    fails(method, rows)

path, rows = opened("fit")
cut_by(memory, "check_values", path)  # after a sample
fails(model.fit, rows)

path, rows = opened("layout")
limited = ClosureKMeans(20, memory_limit="5MB", max_iter=2, random_state=0)
cut_by(layout, "forget", path)  # after the first block
fails(limited.fit, rows)

for model in (limited, ClosureKMeans(20, max_iter=3, random_state=0)):
    path, rows = opened(f"iterations-{model.memory_limit}")
    model.set_params(callback=lambda step: cut(path)).fit(rows)  # the rows are not needed any more
    assert model.n_iter_ > 1
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not let a mapped file be cut")
@pytest.mark.parametrize("suffix", [".npy", ".fvecs"])
def test_a_mapped_file_that_is_cut_is_an_error(suffix, tmp_path):
    write(tmp_path / f"rows{suffix}", np.random.default_rng(0).normal(size=(20_000, 8)).astype(np.float32))
    subprocess.run([sys.executable, "-c", CUT, tmp_path, suffix], check=True)


@pytest.mark.parametrize("suffix", [".npy", ".h5"])
def test_vectors_can_be_pickled(suffix, tmp_path):
    rows = np.random.default_rng(0).normal(size=(500, 8)).astype(np.float32)
    path = tmp_path / f"rows{suffix}"
    if suffix == ".h5":
        with h5py.File(path, "w") as file:
            file.create_dataset("rows", data=rows, chunks=(100, 8))
    else:
        write(path, rows)
    vectors = open_vectors(path if suffix == ".h5" else tmp_path)
    vectors[:10]
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(vectors))[90:210], rows[90:210])


CUT_BETWEEN_GROUPS = """
import os, re, sys
from closure_kmeans.vectors import FileFormatError, open_vectors, rows

rows.GROUP_BYTES, path = 1, sys.argv[1]
vectors = open_vectors(path)
assert len(vectors[:100]) == 100
os.truncate(path, os.path.getsize(path) // 2)
try:
    vectors[-100:]
except FileFormatError as error:
    assert re.search(r"cannot be read as vectors|must hold \\(100, 8\\) values at row 9900", str(error)), error
else:
    raise AssertionError("no error")
"""


@pytest.mark.parametrize("suffix", [".h5", ".parquet"])
def test_a_file_that_is_cut_between_groups_is_an_error(suffix, tmp_path):
    path = write_chunks(tmp_path / f"rows{suffix}", np.random.default_rng(0).normal(size=(100 * CHUNK, 8)))
    subprocess.run([sys.executable, "-c", CUT_BETWEEN_GROUPS, path], check=True)


READ = """
import warnings
import numpy as np
from closure_kmeans.vectors import open_vectors
def read(path):
    rows = np.asarray(open_vectors(path))
    assert rows.ndim == 2 and np.count_nonzero(rows) <= rows.size
"""


def check_mutations(path, n_files):
    n_read, memory = read_mutated(path, READ, 0, n_files)
    assert 0 < n_read < n_files
    # Libraries keep a little for themselves from their first errors on.
    assert memory < 4 * path.stat().st_size + (8 << 20)


def test_damaged_files(suffix, tmp_path):
    check_mutations(write(tmp_path / f"rows{suffix}", values(suffix)), 200)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_ten_thousand_damaged_files(suffix, tmp_path):
    check_mutations(write(tmp_path / f"rows{suffix}", values(suffix)), 10_000)


def test_opening_imports_nothing_heavy():
    code = "import sys, closure_kmeans.vectors; assert not {'sklearn', 'numba', 'h5py', 'pyarrow'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)
