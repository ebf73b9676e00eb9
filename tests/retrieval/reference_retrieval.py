"""The retrieval written from its definitions: dense vectors, and every pair of regions looked at one by one."""

import math

import numpy as np


def weighted_vectors(counts):
    """Rows of counts times ln(N / N_i); 0 where no image has the word."""
    n_images = len(counts)
    weights = [math.log(n_images / containing) if containing else 0.0 for containing in (counts > 0).sum(axis=0)]
    return np.array(weights), counts * np.array(weights)


def normalized(vector, norm):
    length = np.abs(vector).sum() if norm == "l1" else math.sqrt((vector**2).sum())
    return vector / length if length > 0 else vector * 0


def scores(counts, query, norm):
    """1 - half the L1 distance, or half the squared L2 distance, of normalised vectors; 0 where either is empty."""
    weights, images = weighted_vectors(counts)
    asked = normalized(query * weights, norm)
    found = []
    for image in images:
        own = normalized(image, norm)
        if not own.any() or not asked.any():
            found.append(0.0)
        elif norm == "l1":
            found.append(1 - np.abs(asked - own).sum() / 2)
        else:
            found.append(1 - ((asked - own) ** 2).sum() / 2)
    return np.array(found)


def end_of_run(words, begin):
    return next((i for i in range(begin, len(words)) if words[i] != words[begin]), len(words))


def match_words(words, others, most_of_a_word, most):
    pairs = []
    for word in sorted(set(words) & set(others)):
        new = [(i, j) for i, a in enumerate(words) for j, b in enumerate(others) if a == b == word]
        if len(new) <= most_of_a_word and len(pairs) + len(new) <= most:
            pairs += new
    return np.array(pairs).reshape(-1, 2)


def frame(keypoint, dof):
    if dof == 5:
        a, b, c = keypoint[2:].astype(np.float64)
        return np.linalg.cholesky(np.linalg.inv([[a, b], [b, c]]))
    turn = math.radians(keypoint[3]) if dof == 4 else 0.0
    return keypoint[2] / 2 * np.array([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]])


def transform_between(keypoint, other, dof):
    matrix = frame(other, dof) @ np.linalg.inv(frame(keypoint, dof))
    return np.column_stack([matrix, other[:2] - matrix @ keypoint[:2]])


def find_inliers(keypoints, others, pairs, transform, tolerances):
    matrix, shift = transform[:, :2], transform[:, 2]
    used, other_used, inliers = set(), set(), []
    for number, (i, j) in enumerate(pairs):
        there = np.linalg.norm(matrix @ keypoints[i, :2] + shift - others[j, :2])
        back = np.linalg.norm(np.linalg.solve(matrix, others[j, :2] - shift) - keypoints[i, :2])
        if there <= tolerances[1] and back <= tolerances[0] and i not in used and j not in other_used:
            used.add(i)
            other_used.add(j)
            inliers.append(number)
    return inliers


def fit_affine(keypoints, others, pairs):
    here = np.column_stack([keypoints[pairs[:, 0], :2], np.ones(len(pairs))]).astype(np.float64)
    return np.linalg.lstsq(here, others[pairs[:, 1], :2].astype(np.float64), rcond=None)[0].T


def refit(keypoints, others, pairs, tolerances, best, inliers):
    for _ in range(4):
        chosen = pairs[inliers]
        if len(inliers) < 3 or np.linalg.matrix_rank(keypoints[chosen[:, 0], :2] - keypoints[chosen[0, 0], :2]) < 2:
            break
        trial = fit_affine(keypoints, others, chosen)
        found = find_inliers(keypoints, others, pairs, trial, tolerances)
        if len(found) <= len(inliers):
            break
        best, inliers = trial, found
    return best, inliers


def verify_pairs(keypoints, others, pairs, dof, tolerances, locally):
    best, inliers = None, []
    for number, (i, j) in enumerate(pairs):
        missing = 1 - len(inliers) / len(pairs)
        if inliers and (missing == 0 or number >= math.log(1e-3) / math.log(missing)):
            break
        trial = transform_between(keypoints[i], others[j], dof)
        found = find_inliers(keypoints, others, pairs, trial, tolerances)
        if len(found) > len(inliers):
            best, inliers = trial, found
            if locally:
                best, inliers = refit(keypoints, others, pairs, tolerances, best, inliers)
    best, inliers = refit(keypoints, others, pairs, tolerances, best, inliers)
    return best, pairs[inliers]


def weigh_inliers(keypoints, others, inliers, words, idf, transform, dof):
    """idf times a Gaussian of the octaves between the scale of the match and that of the transformation."""
    total = 0.0
    for i, j in inliers:
        own = abs(np.linalg.det(transform_between(keypoints[i], others[j], dof)[:, :2]))
        octaves = math.log2(math.sqrt(own) / math.sqrt(abs(np.linalg.det(transform[:, :2]))))
        total += idf[words[i]] * math.exp(-(octaves**2) / 2)
    return total


def count_places(keypoints, others, pairs, tolerances):
    """Pairs that are farther than the tolerances from all that were counted before, in both pictures."""
    counted = []
    for i, j in pairs:
        here, there = keypoints[i, :2], others[j, :2]
        if all(
            np.linalg.norm(here - a) > tolerances[0] and np.linalg.norm(there - b) > tolerances[1] for a, b in counted
        ):
            counted.append((here, there))
    return len(counted)


def average_precision(ranking, positives, junk):
    """The closed form: what the i-th positive at the junk-free rank r contributes."""
    clean = [image for image in dict.fromkeys(ranking) if image not in junk]
    ranks = [rank for rank, image in enumerate(clean) if image in positives]
    parts = [((1 if r == 0 else i / r) + (i + 1) / (r + 1)) / 2 for i, r in enumerate(ranks)]
    return sum(parts) / len(positives)


def match_scores(images, query, idf, similarities, bursty):
    """Every pair of a query region and an image region looked at one by one (Jégou et al. 2009, equations 4, 7, 9).

    A query region has several words, and a signature in each.
    """
    scores = np.zeros(len(images))
    for words, signatures in zip(*query, strict=True):
        asked = list(zip(words, signatures, strict=True))
        matches = [
            [
                idf[word] ** 2 * similarities[(signature != other).sum()]
                for w, other in zip(*image, strict=True)
                for word, signature in asked
                if w == word
            ]
            for image in images
        ]
        if bursty:
            matches = [[s * math.sqrt(s / sum(own)) if s > 0 else 0.0 for s in own] for own in matches]
            in_all = sum(map(sum, matches))
            matches = [[s * math.sqrt(s / in_all) if s > 0 else 0.0 for s in own] for own in matches]
        scores += [sum(own) for own in matches]
    norms = [math.sqrt((idf[words] ** 2).sum() * (idf[query[0][:, 0]] ** 2).sum()) for words, _ in images]
    return np.array([score / norm if norm > 0 else 0.0 for score, norm in zip(scores, norms, strict=True)])


def signatures(rows, groups, thresholds, normals):
    """Each bit: whether the projection of a row is beyond the threshold of its group."""
    return np.array(
        [
            [row @ n > t for n, t in zip(normals, thresholds[g], strict=True)]
            for row, g in zip(rows, groups, strict=True)
        ]
    )
