"""One revision of this repository against another: speed, distortion and memory."""
