"""Kill fits that write checkpoints, at random moments, and resume them: how many end in the same bytes?"""

import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

from closure_kmeans import ClosureKMeans
from closure_kmeans.datasets import load_sift

X = load_sift()


def fit(folder: Path) -> None:
    checkpoint = folder / "checkpoint"
    model = ClosureKMeans(400, random_state=0, checkpoint=checkpoint, checkpoint_every=0, max_iter=20)
    model.fit(X, resume=True)
    model.save(folder / "model.safetensors")


def fit_in_a_child(folder: Path) -> int:
    child = os.fork()
    if child == 0:
        fit(folder)
        os._exit(0)
    return child


def main(folder: Path, n_kills: int) -> None:
    expected, trial = folder / "expected", folder / "trial"
    fit(expected)  # compiles the kernels
    shutil.rmtree(expected)
    began = time.perf_counter()
    os.waitpid(fit_in_a_child(expected), 0)
    seconds = time.perf_counter() - began
    rng = random.Random(0)
    n_killed = n_identical = 0
    while n_killed < n_kills:
        child = fit_in_a_child(trial)
        time.sleep(rng.uniform(0, seconds))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):  # it had ended before
            shutil.rmtree(trial)
            continue
        n_killed += 1
        os.waitpid(fit_in_a_child(trial), 0)
        files = [folder / "model.safetensors" for folder in (expected, trial)]
        n_identical += files[0].read_bytes() == files[1].read_bytes()
        left = sorted(path.name for path in (trial / "checkpoint").iterdir())
        assert left == ["checkpoint.safetensors"], left
        shutil.rmtree(trial)
    print(n_identical)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
