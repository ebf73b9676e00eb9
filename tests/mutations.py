"""Damaged files: what disks, cables and careless tools do to them, and a process of its own to read them in."""

import subprocess
import sys
from pathlib import Path

import numpy as np


def mutate(good: bytes, seed: int) -> bytes:
    """The same bytes with some bits flipped, cut short, with a number blown up, or with two parts swapped."""
    rng = np.random.default_rng(seed)
    data = bytearray(good)
    kind = seed % 4
    if kind == 0:
        for _ in range(rng.integers(1, 9)):
            data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
    elif kind == 1:
        del data[rng.integers(len(data)) :]
    elif kind == 2:
        width = (2, 4, 8)[rng.integers(3)]
        # Headers come first: half of the numbers blown up are there.
        place = int(rng.integers(min(64, len(data) - width) if rng.random() < 0.5 else len(data) - width))
        values = (2 ** (8 * width) - 1, 2 ** (8 * width - 1) - 1, 2 ** (8 * width - 1), 2 ** (4 * width), 0)
        data[place : place + width] = values[rng.integers(5)].to_bytes(width, "little")
    else:
        first, last = sorted(rng.integers(len(data), size=2))
        data = data[:first] + data[last:] + data[first:last]
    return bytes(data)


def peak_memory() -> int:
    """The largest resident memory of this process so far, in bytes."""
    if sys.platform == "win32":
        import psutil

        return psutil.Process().memory_info().peak_wset
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


# Run in a process of its own: a crash of a C library is seen, and the largest memory is that of the reading alone.
CHECK = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from mutations import mutate, peak_memory
from closure_kmeans.vectors import FileFormatError
{read}
path, good = Path({path!r}), Path({path!r}).read_bytes()
damaged = path.with_name("damaged" + path.suffix)
read(path)
before = peak_memory()
read_in_full = 0
for seed in range({first}, {last}):
    damaged.write_bytes(mutate(good, seed))
    try:
        read(damaged)
        read_in_full += 1
    except FileFormatError as error:
        assert str(damaged) in str(error), error
print(read_in_full, peak_memory() - before)
"""


def read_mutated(path: Path, read: str, first: int, last: int) -> tuple[int, int]:
    """Read mutations of a file with the function ``read`` of some code: how many were read in full, and memory used."""
    code = CHECK.format(tests=str(Path(__file__).parent), read=read, path=str(path), first=first, last=last)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    n_read, memory = map(int, done.stdout.split())
    return n_read, memory
