"""Settings of the algorithm for experiments: the defaults, and those of the paper."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Method(NamedTuple):
    """Switches of the algorithm of ``ClosureKMeans``, for experiments.

    Parameters
    ----------
    neighborhoods : {"auto", "fresh", "kept", "all"}, default="auto"
        Candidates of a point: the clusters of its neighbours in one new tree per iteration ("fresh"); in the paper's
        trees, which are kept and united ("kept"); or all clusters ("all"). "auto" is "all" up to 128 clusters, where it
        is as fast, and "fresh" beyond.
    leaf_size : int, default=None
        Number of points in a leaf. Larger leaves find better clusters per iteration, and take longer. By default 47
        times the power 0.4 of the mean cluster size: 118 for ten points per cluster, 745 for a thousand. Beyond 2,000
        clusters, a fit in memory that starts from a tree then groups whole leaves of it in the first iteration.
    max_trees : int, default=10
        Maximum number of kept trees.
    adaptive : bool, default=True
        Whether kept trees are grown one by one, as needed, instead of all at the start.
    min_fall : float, default=0.01
        Another kept tree is grown when the distortion falls by less than this fraction.
    rule : {"hartigan", "lloyd"}, default="hartigan"
        "hartigan" moves a point if that lowers the distortion, including the shift of both centres; "lloyd" if the
        other centre is nearer.
    extrapolate : bool, default=True
        Whether points of large clusters are assigned to extrapolated centres, which halves the number of iterations.
    tree_dims : int, default=16
        Number of principal dimensions in which trees are grown; ``None`` for all dimensions.

    See Also
    --------
    ClosureKMeans : Takes it as ``method``.

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
