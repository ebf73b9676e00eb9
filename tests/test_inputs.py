"""Rows as other libraries hold them: the same bits as from an array, in their own precision."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from closure_kmeans import ClosureKMeans, ResidualKMeans
from closure_kmeans.validation import fitted_rows, rows
from closure_kmeans.vectors import FileFormatError, Vectors, open_vectors

pytestmark = pytest.mark.filterwarnings("ignore:X (has|does not have valid) feature names")

X = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
# Also exact in float16 and bfloat16.
WHOLE = np.random.default_rng(0).integers(-100, 100, size=(300, 4)).astype(np.float32)


def is_a_view(found, memory):
    return isinstance(found, np.ndarray) and np.shares_memory(found, memory)


def agree(given, array=X, dtype=np.float32):
    """What ``fit`` and ``predict`` see is the array, and so is what a fit with a memory limit reads."""
    found = fitted_rows(rows(given), ClosureKMeans())
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, array)
    expected = ClosureKMeans(5, random_state=0).fit(array.astype(dtype))
    np.testing.assert_array_equal(ClosureKMeans(5, random_state=0).fit(given).labels_, expected.labels_)
    np.testing.assert_array_equal(expected.predict(given), expected.predict(array.astype(dtype)))
    limited = ClosureKMeans(5, random_state=0, memory_limit="100MB")
    np.testing.assert_array_equal(
        limited.fit(given).cluster_centers_, limited.fit(array.astype(dtype)).cluster_centers_
    )
    codes = ResidualKMeans([5, 5], random_state=0).fit(given)
    np.testing.assert_array_equal(codes.encode(given), codes.encode(array.astype(dtype)))


# -- tensors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "uint8", "int8"])
def test_tensors_of_pytorch(dtype):
    torch = pytest.importorskip("torch")
    array = (WHOLE + 100 * (dtype == "uint8")).astype(dtype)
    tensor = torch.tensor(array)
    agree(tensor, array, dtype)
    assert rows(tensor).ctypes.data == tensor.data_ptr()
    assert rows(torch.nn.Parameter(torch.tensor(X))).dtype == np.float32


def test_tensors_of_bfloat16():
    torch = pytest.importorskip("torch")
    tensor = torch.tensor(WHOLE).to(torch.bfloat16)
    agree(tensor, WHOLE)
    assert isinstance(rows(tensor), Vectors)  # widened block by block
    np.testing.assert_array_equal(open_vectors(tensor)[10:50:3], WHOLE[10:50:3])


def test_arrays_of_bfloat16():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    agree(WHOLE.astype(ml_dtypes.bfloat16), WHOLE)
    agree(np.clip(WHOLE, -8, 8).astype(ml_dtypes.float8_e4m3fn), np.clip(WHOLE, -8, 8))
    assert isinstance(rows(WHOLE.astype(ml_dtypes.bfloat16)), Vectors)


def test_arrays_of_jax():
    jnp = pytest.importorskip("jax.numpy")
    array = jnp.asarray(X)
    agree(array)
    assert is_a_view(rows(array), np.asarray(array))
    agree(jnp.asarray(WHOLE).astype(jnp.bfloat16), WHOLE)


# -- frames and tables -------------------------------------------------------------------------------------------------


def columns(array=X):
    return {name: array[:, i] for i, name in enumerate("abcd")}


def test_frames_of_pandas():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(columns())
    agree(frame)
    assert ClosureKMeans(5).fit(frame).feature_names_in_.tolist() == list("abcd")


def test_columns_of_pandas():
    pandas = pytest.importorskip("pandas")
    pyarrow = pytest.importorskip("pyarrow")
    series = pandas.Series(list(X))
    agree(series)
    agree(pandas.DataFrame({"id": range(300), "embedding": series}))
    lists = pyarrow.FixedSizeListArray.from_arrays(X.ravel(), 4)
    arrow = pandas.Series(lists, dtype=pandas.ArrowDtype(lists.type))
    agree(arrow)
    assert is_a_view(rows(arrow), lists.flatten().to_numpy())
    with pytest.raises(FileFormatError, match=r"which of its columns of vectors to take, .*: 'p', 'q'"):
        rows(pandas.DataFrame({"p": series, "q": series}))


def test_frames_of_polars():
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(columns())
    agree(frame)
    model = ClosureKMeans(5).fit(frame)
    assert model.feature_names_in_.tolist() == list("abcd")
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame.rename({"a": "z"}))
    with pytest.raises(TypeError, match=r"got a polars\.LazyFrame: pass X\.collect\(\)"):
        rows(frame.lazy())


def test_columns_of_polars():
    polars = pytest.importorskip("polars")
    series = polars.Series("embedding", X)
    agree(series)
    assert is_a_view(rows(series), X)
    agree(polars.DataFrame({"id": range(300), "embedding": series}))
    agree(polars.Series(X.tolist(), dtype=polars.List(polars.Float32)))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint8])
def test_columns_of_arrow(dtype):
    pyarrow = pytest.importorskip("pyarrow")
    array = np.abs(WHOLE).astype(dtype)
    lists = pyarrow.FixedSizeListArray.from_arrays(array.ravel(), 4)
    agree(lists, array, dtype)
    assert is_a_view(rows(lists), array)
    agree(pyarrow.table({"id": range(300), "vector": lists, "other": lists}), array, dtype)
    agree(pyarrow.array(list(array), pyarrow.list_(lists.type.value_type)), array, dtype)
    pieces = pyarrow.chunked_array([lists[:100], lists[100:100], lists[100:]])
    agree(pieces, array, dtype)
    assert isinstance(rows(pieces), Vectors)


def test_tensors_of_arrow():
    pyarrow = pytest.importorskip("pyarrow")
    tensors = pyarrow.FixedShapeTensorArray.from_numpy_ndarray(X)
    agree(tensors)
    agree(pyarrow.table({"id": range(300), "vector": tensors}))


def test_tables_of_numbers():
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table(columns())
    agree(table)
    agree(pyarrow.concat_tables([table[:9], table[9:]]))
    agree(table.to_batches()[0])


def test_columns_that_are_no_rows():
    pyarrow = pytest.importorskip("pyarrow")
    lists = pyarrow.FixedSizeListArray.from_arrays(X.ravel(), 4)
    with pytest.raises(FileFormatError, match=r"which of its columns of lists to take, .*: 'p', 'q'"):
        rows(pyarrow.table({"p": lists, "q": lists}))
    for values, message in (
        ([[1.0, 2.0], None], "'X' must have no missing values, but row 1 has some"),
        ([[1.0, 2.0], [3.0, None]], "'X' must have no missing values, but row 1 has some"),
        ([[1.0, 2.0], [3.0]], "'X' must hold lists of one length, 2, but row 1 has 1 values"),
        ([[1.0], [3.0], [], [4.0, 5.0]], "'X' must hold lists of one length, 1, but row 2 has 0 values"),
        ([], "'X' must have rows, but has none"),
    ):
        with pytest.raises(FileFormatError, match=message):
            rows(pyarrow.array(values, pyarrow.list_(pyarrow.float32())))
    with pytest.raises(FileFormatError, match="'X' must have no missing values, but row 300 has some"):
        rows(pyarrow.chunked_array([lists, pyarrow.array([None], lists.type)]))


# -- data sets ---------------------------------------------------------------------------------------------------------


def test_data_sets_of_hugging_face(tmp_path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"embedding": datasets.List(datasets.Value("float32"), 4), "id": datasets.Value("int64")}
    )
    data = datasets.Dataset.from_dict({"embedding": X.tolist(), "id": range(300)}, features=features)
    data.save_to_disk(tmp_path / "data")
    data = datasets.load_from_disk(tmp_path / "data")
    agree(data)
    agree(data["embedding"])
    agree(data.select(range(299, -1, -1)), X[::-1])
    with pytest.raises(TypeError, match=r"got a datasets\.DatasetDict: pass one split, such as X\['train'\]"):
        rows(datasets.DatasetDict({"train": data}))
    with pytest.raises(TypeError, match=r"got a datasets\.IterableDataset: .* of the arrays in its batches"):
        rows(data.to_iterable_dataset())
    np.testing.assert_array_equal(rows(batch["embedding"] for batch in data.with_format("numpy").iter(100)), X)


def test_data_sets_of_arrow(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    dataset, parquet = pytest.importorskip("pyarrow.dataset"), pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"id": range(300), "vector": pyarrow.FixedSizeListArray.from_arrays(X.ravel(), 4)})
    for i in range(3):
        parquet.write_table(table[100 * i : 100 * i + 100], tmp_path / f"{i}.parquet")
    agree(dataset.dataset(tmp_path))
    agree(open_vectors(tmp_path))


def test_data_sets_of_lance(tmp_path, monkeypatch):
    lance, pyarrow = pytest.importorskip("lance"), pytest.importorskip("pyarrow")
    table = pyarrow.table({"id": range(300), "vector": pyarrow.FixedSizeListArray.from_arrays(X.ravel(), 4)})
    lance.write_dataset(table, tmp_path / "x.lance", max_rows_per_file=120)
    monkeypatch.setattr("closure_kmeans.vectors.inputs.READ_ROWS", 128)
    found = rows(lance.dataset(tmp_path / "x.lance"))
    assert isinstance(found, Vectors)
    np.testing.assert_array_equal(found[100:290], X[100:290])
    agree(lance.dataset(tmp_path / "x.lance"))


def test_arrays_of_zarr():
    zarr = pytest.importorskip("zarr")
    agree(zarr.array(X, chunks=(64, 4)))
    with pytest.raises(FileFormatError, match=r"'X' must have two dimensions, but has shape \(300,\)"):
        rows(zarr.array(X[:, 0]))
    with pytest.raises(TypeError, match=r"got a zarr\.Group: pass one array in it, such as X\['train'\]"):
        rows(zarr.group())


# -- batches -----------------------------------------------------------------------------------------------------------


def batches(array=X, size=128):
    return (array[first : first + size] for first in range(0, len(array), size))


def test_batches_that_can_be_read_only_in_order():
    found = rows(batches())
    assert isinstance(found, np.memmap)
    np.testing.assert_array_equal(found, X)
    expected = ClosureKMeans(5, random_state=0).fit(X)
    np.testing.assert_array_equal(ClosureKMeans(5, random_state=0).fit(batches()).labels_, expected.labels_)
    np.testing.assert_array_equal(expected.predict(batches()), expected.predict(X))
    limited = ClosureKMeans(5, random_state=0, memory_limit="100MB")
    np.testing.assert_array_equal(limited.fit(batches()).labels_, limited.fit(X).labels_)
    codes = ResidualKMeans([5, 5], random_state=0).fit(batches())
    assert codes.report(batches()) == codes.report(X)


def test_batches_of_another_library():
    torch = pytest.importorskip("torch")
    loader = torch.utils.data.DataLoader(torch.tensor(X), batch_size=128)
    np.testing.assert_array_equal(rows(iter(loader)), X)
    with pytest.raises(TypeError, match=r"got a torch\.DataLoader: pass an iterator of its batches"):
        rows(loader)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "X must have rows, but its iterator of batches gave none"),
        ([X, X[:, :3]], r"must be arrays of rows of 4 numbers, but batch 1 is a numpy\.ndarray of shape \(300, 3\)"),
        ([X, X.astype(float)], "must be of one dtype, float32, but batch 1 is float64"),
        ([X[0]], r"must be arrays of rows of numbers, but batch 0 is a numpy\.ndarray of shape \(4,\)"),
        ([["a"]], r"must be arrays of rows of numbers, but batch 0 is list of shape \(1,\)"),
    ],
)
def test_batches_that_are_no_rows(given, message):
    with pytest.raises(ValueError, match=message):
        rows(iter(given))


def test_anything_else_is_an_error_that_names_what_is_taken():
    with pytest.raises(TypeError, match=r"X must be an array, a tensor, a frame .*, got a builtins\.dict"):
        rows({"embedding": X})
    with pytest.raises(TypeError, match=r"or an iterator of batches, got a builtins\.function"):
        rows(batches)


def test_vectors_of_pandas_that_do_not_fit():
    pandas = pytest.importorskip("pandas")
    for values, message in (
        ([[1, 2], [1, 2], [3]], "'X' must hold lists of one length, 2, but row 2 has 1 values"),
        ([[1, 2], None, [3, 4]], "'X' must have no missing values, but row 1 has some"),
        ([None, [1, 2]], "'X' must have no missing values, but row 0 has some"),
    ):
        with pytest.raises(FileFormatError, match=message):
            rows(pandas.Series(values))


def test_a_frame_of_pandas_with_names_twice_is_left_to_scikit_learn():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=["a", "a", "b", "c"])
    assert rows(frame) is frame


def test_tables_of_arrow_without_values():
    arrow = pytest.importorskip("pyarrow")
    with pytest.raises(FileFormatError, match="'X' must have columns, but has none"):
        rows(arrow.table({}))
    with pytest.raises(FileFormatError, match="'X' must hold lists with values, but row 0 is empty"):
        rows(arrow.array([[], []], arrow.list_(arrow.float32())))


# -- memory ------------------------------------------------------------------------------------------------------------

# In a process of its own, whose peak Linux can set back: the bytes that each input takes beyond itself, once read block
# by block, as a fit with a memory limit does, and once for a fit in memory. The rows are 64 MB in float32.
MEASURE = """
import json, sys
import numpy as np
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from closure_kmeans import ClosureKMeans
from closure_kmeans.validation import fitted_rows, rows, stored_rows

