"""
A visual vocabulary for COLMAP
==============================

COLMAP selects pairs of photos for matching with a vocabulary tree. The published trees were trained on internet photos;
a tree trained on your own photos fits them better. This guide trains one on the features extracted by COLMAP and writes
it to a file that COLMAP 3.12 or later reads.

Needs ``pip install '.[faiss,images]' pycolmap``.
"""

# sphinx_gallery_thumbnail_path = 'images/retrieval-matches.jpg'
import sqlite3
from itertools import combinations
from pathlib import Path
from tempfile import mkdtemp

import pycolmap
from PIL import Image
from sklearn.datasets import load_sample_images

from closure_kmeans import ClosureKMeans
from closure_kmeans.retrieval.exchange import read_colmap_descriptors, save_colmap_tree

# %%
# Sample photos: parts of two pictures of scikit-learn, each in three rotations.

folder = Path(mkdtemp())
(photos := folder / "photos").mkdir()
for scene, pixels in zip(("temple", "flower"), load_sample_images().images, strict=True):
    for part, left in enumerate((0, 320)):
        piece = Image.fromarray(pixels).crop((left, 0, left + 320, 420))
        for turn in range(3):
            piece.rotate(8 * turn, expand=True).save(photos / f"{scene}{part}-{turn}.jpg")

# %%
# COLMAP extracts the features; ``ClosureKMeans`` trains the visual words. Use 100,000 words or more for a real
# collection. The descriptors in the database are RootSIFT already.

database = folder / "database.db"
pycolmap.logging.minloglevel = 2
pycolmap.extract_features(database, photos, device=pycolmap.Device.cpu)
descriptors, offsets = read_colmap_descriptors(database)
model = ClosureKMeans(n_clusters=len(descriptors) // 20, random_state=0).fit(descriptors)
save_colmap_tree(folder / "words.bin", model, descriptors)
print(f"{len(descriptors):,} descriptors of {len(offsets) - 1} photos, {model.n_clusters} words")

# %%
# COLMAP matches each photo with those found by the vocabulary, and verifies the matches. The same on the command line:
# ``colmap vocab_tree_matcher --VocabTreeMatching.vocab_tree_path words.bin``.

pairing = pycolmap.VocabTreePairingOptions(vocab_tree_path=folder / "words.bin", num_images=4)
pycolmap.match_vocabtree(database, pairing_options=pairing, device=pycolmap.Device.cpu)
connection = sqlite3.connect(database)
names = dict(connection.execute("SELECT image_id, name FROM images"))
verified = [pair for (pair,) in connection.execute("SELECT pair_id FROM two_view_geometries WHERE rows > 0")]
found = {frozenset((names[pair // 2147483647], names[pair % 2147483647])) for pair in verified}
same = {frozenset(pair) for pair in combinations(names.values(), 2) if pair[0][:7] == pair[1][:7]}
print(f"{len(found & same)} of the {len(same)} pairs that show the same part found, and {len(found - same)} others")
