"""Residual k-means: codes of rows, one cluster number per level."""

from closure_kmeans.codes.encoding import count_collisions
from closure_kmeans.codes.estimator import ResidualKMeans
from closure_kmeans.codes.export import as_text, save_faiss, save_table, to_faiss, to_faiss_ivf
from closure_kmeans.codes.report import Report

__all__ = [
    "Report",
    "ResidualKMeans",
    "as_text",
    "count_collisions",
    "save_faiss",
    "save_table",
    "to_faiss",
    "to_faiss_ivf",
]
