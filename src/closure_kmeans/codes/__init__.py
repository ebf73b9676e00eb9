"""Codes: each row as a short tuple of cluster numbers, by k-means on the residuals, level after level."""

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
