"""What a notebook shows of a model: a summary, and the items of a cluster as a grid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup
from numpy.typing import ArrayLike

from closure_kmeans._files import library
from closure_kmeans.explorer.charts import count_sizes
from closure_kmeans.explorer.pictures import Encoded, array_pictures, draw_vector, picture_of_file
from closure_kmeans.explorer.report import embedded

if TYPE_CHECKING:
    from closure_kmeans.base import BaseKMeans

SIDE = 96