folder = Path(sys.argv[1])
X = np.random.default_rng(0).integers(-100, 100, size=(250_000, 64)).astype(np.float32)


def memory(kind):
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith(kind))


def read(found):
    for first in range(0, len(found), 10_000):
        found[first : first + 10_000]


def measure(given):
    stored_rows(rows(given()))[:10]  # what a library loads at its first use
    taken = []
    for door in (lambda: read(stored_rows(rows(given()))), lambda: fitted_rows(rows(given()), ClosureKMeans())):
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        before = memory("VmRSS")
        door()
        taken.append(memory("VmHWM") - before)
    return taken


def lists():
    arrow = import_module("pyarrow")
    return arrow.FixedSizeListArray.from_arrays(X.ravel(), 64)


def of_torch(dtype):
    torch = import_module("torch")
    tensor = torch.from_numpy(X).to(getattr(torch, dtype))
    return lambda: tensor


def of_bfloat16():
    array = X.astype(import_module("ml_dtypes").bfloat16)
    return lambda: array


def of_jax():
    array = import_module("jax.numpy").asarray(X)
    return lambda: array


def of_arrow():
    column = lists()
    return lambda: column


def of_polars():
    series = import_module("polars").Series("embedding", X)
    return lambda: series


def of_pandas():
    pandas, column = import_module("pandas"), lists()
    series = pandas.Series(column, dtype=pandas.ArrowDtype(column.type))
    return lambda: series


