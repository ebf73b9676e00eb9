"""The working tree, or a second revision, against another revision: speed, distortion and peak memory.

    python -m benchmarks.revisions OLD [NEW] [--cases bytes-10k million] [--rows N] [--rounds R] [--out FILE]

The revisions take turns, each run in a process of its own, and every other round goes the opposite way. Ratios are
taken within a round. A round has a seed of its own. The working tree must stay as it is meanwhile.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from benchmarks import ROOT, data
from benchmarks.machine import describe_machine, describe_versions, thread_environment
from benchmarks.results import FOLDER, Row, append_row, markdown_table
from benchmarks.score import labelled_distances

THREADS = 2
SIDES = ("old", "new")
LEAST_MEMORY = 6_000_000
ATTEMPTS = 3  # kernels may be compiled in the warm-up, and others on the clock


class Case(NamedTuple):
    n_rows: int
    n_clusters: int
    floats: bool = False  # not bytes
    n_queries: int = 0  # the last rows are predicted, on the clock, by a fit to the others
    memory_limit: int = 0  # none
    memory_mapped: bool = False
    max_iter: int = 100

    def reduced_to(self, n_rows: int) -> Case:
        """Fewer rows, and clusters to keep n/k."""
        n_rows = min(n_rows, self.n_rows)
        n_clusters, n_queries, memory = (
            size * n_rows // self.n_rows for size in (self.n_clusters, self.n_queries, self.memory_limit)
        )
        return self._replace(
            n_rows=n_rows,
            n_clusters=max(2, n_clusters),
            n_queries=n_queries,
            memory_limit=self.memory_limit and max(LEAST_MEMORY, memory),
        )

    def data_set(self, source: str | None) -> str:
        """Real descriptors if there are enough of them, or else mixtures."""
        return "sift" if self.n_rows <= data.count_sift(source) else "mixtures"

    def title(self, source: str | None) -> str:
        parts = [
            data.describe(self.data_set(source), self.n_rows, source),
            "float32 that are not whole numbers" if self.floats else "uint8",
            f"into {self.n_clusters:,} clusters",
            f"{self.n_queries:,} of the rows predicted" if self.n_queries else "",
            f"memory limit {self.memory_limit / 1e6:,.0f} MB" if self.memory_limit else "",
        ]
        return ", ".join(filter(None, parts))


CASES = {
    "bytes-10k": Case(1_000_000, 10_000),
    "bytes-100k": Case(1_000_000, 100_000),
    "float32-10k": Case(1_000_000, 10_000, floats=True),
    "memory-limit-10k": Case(1_000_000, 10_000, memory_limit=32_000_000, memory_mapped=True),
    "predict-100k": Case(1_000_000, 100_000, n_queries=200_000, max_iter=5),
    "million": Case(10_000_000, 1_000_000, memory_mapped=True),
}
ON_DEMAND = ("million",)


# -- revisions ---------------------------------------------------------------------------------------------------------


def git(*arguments: str, folder: Path = ROOT) -> str:
    command = ("git", "-C", str(folder), *arguments)
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit_of(revision: str) -> str:
    try:
        return git("rev-parse", "--verify", f"{revision}^{{commit}}")
    except subprocess.CalledProcessError:
        raise argparse.ArgumentTypeError(f"must be a revision of this repository, got {revision!r}") from None


@contextmanager
def checked_out(commit: str | None, path: Path) -> Iterator[Path]:
    """A worktree of the commit, removed in the end; without a commit, the working tree."""
    if commit is None:
        yield ROOT
        return
    git("worktree", "add", "--quiet", "--detach", str(path), commit)
    try:
        yield path
    finally:
        git("worktree", "remove", "--force", str(path))


# -- runs --------------------------------------------------------------------------------------------------------------


def file_of_rows(case: Case, source: str | None, folder: Path) -> Path:
    name = case.data_set(source)
    path = folder / f"{name}-{case.n_rows}{'-floats' if case.floats else ''}.npy"
    if path.exists():
        return path
    data.prepare(name, case.n_rows, source)
    rows = data.load(name, case.n_rows, source, memory_mapped=True)
    if isinstance(rows, np.memmap) and not case.floats:
        return Path(str(rows.filename))
    np.save(path, rows / np.float32(3) if case.floats else rows)  # whole numbers up to 255 would be held as bytes
    return path


def run(case: Case, rows: Path, checkout: Path, seed: int) -> Row:
    """Run in a fresh process, and again if kernels were compiled in it. A failure is a result too."""
    parameters = {"max_iter": case.max_iter}
    if case.memory_limit:
        parameters["memory_limit"] = case.memory_limit
    with TemporaryDirectory() as folder:
        found = Path(folder) / "found.npz"
        task = {
            "source": str(checkout / "src"),
            "rows": str(rows),
            "found": str(found),
            "n_clusters": case.n_clusters,
            "n_queries": case.n_queries,
            "memory_mapped": case.memory_mapped,
            "parameters": {"max_iter": case.max_iter}
            | ({"memory_limit": case.memory_limit} if case.memory_limit else {}),
            "threads": THREADS,
            "seed": seed,
        }
        command = [sys.executable, "-m", "benchmarks.revisions.run", json.dumps(task)]
        environment = thread_environment(THREADS) | {"PYTHONPATH": task["source"]}
        for _ in range(ATTEMPTS):
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                return {"failed": (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]}
            outcome = json.loads(done.stdout.splitlines()[-1])
            if "compiled" not in outcome:
                return outcome | judge(case, rows, found)
        return {"failed": "kernels are compiled in every process: their cache cannot be written"}


def judge(case: Case, rows: Path, found: Path) -> Row:
    """The distortion by the labels, and a digest of labels and centres."""
    X = np.load(rows, mmap_mode="r")
    with np.load(found) as arrays:
        labels, centers = arrays["labels"].astype(np.int64), np.ascontiguousarray(arrays["centers"])
    digest = hashlib.blake2b(labels, digest_size=8)
    digest.update(centers)
    distances = labelled_distances(X[len(X) - len(labels) :], centers, labels)
    return {"distortion": float(distances.mean()), "digest": digest.hexdigest()}


# -- the report --------------------------------------------------------------------------------------------------------

HEADER = (
    "case",
    "old, s",
    "new, s",
    "new / old",
    "median",
    "range",
    "old distortion",
    "new distortion",
    "bits",
    "old peak, MB",
    "new peak, MB",
)


def format_report(rows: list[Row]) -> str:
    """A line a case."""
    commits = {row["side"]: row["versions"]["commit"] for row in rows}
    titles = {row["case"]: row["title"] for row in rows}
    lines = []
    for name in titles:
        old, new = ([row for row in rows if (row["case"], row["side"]) == (name, side)] for side in SIDES)
        lines.append([name, *format_pairs(list(zip(old, new, strict=True)))])
    machine = rows[-1]["machine"]
    parts = [
        f"# {commits['new']} (new) against {commits['old']} (old)",
        markdown_table(HEADER, lines),
        "\n".join(f"- {name}: {title}" for name, title in titles.items()),
        f"Distortions and peaks are medians. A peak is all that the process held while the clock ran, pages of mapped "
        f"files included; bits are those of labels and centres. {THREADS} threads; "
        f"{machine['cpu']}, {machine['memory_gb']:g} GB.",
    ]
    return "\n\n".join(parts) + "\n"


def format_pairs(pairs: list[tuple[Row, Row]]) -> list[str]:
    for run in (run for pair in pairs for run in pair if "failed" in run):
        return [*["–"] * (len(HEADER) - 2), f"{run['side']}: {run['failed']}"]
    old, new = zip(*pairs, strict=True)
    ratios = [after["seconds"] / before["seconds"] for before, after in pairs]
    return [
        *(", ".join(f"{run['seconds']:.2f}" for run in runs) for runs in (old, new)),
        ", ".join(f"{ratio:.3f}" for ratio in ratios),
        f"{median(ratios):.3f}",
        f"{min(ratios):.3f}–{max(ratios):.3f}",
        *(f"{median(run['distortion'] for run in runs):,.8g}" for runs in (old, new)),
        "the same" if all(before["digest"] == after["digest"] for before, after in pairs) else "differ",
        *(f"{median(run['memory_peak'] for run in runs) / 1e6:,.0f}" for runs in (old, new)),
    ]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.revisions", description=__doc__.split("\n")[0])
    parser.add_argument("old", type=commit_of, metavar="OLD", help="a revision: a commit, a tag, a branch")
    parser.add_argument("new", type=commit_of, metavar="NEW", nargs="?", help="default: the working tree")
    parser.add_argument("--cases", nargs="+", choices=CASES, help=f"default: all but {', '.join(ON_DEMAND)}")
    parser.add_argument("--rows", type=int, help="at most so many rows, and clusters to keep n/k")
    parser.add_argument("--rounds", type=int, default=3)
    data.add_data_option(parser)
    parser.add_argument("--out", type=Path, default=FOLDER / "revisions.md", metavar="FILE", help="the table")
    parsed = parser.parse_args(arguments)
    names = parsed.cases or [name for name in CASES if name not in ON_DEMAND]
    cases = {name: CASES[name].reduced_to(parsed.rows) if parsed.rows else CASES[name] for name in names}
    rows: list[Row] = []
    with TemporaryDirectory() as temporary, ExitStack() as worktrees:
        folder = Path(temporary)
        checkouts = {
            side: worktrees.enter_context(checked_out(commit, folder / side))
            for side, commit in (("old", parsed.old), ("new", parsed.new))
        }
        versions = {side: describe_versions(path) for side, path in checkouts.items()}
        for number in range(parsed.rounds):
            for name, case in cases.items():
                path = file_of_rows(case, parsed.data, folder)
                for side in SIDES if number % 2 == 0 else reversed(SIDES):
                    outcome = run(case, path, checkouts[side], seed=number + 1)
                    about = {"case": name, "title": case.title(parsed.data), "side": side, "round": number + 1}
                    about |= {"machine": describe_machine(), "versions": versions[side]}
                    rows.append(about | outcome)
                    append_row(parsed.out.with_suffix(".jsonl"), rows[-1])
                    print(f"{name} round {number + 1} {side}: {outcome}", flush=True)
                parsed.out.write_text(format_report(rows))
    print(f"\n{parsed.out.read_text()}")


if __name__ == "__main__":
    main()
