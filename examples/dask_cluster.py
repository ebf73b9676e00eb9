"""
On a Dask cluster
=================

For rows that do not fit on one machine: each worker holds a part of them, and only sums and centres of clusters are
exchanged. What it shares with ``ClosureKMeans`` has the same name; new are ``client``, the cluster, and ``storage``,
a folder or URL that all workers share.

Needs ``pip install '.[dask]'``.
"""

# sphinx_gallery_thumbnail_path = 'images/method/trees.png'
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
# The cluster. To try it, two workers inside this process will do; yours has an address:
# ``Client("tcp://scheduler:8786")``.

cluster = LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None)
client = Client(cluster)

# %%
# The result does not depend on the number of workers, nor on how many of them are lost on the way. It does depend on
# the number of partitions, but only a little: the distortion is within some tenths of a percent of that of a fit in
# one memory.

model = DistributedClosureKMeans(1000, client=client, storage=folder / "fit", n_partitions=4, random_state=0).fit(
    folder / "shards"
)
in_memory = ClosureKMeans(1000, random_state=0).fit(open_vectors(folder / "shards"))
for name, fitted in (("four partitions", model), ("one memory", in_memory)):
    print(f"{name}: distortion {fitted.inertia_ / 20_000:,.0f} after {fitted.n_iter_} iterations")
client.close()
cluster.close()

# %%
# From the command line: ``closure-kmeans fit shards/ -k 1000000 -o words.safetensors --client tcp://scheduler:8786``.
# With the files in ``storage``, ``fit(X, resume=True)`` goes on with a fit that was killed. ``model.save`` writes the
# same kind of file as any other model.
