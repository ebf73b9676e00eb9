"""Settings of the algorithm for experiments: the defaults, and those of the paper."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Method(NamedTuple):
    """Settings of the algorithm of ``ClosureKMeans``.

    Parameters
    ----------
    neighborhoods : {"auto", "fresh", "kept", "all"}, default="auto"
        The clusters that a point is tested with: those of its neighbours in one new tree in every iteration, used and
        forgotten ("fresh"); in the paper's trees, kept and united ("kept"); or all clusters ("all"). "auto" is "all" up
        to 128 clusters, where that is as fast, and "fresh" beyond.
    leaf_size : int, default=None
        Points in a leaf of a tree. Larger leaves find better clusters in an iteration, and take longer. By default 47
        times the power 0.4 of the mean number of points in a cluster: 118 for ten of them, 745 for a thousand. Beyond
        2,000 clusters, a fit in memory that starts from a tree then groups whole leaves of it in the first iteration.
    max_trees : int, default=10
        Largest number of kept trees.
    adaptive : bool, default=True
        Grow kept trees one by one, as they are needed; or all at the start.
    min_fall : float, default=0.01
        Another kept tree is grown when the distortion fell by less than this part of itself.
    rule : {"hartigan", "lloyd"}, default="hartigan"
        A point moves to another cluster when that lowers the distortion, the shift of both centres included; or when
        the other centre is nearer.
    extrapolate : bool, default=True
        Assign points to the extrapolated centres of large clusters. It halves the number of iterations.
    tree_dims : int, default=16
        Principal dimensions in which trees are grown; ``None`` for all dimensions.

    Examples
    --------
    >>> from closure_kmeans import ClosureKMeans, Method
    >>> model = ClosureKMeans(1000, method=Method(rule="lloyd"))
    >>> model = ClosureKMeans(1000, method=PAPER._replace(leaf_size=20))
    """

    neighborhoods: Literal["auto", "fresh", "kept", "all"] = "auto"
    leaf_size: int | None = None
    max_trees: int = 10
    adaptive: bool = True
    min_fall: float = 0.01
    rule: Literal["hartigan", "lloyd"] = "hartigan"
    extrapolate: bool = True
    tree_dims: int | None = 16


# Adaptive kept trees with leaves of 10 points, grown in all dimensions; a point moves to the nearest centre.
PAPER = Method(neighborhoods="kept", leaf_size=10, rule="lloyd", extrapolate=False, tree_dims=None)
