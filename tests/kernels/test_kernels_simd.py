"""Operations in LLVM instructions, compared with the functions that define them."""

import platform
from inspect import unwrap

import numpy as np
import pytest
from numba import config, njit
from small import (
    assert_close,
    both_precisions,
)

from closure_kmeans.kernels.byte_tiles import CENTER_LEVELS, NEAR_ROWS, ROW_LEVELS, SUMS_FOURS, SUMS_PAIRS, near_tile
from closure_kmeans.kernels.emit import FEATURES, TILE_ROWS, VECTOR_BYTES
from closure_kmeans.kernels.simd import score_tile, take_lowest, turn_rows

pytestmark = pytest.mark.kernels


@both_precisions
@pytest.mark.parametrize("n_lines", [1, TILE_ROWS])
def test_score_tile(dtype, n_lines):
    """What compiled code does is what the function says, wherever a panel is and whatever was found before."""
    rng = np.random.default_rng(0)
    lanes = VECTOR_BYTES // np.dtype(dtype).itemsize
    for d, first in ((1, 0), (2, lanes), (7, 2 * lanes)):
        rows, panel = rng.normal(size=(TILE_ROWS, d)).astype(dtype), rng.normal(size=(d, lanes)).astype(dtype)
        norms, center_norms = (rows**2).sum(axis=1), rng.random(3 * lanes).astype(dtype) + (panel**2).sum()
        center_norms[first + lanes - 1] = np.inf
        own = rng.integers(3 * lanes, size=TILE_ROWS).astype(np.int32)
        own[:3] = first, first + 1, first + lanes - 2
        factors = rng.random((n_lines, 3 * lanes)).astype(dtype)
        before = np.full((TILE_ROWS, lanes), np.inf, dtype)
        before[::2] = rng.random((len(before[::2]), lanes)) * 4 * d
        ours, theirs = ([before.copy(), np.full(before.shape, -1, np.int32), np.zeros_like(before)] for _ in range(2))
        arguments = (rows, norms, own, panel, center_norms, factors, first)
        compiled_score_tile(*arguments, *ours)
        unwrap(score_tile)(*arguments, *theirs)
        assert_close(ours[0], theirs[0], dtype, 4 * norms.max() + center_norms[:-1].min())
        np.testing.assert_array_equal(ours[1], theirs[1])
        assert_close(ours[2], theirs[2], dtype, 4 * norms.max() + center_norms[:-1].min())
        assert (ours[1] >= 0).any()
        assert (ours[2] != 0).any(axis=1)[:3].all()
        assert not (ours[1] == first + lanes - 1).any()


@njit
def compiled_score_tile(rows, norms, own, panel, center_norms, factors, first, best, choice, stays):
    score_tile(rows, norms, own, panel, center_norms, factors, first, best, choice, stays)


@pytest.mark.parametrize(("n_words", "first"), [(1, 0), (2, 5), (33, NEAR_ROWS)])
def test_near_tile(n_words, first):
    """What compiled code does is what the function says, wherever a tile is, with ties and with what overflows."""
    rng = np.random.default_rng(0)
    lanes = VECTOR_BYTES // 4
    unsigned = rng.integers(0, 2 * CENTER_LEVELS + 1, (2 * NEAR_ROWS, 4 * n_words)).astype(np.uint8)
    signed = rng.integers(-ROW_LEVELS, ROW_LEVELS + 1, (lanes, 4 * n_words)).astype(np.int8)
    signed[0], unsigned[first] = -ROW_LEVELS, 2 * CENTER_LEVELS  # the largest product
    codes, panel = unsigned.view(np.int32), np.ascontiguousarray(signed.view(np.int32).T)
    shifts = rng.integers(-1000, 1000, lanes).astype(np.int32)
    facts = rng.integers(-9, 9, (2 * NEAR_ROWS, 4)).astype(np.float32)
    facts[:, 0] = rng.choice([-1, 1], len(facts))
    facts[first + NEAR_ROWS - 3 : first + NEAR_ROWS, 1] = np.inf, np.nan, -np.inf
    facts_of_rows = rng.integers(1, 9, (4, lanes)).astype(np.float32)
    middle = signed.astype(int) @ unsigned[first].astype(int)
    # What any number has to do with a limit, and what infinity, NaN and minus infinity have.
    for limits, number, special in (
        (-np.inf, [0], [0, 1, 1]),
        (np.inf, [1], [1, 1, 1]),
        (np.nan, [1], [1, 1, 1]),
        (facts[first, 0] * facts_of_rows[0] * (middle + shifts), [0, 1], [0, 1, 1]),
    ):
        facts_of_rows[3] = limits
        ours, theirs = np.empty((2, NEAR_ROWS), np.int32)
        compiled_near_tile(codes, first, facts, panel, shifts, facts_of_rows, ours)
        unwrap(near_tile)(codes, first, facts, panel, shifts, facts_of_rows, theirs)
        np.testing.assert_array_equal(ours, theirs)
        bits = ours[:, np.newaxis] >> np.arange(lanes) & 1
        assert set(bits[:-3].ravel()) <= set(number)
        np.testing.assert_array_equal(bits[-3:], np.repeat(special, lanes).reshape(3, lanes))
        assert (ours < 1 << lanes).all()


