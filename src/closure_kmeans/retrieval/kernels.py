"""Compiled kernels of the retrieval, by the conventions of ``closure_kmeans.kernels``.

Their arrays come from files. Every number that is used as an index is checked first, so that a damaged file raises an
error.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from closure_kmeans.cache import kernel
from closure_kmeans.kernels.emit import Array

if TYPE_CHECKING:
    from closure_kmeans.retrieval.inverted import InvertedFile

# Words with more pairs of regions than this say little about positions and are skipped; and the limit for all words.
MOST_PAIRS_OF_A_WORD = 64
MOST_PAIRS = 2000
# RANSAC's failure probability: hypotheses are tried until a better one was missed with this probability, if the share
# of good hypotheses is the share of inliers.
MISSED = 1e-3
# Least-squares refits of the affine transformation to its inliers, at most.
REFITS = 4
# Rounding error of a distance in float32, relative to the coordinates, and the largest coordinates whose squares are
# float32.
SLACK = 8 * 2**-23
MOST_COUNTED = 1e18


@kernel
def add_scores(
    file: InvertedFile, words: Array, shares: Array, inverse_norms: Array, least: bool, scores: Array
) -> bool:
    """Add to every image's score its similarity to a query; return whether all image ids are valid.

    ``shares`` are the normalised weights of the query's words. A word adds the smaller of the two weights (L1,
    ``least``) or their product (L2).
    """
    for i in range(words.shape[0]):
        word = words[i]
        for place in range(file.starts[word], file.starts[word + 1]):
            image = file.images[place]
            if not 0 <= image < scores.shape[0]:
                return False
            share = file.counts[place] * file.idf[word] * inverse_norms[image]
            scores[image] += min(share, shares[i]) if least else share * shares[i]
    return True


@kernel
def hamming(one: Any, other: Any) -> Any:  # unsigned: NumPy's types
    """Hamming distance of two signatures of 64 bits: counts of bits in pairs, fours and bytes, then their sum."""
    x = one ^ other
    x = x - ((x >> np.uint64(1)) & np.uint64(0x5555555555555555))
    x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    for shift in (8, 16, 32):
        x = x + (x >> np.uint64(shift))
    return np.int64(x & np.uint64(0x7F))


@kernel
def add_matches(
    starts: Array,
    images: Array,
    signatures: Array,
    words: Array,
    asked: Array,
    similarities: Array,
    weights: Array,
    bursty: bool,
    sums: Array,
    touched: Array,
    scores: Array,
) -> bool:
    """Add to every image's score the weights of its matches with a query; return whether all image ids are valid.

    Query region i has the words ``words[i]`` and in these the signatures ``asked[i]``; a match of signatures at Hamming
    distance h has the similarity ``similarities[h]``, times the weight of its word. With ``bursty``, a match of
    similarity s first becomes s' = s sqrt(s / the sum of s over the region's matches in the image), then s' sqrt(s' /
    the sum of s' over all images). ``sums``, zeros, and ``touched`` are work space: a number for each image.
    """
    for i in range(words.shape[0]):
        n_touched = 0
        for j in range(words.shape[1]):
            for place in range(starts[words[i, j]], starts[words[i, j] + 1]):
                image = images[place]
                if not 0 <= image < scores.shape[0]:
                    return False
                s = weights[words[i, j]] * similarities[hamming(signatures[place], asked[i, j])]
                if s > 0:
                    if sums[image] == 0:
                        touched[n_touched] = image
                        n_touched += 1
                    sums[image] += s
        if bursty:
            in_all = 0.0
            for adds in range(2):
                for j in range(words.shape[1]):
                    for place in range(starts[words[i, j]], starts[words[i, j] + 1]):
                        s = weights[words[i, j]] * similarities[hamming(signatures[place], asked[i, j])]
                        if s > 0:
                            s *= math.sqrt(s / sums[images[place]])
                            if adds:
                                scores[images[place]] += s * math.sqrt(s / in_all)
                            else:
                                in_all += s
        for place in range(n_touched):
            if not bursty:
                scores[touched[place]] += sums[touched[place]]
            sums[touched[place]] = 0
    return True


# -- spatial verification --------------------------------------------------------------------------------------------


@kernel
def end_of_run(words: Array, begin: int) -> int:
    """End of the run of equal words that begins at ``begin``."""
    end = begin
    while end < words.shape[0] and words[end] == words[begin]:
        end += 1
    return end


def match_words(words: Array, other_words: Array) -> Array:
    """Merge two sorted lists of words into the pairs of regions that have the same word, an (n, 2) array.

    Not compiled itself: a kernel that returns arrays calls Python, where an interrupt would become a ``SystemError``.
    """
    pairs = np.empty((MOST_PAIRS, 2), np.int32)
    return pairs[: fill_pairs(words, other_words, pairs)]


@kernel
def fill_pairs(words: Array, other_words: Array, pairs: Array) -> int:
    """Fill the pairs of ``match_words``, an array of ``MOST_PAIRS`` rows; return their number."""
    n_pairs, a, b = 0, 0, 0
    while a < words.shape[0] and b < other_words.shape[0]:
        if words[a] < other_words[b]:
            a += 1
        elif words[a] > other_words[b]:
            b += 1
        else:
            end_a, end_b = end_of_run(words, a), end_of_run(other_words, b)
            size = (end_a - a) * (end_b - b)
            if size <= MOST_PAIRS_OF_A_WORD and n_pairs + size <= MOST_PAIRS:
                for i in range(a, end_a):
                    for j in range(b, end_b):
                        pairs[n_pairs, 0], pairs[n_pairs, 1] = i, j
                        n_pairs += 1
            a, b = end_a, end_b
    return n_pairs


@kernel
def frame(keypoint: Array, dof: int) -> tuple[float, float, float, float]:
    """The matrix, row by row, that maps the unit circle to a region.

    3 degrees of freedom: an upright circle. 4: a circle and its angle. 5: an ellipse ``a x² + 2 b x y + c y² = 1``
    without an angle; the matrix keeps vertical lines vertical.
    """
    if dof == 5:
        a, b, c = float(keypoint[2]), float(keypoint[3]), float(keypoint[4])
        determinant = a * c - b * b
        across = math.sqrt(c / determinant)
        shear = -b / determinant / across
        return across, 0.0, shear, math.sqrt(a / determinant - shear * shear)
    radius = float(keypoint[2]) / 2
    if dof == 3:
        return radius, 0.0, 0.0, radius
    angle = math.radians(float(keypoint[3]))
    return radius * math.cos(angle), -radius * math.sin(angle), radius * math.sin(angle), radius * math.cos(angle)


@kernel
def transform_between(keypoint: Array, other: Array, dof: int, out: Array) -> None:
    """Affine transformation, a (2, 3) array, that maps one region to another: the hypothesis of a single match."""
    a, b, c, d = frame(keypoint, dof)
    p, q, r, s = frame(other, dof)
    determinant = a * d - b * c
    out[0, 0], out[0, 1] = (p * d - q * c) / determinant, (q * a - p * b) / determinant
    out[1, 0], out[1, 1] = (r * d - s * c) / determinant, (s * a - r * b) / determinant
    for row in range(2):
        out[row, 2] = other[row] - out[row, 0] * keypoint[0] - out[row, 1] * keypoint[1]


@kernel
def find_inliers(
    keypoints: Array, others: Array, pairs: Array, transform: Array, tolerances: tuple[float, float], inliers: Array
) -> int:
    """Find the pairs whose transfer errors, forward and backward, are within the tolerances; return their number.

    Fills ``inliers``. ``tolerances`` are the distances allowed in the first and in the second picture. A region is used
    once, by its first pair.
    """
    a, b, c, d = transform[0, 0], transform[0, 1], transform[1, 0], transform[1, 1]
    determinant = a * d - b * c
    if not abs(determinant) > 0:  # NaN too
        return 0
    used = np.zeros(keypoints.shape[0], np.bool_)
    other_used = np.zeros(others.shape[0], np.bool_)
    n_inliers = 0
    for pair in range(pairs.shape[0]):
        i, j = pairs[pair, 0], pairs[pair, 1]
        if used[i] or other_used[j]:
            continue
        across = others[j, 0] - (a * keypoints[i, 0] + b * keypoints[i, 1] + transform[0, 2])
        down = others[j, 1] - (c * keypoints[i, 0] + d * keypoints[i, 1] + transform[1, 2])
        back_across = (d * across - b * down) / determinant
        back_down = (a * down - c * across) / determinant
        if (
            across * across + down * down <= tolerances[1] ** 2
            and back_across * back_across + back_down * back_down <= tolerances[0] ** 2
        ):
            used[i] = other_used[j] = True
            inliers[n_inliers] = pair
            n_inliers += 1
    return n_inliers


@kernel
def count_carried(ends: Array, sizes: tuple[float, float], transform: Array, tolerances: tuple[float, float]) -> int:
    """Upper bound on the number of inliers of a transformation, vectorised in float32.

    ``ends`` holds x and y of the first and of the second region of each pair, a (4, n) array of float32, and ``sizes``
    the largest coordinate of each picture. Regions may be counted several times, and the backward error is taken as the
    forward error divided by the largest singular value, which is exact for similarities. So the result is at least the
    number that ``find_inliers`` finds.
    """
    a, b, c, d = transform[0, 0], transform[0, 1], transform[1, 0], transform[1, 1]
    determinant = a * d - b * c
    if not abs(determinant) > 0:  # NaN too
        return 0
    squares = a * a + b * b + c * c + d * d
    most_stretched = math.sqrt((squares + math.sqrt(max(squares * squares - 4 * determinant * determinant, 0.0))) / 2)
    size = (abs(a) + abs(b) + abs(c) + abs(d)) * sizes[0] + abs(transform[0, 2]) + abs(transform[1, 2]) + sizes[1]
    if not size < MOST_COUNTED:
        return int(ends.shape[1])
    allowed = min(tolerances[1], tolerances[0] * most_stretched) + SLACK * size
    near = np.float32(allowed * allowed)
    # Coefficients of the transformed x and y: of x, of y, and the shift.
    x_of_x, x_of_y, x_shift = np.float32(a), np.float32(b), np.float32(transform[0, 2])
    y_of_x, y_of_y, y_shift = np.float32(c), np.float32(d), np.float32(transform[1, 2])
    n_carried = 0
    for pair in range(ends.shape[1]):
        x = ends[2, pair] - (x_of_x * ends[0, pair] + x_of_y * ends[1, pair] + x_shift)
        y = ends[3, pair] - (y_of_x * ends[0, pair] + y_of_y * ends[1, pair] + y_shift)
        n_carried += x * x + y * y <= near
    return n_carried


@kernel
def fit_affine(keypoints: Array, others: Array, pairs: Array, out: Array) -> bool:
    """Least-squares affine transformation of pairs; false if they are nearly collinear."""
    n = pairs.shape[0]
    mean = np.zeros(2)
    other_mean = np.zeros(2)
    for pair in range(n):
        for t in range(2):
            mean[t] += keypoints[pairs[pair, 0], t] / n
            other_mean[t] += others[pairs[pair, 1], t] / n
    spread = np.zeros((2, 2))
    joint = np.zeros((2, 2))
    for pair in range(n):
        for t in range(2):
            here = keypoints[pairs[pair, 0], t] - mean[t]
            for u in range(2):
                spread[t, u] += here * (keypoints[pairs[pair, 0], u] - mean[u])
                joint[u, t] += here * (others[pairs[pair, 1], u] - other_mean[u])
    determinant = spread[0, 0] * spread[1, 1] - spread[0, 1] * spread[1, 0]
    if not determinant > 1e-9 * (spread[0, 0] + spread[1, 1]) ** 2:
        return False
    for t in range(2):
        out[t, 0] = (joint[t, 0] * spread[1, 1] - joint[t, 1] * spread[1, 0]) / determinant
        out[t, 1] = (joint[t, 1] * spread[0, 0] - joint[t, 0] * spread[0, 1]) / determinant
        out[t, 2] = other_mean[t] - out[t, 0] * mean[0] - out[t, 1] * mean[1]
    return True


def verify_pairs(
    keypoints: Array, others: Array, pairs: Array, dof: int, tolerances: tuple[float, float], locally: bool, best: Array
) -> Array:
    """Find the affine transformation of most inliers: store it in ``best``, return its inliers. Not compiled itself."""
    inliers = np.empty(len(pairs), np.int32)
    n_inliers = find_transform(keypoints, others, pairs, dof, tolerances, locally, best, inliers)
    return pairs[inliers[:n_inliers]]


@kernel
def refit(
    keypoints: Array,
    others: Array,
    pairs: Array,
    tolerances: tuple[float, float],
    best: Array,
    inliers: Array,
    n_inliers: int,
    trial: Array,
    found: Array,
) -> int:
    """Refit an affine transformation to its inliers as long as this adds inliers; return how many there are.

    Replaces ``best`` and ``inliers``, the first ``n_inliers`` of them; ``trial`` and ``found`` are work space.
    """
    for _ in range(REFITS):
        if n_inliers < 3 or not fit_affine(keypoints, others, pairs[inliers[:n_inliers]], trial):
            break
        n_found = find_inliers(keypoints, others, pairs, trial, tolerances, found)
        if n_found <= n_inliers:
            break
        n_inliers = n_found
        inliers[:n_inliers] = found[:n_inliers]
        best[:] = trial
    return n_inliers


@kernel
def find_transform(
    keypoints: Array,
    others: Array,
    pairs: Array,
    dof: int,
    tolerances: tuple[float, float],
    locally: bool,
    best: Array,
    inliers: Array,
) -> int:
    """Fill the transformation and the numbers of its inliers for ``verify_pairs``; return how many inliers there are.

    Every pair is a hypothesis (fast object retrieval, Philbin et al. 2007). The best one is refitted to its inliers by
    least squares; with ``locally`` every hypothesis that is the best so far is, too (LO-RANSAC, Chum et al. 2003).
    """
    trial = np.empty((2, 3))
    found = np.empty(pairs.shape[0], np.int32)
    ends = np.empty((4, pairs.shape[0]), np.float32)
    size, other_size = 0.0, 0.0
    for pair in range(pairs.shape[0]):
        for t in range(2):
            here, there = keypoints[pairs[pair, 0], t], others[pairs[pair, 1], t]
            ends[t, pair], ends[2 + t, pair] = here, there
            size, other_size = max(size, abs(here)), max(other_size, abs(there))
    n_best = 0
    n_trials = float(pairs.shape[0])
    for pair in range(pairs.shape[0]):
        if pair >= n_trials:
            break
        transform_between(keypoints[pairs[pair, 0]], others[pairs[pair, 1]], dof, trial)
        if count_carried(ends, (size, other_size), trial, tolerances) <= n_best:
            continue
        n_found = find_inliers(keypoints, others, pairs, trial, tolerances, found)
        if n_found > n_best:
            n_best = n_found
            inliers[:n_best] = found[:n_best]
            best[:] = trial
            if locally:
                n_best = refit(keypoints, others, pairs, tolerances, best, inliers, n_best, trial, found)
            missing = 1 - n_best / pairs.shape[0]
            n_trials = math.log(MISSED) / math.log(missing) if missing > 0 else 0.0
    return refit(keypoints, others, pairs, tolerances, best, inliers, n_best, trial, found)


@kernel
def weigh_inliers(
    keypoints: Array, others: Array, pairs: Array, words: Array, idf: Array, transform: Array, dof: int
) -> float:
    """Sum over inliers of idf times the consistency of scales, exp(-d² / 2) for scales that differ by 2^d."""
    determinant = abs(transform[0, 0] * transform[1, 1] - transform[0, 1] * transform[1, 0])
    trial = np.empty((2, 3))
    total = 0.0
    for pair in range(pairs.shape[0]):
        i, j = pairs[pair, 0], pairs[pair, 1]
        transform_between(keypoints[i], others[j], dof, trial)
        own = abs(trial[0, 0] * trial[1, 1] - trial[0, 1] * trial[1, 0])
        if own > 0 and determinant > 0:  # keypoints without size have no scale
            octaves = math.log2(own / determinant) / 2
            total += idf[words[i]] * math.exp(-octaves * octaves / 2)
    return total


@kernel
def count_places(keypoints: Array, others: Array, pairs: Array, tolerances: tuple[float, float]) -> int:
    """Count pairs greedily that are farther than the tolerance from all pairs counted before, in both pictures."""
    counted = np.empty(pairs.shape[0], np.int64)
    n_places = 0
    for pair in range(pairs.shape[0]):
        i, j = pairs[pair, 0], pairs[pair, 1]
        alone = True
        for place in range(n_places):
            a, b = pairs[counted[place], 0], pairs[counted[place], 1]
            here = (keypoints[i, 0] - keypoints[a, 0]) ** 2 + (keypoints[i, 1] - keypoints[a, 1]) ** 2
            there = (others[j, 0] - others[b, 0]) ** 2 + (others[j, 1] - others[b, 1]) ** 2
            if here <= tolerances[0] ** 2 or there <= tolerances[1] ** 2:
                alone = False
                break
        if alone:
            counted[n_places] = pair
            n_places += 1
    return n_places


@kernel
def reach(keypoints: Array) -> float:
    """Longer side of the bounding box of all keypoints."""
    longest = 0.0
    for t in range(2):
        low, high = np.inf, -np.inf
        for i in range(keypoints.shape[0]):
            low, high = min(low, keypoints[i, t]), max(high, keypoints[i, t])
        longest = max(longest, high - low)
    return longest


@kernel
def verify_images(
    words: Array,
    keypoints: Array,
    starts: Array,
    all_words: Array,
    all_keypoints: Array,
    idf: Array,
    images: Array,
    dof: int,
    tolerance: float,
    locally: bool,
    n_pairs: Array,
    n_inliers: Array,
    n_places: Array,
    weights: Array,
    transforms: Array,
    first: int,
    last: int,
) -> None:
    """Count matched regions, inliers and their distinct places, for a query and the images ``images[first:last]``.

    Fills ``transforms`` and the ``weights`` of the inliers, too. Image i has the regions
    ``starts[i] <= region < starts[i + 1]``. ``tolerance`` is a fraction of the ``reach`` of each picture's keypoints.
    """
    pairs = np.empty((MOST_PAIRS, 2), np.int32)
    inliers = np.empty(MOST_PAIRS, np.int32)
    own = tolerance * reach(keypoints)
    for place in range(first, last):
        begin, end = starts[images[place]], starts[images[place] + 1]
        others = all_keypoints[begin:end]
        matched = pairs[: fill_pairs(words, all_words[begin:end], pairs)]
        tolerances = (own, tolerance * reach(others))
        transform = transforms[place]
        n_found = find_transform(keypoints, others, matched, dof, tolerances, locally, transform, inliers)
        agreed = matched[inliers[:n_found]]
        n_pairs[place], n_inliers[place] = matched.shape[0], n_found
        n_places[place] = count_places(keypoints, others, agreed, tolerances)
        weights[place] = weigh_inliers(keypoints, others, agreed, words, idf, transform, dof)
