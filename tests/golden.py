"""Fits whose results are kept as hashes: a change of structure changes no bit.

The bits depend on the processor, its BLAS and the versions of the libraries, so the hashes are kept by these.
``python -m tests.golden`` writes those of this machine into ``golden.json``; on other processors of its kind the same
ones come with ``NUMBA_CPU_NAME=haswell OPENBLAS_CORETYPE=Haswell``. Hashes that any processor with AVX2 repeats take
``NUMBA_CPU_FEATURES=+avx2,+fma NPY_ENABLE_CPU_FEATURES=X86_V3`` as well.
"""

import json
from hashlib import blake2b
from pathlib import Path

import numpy as np

from closure_kmeans import PAPER, ClosureKMeans, Method
from closure_kmeans.datasets import load_sift
from closure_kmeans.distributed import DistributedClosureKMeans
from closure_kmeans.distributed.cluster import local_cluster
from closure_kmeans.environment import environment

PATH = Path(__file__).with_name("golden.json")
N_ROWS, WIDTH = 6000, 32


def rows(dtype):
    X = load_sift()[:N_ROWS, :WIDTH]
    return X if dtype == "uint8" else (X / 3 + 0.5).astype(dtype)


def centers(k):
    return rows("float32")[:: N_ROWS // k][:k] + (np.arange(k, dtype=np.float32) / k)[:, np.newaxis]


def weights():
    return 1.0 + np.arange(N_ROWS) % 3


# The rows' dtype, the number of clusters, the parameters, and whether rows are weighted.
MEMORY = {
    "default": ("float32", 150, {}),
    "small clusters": ("float32", 1200, {}),
    "whole cells first": ("float32", 2400, {}),
    "paper": ("float32", 300, {"paper": True}),
    "paper, static": ("uint8", 300, {"paper": True, "adaptive": False, "max_trees": 3}),
    "kept by Hartigan's rule": ("float32", 300, {"neighborhoods": "kept", "leaf_size": 20}),
    "all clusters": ("float32", 100, {}),
    "cosine": ("float32", 300, {"metric": "cosine"}),
    "cosine, small clusters": ("float32", 2000, {"metric": "cosine"}),
    "weighted": ("float32", 300, {}, "weighted"),
    "weighted cosine": ("float32", 300, {"metric": "cosine"}, "weighted"),
    "uint8": ("uint8", 150, {}),
    "float16": ("float16", 150, {}),
    "float64": ("float64", 150, {}),
    "max_size": ("float32", 200, {"max_size": 40}),
    "random": ("float32", 300, {"init": "random"}),
    "given centres": ("float32", 200, {"init": 200}),
    "fewer centres": ("float32", 200, {"init": 120}),
    "plain": ("float32", 200, {"rule": "lloyd", "extrapolate": False, "tree_dims": None}),
}
DISK = {
    "default": ("float32", 150, {}),
    "cosine": ("float32", 300, {"metric": "cosine"}),
    "weighted": ("float32", 300, {}, "weighted"),
    "uint8": ("uint8", 150, {}),
    "float16": ("float16", 300, {}),
    "max_size": ("float32", 200, {"max_size": 40}),
    "given centres": ("float64", 200, {"init": 200}),
    "plain": ("float32", 200, {"rule": "lloyd", "extrapolate": False, "tree_dims": None}),
}
DASK = {
    "default": ("float32", 150, {}),
    "small clusters": ("float32", 1200, {}),
    "cosine": ("float32", 300, {"metric": "cosine"}),
    "cosine, small clusters": ("float32", 2000, {"metric": "cosine"}),
    "uint8": ("uint8", 150, {}),
    "float64": ("float64", 300, {"tree_dims": None}),
    "given centres": ("float32", 200, {"init": 200}),
    "fewer centres": ("float32", 200, {"init": 120}),
    "plain": ("float32", 200, {"rule": "lloyd", "extrapolate": False}),
}


def fit(store, dtype, k, settings, weighted="", client=None):
    switches = {name: settings[name] for name in settings if name in Method._fields}
    settings = {name: settings[name] for name in settings if name not in switches}
    base = PAPER if settings.pop("paper", False) else Method()
    settings |= {"n_clusters": k, "method": base._replace(**switches), "random_state": 0, "n_threads": 2}
    if isinstance(settings.get("init"), int):
        settings["init"] = centers(settings["init"])
    make = DistributedClosureKMeans if store == "dask" else ClosureKMeans
    if store == "disk":
        settings["memory_limit"] = 5_000_000
    if store == "dask":
        settings |= {"client": client, "n_partitions": 4}
    return make(**settings).fit(rows(dtype), sample_weight=weights() if weighted else None)


def digest(model):
    whole = blake2b(digest_size=12)
    for array in (model.labels_, model.cluster_centers_, model.cluster_sizes_):
        whole.update(np.ascontiguousarray(array).data.cast("B"))
    return f"{whole.hexdigest()} {model.n_iter_} {model.stopped_by_}"


def search():
    """Nearest centres by cells and by sketches, at more centres than are compared with all."""
    X = load_sift()
    model = ClosureKMeans(10_400, max_iter=1, random_state=0, n_threads=2).fit(X)
    whole = blake2b(digest_size=12)
    found = [model.predict(X[::3]), model.predict(X[::30], exact=True), *model.several_nearest(X[::30], 3)]
    for array in (*found, model.transform(X[:5])):
        whole.update(np.ascontiguousarray(array).data.cast("B"))
    return f"{whole.hexdigest()} {model.score(X)}"


def found():
    """All hashes, by the name of the case."""
    hashes = {f"memory: {name}": digest(fit("memory", *case)) for name, case in MEMORY.items()}
    hashes |= {f"disk: {name}": digest(fit("disk", *case)) for name, case in DISK.items()}
    with local_cluster(2) as cluster:
        hashes |= {
            f"dask: {name}": digest(fit("dask", *case, client=cluster.scheduler_address)) for name, case in DASK.items()
        }
    return hashes | {"search": search()}


def machine():
    """What the bits depend on, the library itself apart."""
    return "; ".join(f"{name} {value}" for name, value in environment().items() if name != "closure_kmeans")


def known():
    return json.loads(PATH.read_text()) if PATH.exists() else {}


if __name__ == "__main__":
    PATH.write_text(json.dumps(known() | {machine(): found()}, indent=1) + "\n")