def of_frame():
    frame = import_module("pandas").DataFrame(X)
    return lambda: frame


def of_datasets():
    datasets = import_module("datasets")
    table = import_module("pyarrow").table({"embedding": lists()})
    datasets.Dataset(table).save_to_disk(folder / "data")
    data = datasets.load_from_disk(folder / "data")
    return lambda: data["embedding"]


def of_lance():
    table = import_module("pyarrow").table({"vector": lists()})
    data = import_module("lance").write_dataset(table, folder / "x.lance")
    return lambda: data


def of_zarr():
    zarr = import_module("zarr")
    array = zarr.create_array(folder / "x.zarr", data=X, chunks=(4096, 64))
    return lambda: array


def of_batches():
    return lambda: (X[first : first + 10_000] for first in range(0, len(X), 10_000))


INPUTS = {
    "torch float32": ("torch", lambda: of_torch("float32")),
    "torch uint8": ("torch", lambda: of_torch("uint8")),
    "torch bfloat16": ("torch", lambda: of_torch("bfloat16")),
    "ml_dtypes bfloat16": ("ml_dtypes", of_bfloat16),
    "jax": ("jax", of_jax),
    "arrow": ("pyarrow", of_arrow),
    "polars": ("polars", of_polars),
    "pandas": ("pandas", of_pandas),
    "pandas frame": ("pandas", of_frame),
    "datasets": ("datasets", of_datasets),
    "lance": ("lance", of_lance),
    "zarr": ("zarr", of_zarr),
    "batches": ("numpy", of_batches),
}
taken = {}
for name, (library, make) in INPUTS.items():
    if find_spec(library) is not None:
        taken[name] = measure(make())
