"""
Cluster on Dask
===============

For rows that do not fit on one machine, ``DistributedClosureKMeans`` gives each worker a part of them; only sums and
centres of clusters are exchanged. It has the parameters of ``ClosureKMeans`` and two more: ``client``, the
Dask cluster, and ``storage``, a folder or URL that all workers share.

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
# The rows are shards in a folder, in any format that ``open_vectors`` opens, or a Dask array.

folder = Path(mkdtemp())
(folder / "shards").mkdir()
for number, rows in enumerate(np.array_split(load_sift(), 4)):
    save_vectors(folder / "shards" / f"{number}.u8bin", rows)

# %%
# This guide uses two workers inside this process. Connect to your own cluster by its address:
# ``Client("tcp://scheduler:8786")``.

cluster = LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None)
client = Client(cluster)

# %%
# The result does not depend on the number of workers, even if some are lost. It depends slightly on the number of
# partitions: the distortion is within some tenths of a percent of a fit on one machine.

model = DistributedClosureKMeans(1000, client=client, storage=folder / "fit", n_partitions=4, random_state=0).fit(
    folder / "shards"
)
in_memory = ClosureKMeans(1000, random_state=0).fit(open_vectors(folder / "shards"))
for name, fitted in (("four partitions", model), ("one machine", in_memory)):
    print(f"{name}: distortion {fitted.inertia_ / 20_000:,.0f} after {fitted.n_iter_} iterations")
client.close()
cluster.close()

# %%
# On the command line: ``closure-kmeans fit shards/ -k 1000000 -o words.safetensors --client tcp://scheduler:8786``.
# ``fit(X, resume=True)`` resumes a killed fit from ``storage``. ``model.save`` writes the same kind of file as other
# models.