@njit
def compiled_near_tile(codes, first, facts, panel, shifts, facts_of_rows, bits):
    near_tile(codes, first, facts, panel, shifts, facts_of_rows, bits)


@both_precisions
def test_take_lowest(dtype):
    """What compiled code does is what the function says, with ties and with rows that have found nothing."""
    rng = np.random.default_rng(0)
    shape = TILE_ROWS, VECTOR_BYTES // np.dtype(dtype).itemsize
    for n_scores in (1, 3, 100):
        best = rng.integers(n_scores, size=shape).astype(dtype)
        best[0] = np.inf
        choice = rng.integers(100, size=shape).astype(np.int32)
        ours, theirs = ((np.zeros(TILE_ROWS, dtype), np.zeros(TILE_ROWS, np.int32)) for _ in range(2))
        compiled_take_lowest(best, choice, *ours)
        unwrap(take_lowest)(best, choice, *theirs)
        np.testing.assert_array_equal(ours, theirs)
        pairs = [min(zip(scores, choices, strict=True)) for scores, choices in zip(best, choice, strict=True)]
        np.testing.assert_array_equal(np.transpose(ours), pairs)


@njit
def compiled_take_lowest(best, choice, lowest, chosen):
    take_lowest(best, choice, lowest, chosen)


@both_precisions
@pytest.mark.parametrize("n_features", [1, 15, 16, 17, 50])
def test_turn_rows(n_features, dtype):
    """What compiled code does is what the function says, whether squares fill the rows or not."""
    rows = np.random.default_rng(0).random((VECTOR_BYTES // np.dtype(dtype).itemsize, n_features)).astype(dtype)
    for turn in (unwrap(turn_rows), compiled_turn_rows):
        panel = np.zeros(rows.T.shape, dtype)
        turn(rows, panel)
        np.testing.assert_array_equal(panel, rows.T)


@njit
def compiled_turn_rows(rows, panel):
    turn_rows(rows, panel)


@pytest.mark.skipif(
    config.DISABLE_JIT or platform.machine() not in ("x86_64", "AMD64"), reason="is about compiled code of x86"
)
def test_instructions_of_the_processor():
    """Code has the vectors and the multiply-add of the processor that it is compiled for, and nothing beyond."""
    assert {"haswell": 32, "nehalem": 16}.get(config.CPU_NAME, VECTOR_BYTES) == VECTOR_BYTES
    test_near_tile(2, 5)
    test_score_tile(np.float32, 1)
    code = "".join("".join(compiled.inspect_asm().values()) for compiled in (compiled_near_tile, compiled_score_tile))
    registers = {64: "%zmm", 32: "%ymm", 16: "%xmm"}
    assert max(width for width, register in registers.items() if register in code) == VECTOR_BYTES
    assert ("vfmadd" in code or "vfnmadd" in code) == ("+fma" in FEATURES)
    assert ("vpdpbusd" in code, "vpmaddubsw" in code) == (SUMS_FOURS, SUMS_PAIRS and not SUMS_FOURS)
