"""
On a Dask cluster
=================

Rows that do not fit one machine: each worker holds a part of them, and only what is known of the clusters is
exchanged. Every name is that of ``ClosureKMeans``; what is new are ``client``, the cluster, and ``storage``, a folder
or URL that all workers share.

Needs ``pip install '.[dask]'``.
"""

from pathlib import Path
from tempfile import mkdtemp

import numpy as np
from dask.distributed import Client, LocalCluster

from closure_kmeans import ClosureKMeans
from closure_kmeans.datasets import load_sift
from closure_kmeans.distributed import DistributedClosureKMeans
from closure_kmeans.vectors import open_vectors, save_vectors

# %%
# The rows as shards in a folder: any files that ``open_vectors`` opens. A Dask array will do, too.

folder = Path(mkdtemp())
(folder / "shards").mkdir()
for number, rows in enumerate(np.array_split(load_sift(), 4)):
    save_vectors(folder / "shards" / f"{number}.u8bin", rows)

# %%
# The cluster. Here it is two workers inside this process, to try it on; yours has an address:
# ``Client("tcp://scheduler:8786")``.

cluster = LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None)
client = Client(cluster)

# %%
# The result does not depend on the number of workers, nor on how many of them are lost on the way. It does depend on
# the number of partitions: it ends within some tenths of a percent of a fit in one memory, above or below.

model = DistributedClosureKMeans(1000, client=client, storage=folder / "fit", n_partitions=4, random_state=0).fit(
    folder / "shards"
)
in_memory = ClosureKMeans(1000, random_state=0).fit(open_vectors(folder / "shards"))
for name, fitted in (("four partitions", model), ("one memory", in_memory)):
    print(f"{name}: distortion {fitted.inertia_ / 20_000:,.0f} after {fitted.n_iter_} iterations")
client.close()
cluster.close()

# %%
# From the command line: ``closure-kmeans fit shards/ -k 1000000 -o words.safetensors --dask tcp://scheduler:8786``.
# What is left in ``storage`` lets a fit that was killed go on. ``model.save`` writes the same file as any other
# model.
