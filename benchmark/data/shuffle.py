"""A shuffle that stays the same under any version of NumPy.

Shapes: N entries of an index array.
"""

import numpy as np

from benchmark.data.tables import IntArray


def shuffled(indices_N: IntArray, stream: np.random.Generator) -> IntArray:
    """A shuffle from raw generator bits: NumPy promises these for ever, but not what `permutation` makes of them."""
    raw_N = stream.bit_generator.random_raw(len(indices_N))
    return indices_N[np.argsort(raw_N, kind="stable")].astype(np.int64)
