"""GIST and HOG written from their definitions, pixel by pixel and in double precision."""

import numpy as np


def shifted_sum(picture, kernel):
    """The circular convolution of a picture with a kernel, one shifted copy after the other."""
    total = np.zeros(picture.shape, kernel.dtype)
    for row in range(kernel.shape[0]):
        for column in range(kernel.shape[1]):
            total += kernel[row, column] * np.roll(picture, (row, column), axis=(0, 1))
    return total


def kernel_of(transfer):
    """The spatial kernel of a filter given in frequencies: the inverse Fourier transform as a sum of waves."""
    n = len(transfer)
    waves = np.exp(2j * np.pi * np.outer(np.arange(n), np.arange(n)) / n) / n
    return waves @ transfer @ waves


def frequencies(n):
    """Cycles a pixel, down and across, in the order of the Fourier transform."""
    signed = np.array([k if k < n / 2 else k - n for k in range(n)]) / n
    return np.meshgrid(signed, signed, indexing="ij")


def mirrored(picture, border):
    height, width = picture.shape

    def inside(place, size):
        place = place if place >= 0 else -1 - place
        return place if place < size else 2 * size - 1 - place

    rows = [inside(row, height) for row in range(-border, height + border)]
    columns = [inside(column, width) for column in range(-border, width + border)]
    return np.array([[picture[row, column] for column in columns] for row in rows])


def gist(square):
    """GIST of one square picture: 3 scales x 8 orientations x 16 cells."""
    size = len(square)
    picture = mirrored(np.log(square.astype(np.float64) + 1), 16)
    down, across = frequencies(len(picture))
    coarse = kernel_of(np.exp(-(down**2 + across**2) * size**2 * np.log(2) / 4**2)).real
    fine = picture - shifted_sum(picture, coarse)
    fine /= 0.2 + np.sqrt(np.maximum(shifted_sum(fine**2, coarse), 0))
    vector = []
    for middle in (0.3, 0.3 / 1.85, 0.3 / 1.85**2):
        for turn in np.arange(8) * np.pi / 8:
            apart = np.angle(np.exp(1j * (np.arctan2(down, across) + turn)))
            gabor = np.exp(-3.5 * (np.hypot(down, across) / middle - 1) ** 2 - 2 * np.pi * apart**2)
            response = np.abs(shifted_sum(fine, kernel_of(gabor)))[16:-16, 16:-16]
            for rows in np.split(response, 4, axis=0):
                vector += [cell.mean() for cell in np.split(rows, 4, axis=1)]
    return np.array(vector)


def hog(square):
    """HOG of one picture of 64 x 64 pixels: 16 blocks x 4 cells x 9 orientations."""
    picture = square.astype(np.float64)
    cells = np.zeros((8, 8, 9))
    for row in range(64):
        for column in range(64):
            across = picture[row, min(column + 1, 63)] - picture[row, max(column - 1, 0)]
            down = picture[min(row + 1, 63), column] - picture[max(row - 1, 0), column]
            degrees = np.degrees(np.arctan2(down, across)) % 180
            for orientation in range(9):
                apart = abs(degrees - (20 * orientation + 10))
                vote = np.hypot(across, down) * max(0, 1 - min(apart, 180 - apart) / 20)
                for r in range(8):
                    near = max(0, 1 - abs(row + 0.5 - (8 * r + 4)) / 8)
                    for c in range(8) if near * vote else ():
                        cells[r, c, orientation] += vote * near * max(0, 1 - abs(column + 0.5 - (8 * c + 4)) / 8)
    vector = []
    for r in range(0, 8, 2):
        for c in range(0, 8, 2):
            block = cells[r : r + 2, c : c + 2].ravel()
            clipped = np.minimum(block / np.sqrt(block @ block + 1e-10), 0.2)
            vector.append(clipped / np.sqrt(clipped @ clipped + 1e-10))
    return np.concatenate(vector)
