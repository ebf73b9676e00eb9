"""Object retrieval: features, vocabulary, words, inverted file, ranking, spatial verification, evaluation."""

from closure_kmeans.retrieval.collection import Collection, Extraction, collect, load_collection, save_collection
from closure_kmeans.retrieval.evaluation import OxfordQuery, average_precision, oxford_score, read_oxford, ukbench_score
from closure_kmeans.retrieval.index import PAPER_STEPS, ImageIndex, Query, Result, Steps
from closure_kmeans.retrieval.inverted import InvertedFile, Ranking, append, invert, rank, remove
from closure_kmeans.retrieval.verification import (
    Alignment,
    Matches,
    Places,
    Verification,
    align,
    beyond_chance,
    match_images,
    place,
    rerank,
)
from closure_kmeans.retrieval.vocabulary import (
    METHODS,
    Vocabulary,
    Words,
    learn_vocabulary,
    load_vocabulary,
    root_bytes,
    save_vocabulary,
    tree_shape,
)

__all__ = [
    "METHODS",
    "PAPER_STEPS",
    "Alignment",
    "Collection",
    "Extraction",
    "ImageIndex",
    "InvertedFile",
    "Matches",
    "OxfordQuery",
    "Places",
    "Query",
    "Ranking",
    "Result",
    "Steps",
    "Verification",
    "Vocabulary",
    "Words",
    "align",
    "append",
    "average_precision",
    "beyond_chance",
    "collect",
    "invert",
    "learn_vocabulary",
    "load_collection",
    "load_vocabulary",
    "match_images",
    "oxford_score",
    "place",
    "rank",
    "read_oxford",
    "remove",
    "rerank",
    "root_bytes",
    "save_collection",
    "save_vocabulary",
    "tree_shape",
    "ukbench_score",
]