print(json.dumps(taken))
"""
SHARED, BLOCKS, ONE_COPY = 8e6, 48e6, 64e6 + 32e6


@pytest.fixture(scope="module")
def memory_taken(tmp_path_factory):
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("the peak of the memory can be set back on Linux only")
    command = [sys.executable, "-c", MEASURE, str(tmp_path_factory.mktemp("inputs"))]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "limited", "in_memory"),
    [
        ("torch float32", SHARED, SHARED),
        ("torch uint8", SHARED, SHARED),
        ("torch bfloat16", BLOCKS, ONE_COPY),
        ("ml_dtypes bfloat16", BLOCKS, ONE_COPY),
        ("jax", SHARED, SHARED),
        ("arrow", SHARED, SHARED),
        ("polars", SHARED, SHARED),
        ("pandas", SHARED, SHARED),
        ("pandas frame", ONE_COPY, ONE_COPY),
        ("datasets", ONE_COPY, ONE_COPY),  # pages of the map count
        ("lance", BLOCKS, ONE_COPY),
        ("zarr", BLOCKS, ONE_COPY),
        ("batches", SHARED, SHARED),
    ],
)
def test_memory_beyond_the_rows(memory_taken, given, limited, in_memory):
    """At most the copies that the table in docs/files.md names."""
    if given not in memory_taken:
        pytest.skip(f"{given.split()[0]} is not installed")
    assert memory_taken[given][0] < limited
    assert memory_taken[given][1] < in_memory
