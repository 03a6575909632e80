"""Compute tables of counts for the partition rules, with exact rounding.

Proportions are exact fractions, so that a table does not depend on the rounding of a machine. Shapes: K clients, d
classes, M entries of any vector. `n_d` counts the images of each class that remain after the server's images are taken.
"""

import math
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
Table = npt.NDArray[Any]  # `Fraction`s of images, because rounding must not depend on a machine's float sums


def fractions(n_M: IntArray, whole_M: IntArray | int) -> Table:
    """Compute n / whole as exact fractions, (M,)."""
    return np.array([Fraction(int(n), int(whole)) for n, whole in np.broadcast(n_M, whole_M)], dtype=object)


def stratified(sizes_K: Table, n_d: IntArray) -> Table:
    """Compute exact (K, d) counts of clients with these sizes and the overall class proportions: Eq. 9 for R = 0."""
    return np.outer(sizes_K, fractions(n_d, n_d.sum()))


def largest_remainders(exact_M: FloatArray | Table, total: int) -> IntArray:
    """Round down to (M,) integers, then the largest remainders up to reach `total`; ties go to the lower index."""
    counts_M = np.floor(exact_M).astype(np.int64)
    largest_first_M = np.argsort(counts_M - exact_M, kind="stable")
    counts_M[largest_first_M[: total - int(counts_M.sum())]] += 1
    return counts_M


def rounded_to_sums(exact_Kd: FloatArray, sizes_K: IntArray, n_d: IntArray) -> IntArray:
    """Round to (K, d) integers with the row sums `sizes_K` and the column sums `n_d`.

    The exact values have these sums up to one image. They are rounded down. Then the largest remainders are rounded up
    if both their row and their column lack an image. Images that are still missing are added to such rows and columns.
    """
    counts_Kd = np.floor(exact_Kd).astype(np.int64)
    owed_K, owed_d = sizes_K - counts_Kd.sum(axis=1), n_d - counts_Kd.sum(axis=0)
    for entry in np.argsort(counts_Kd - exact_Kd, axis=None, kind="stable"):
        client, label = divmod(int(entry), len(n_d))
        if owed_K[client] > 0 and owed_d[label] > 0:
            counts_Kd[client, label] += 1
            owed_K[client] -= 1
            owed_d[label] -= 1
    np.add.at(counts_Kd, (np.repeat(np.arange(len(sizes_K)), owed_K), np.repeat(np.arange(len(n_d)), owed_d)), 1)
    return counts_Kd


def round_table(exact_Kd: Table) -> IntArray:
    """Round each entry of a (K, d) table down or up, such that row sums are also rounded down or up.

    Column sums must be integers, and do not change. Such a rounding always exists, because a flow with integer
    capacities has an integer solution. `_repair` therefore always finds its path.
    """
    # Python integers over a common denominator need a tenth of the time of sums of fractions.
    whole = math.lcm(*{x.denominator for x in exact_Kd.flat})
    parts_Kd = np.array([x.numerator * (whole // x.denominator) for x in exact_Kd.flat], dtype=object)
    parts_Kd = parts_Kd.reshape(exact_Kd.shape)
    floor_Kd = (parts_Kd // whole).astype(np.int64)
    rest_Kd = (parts_Kd % whole / whole).astype(np.float64)
    extra_d = (parts_Kd.sum(axis=0) // whole).astype(np.int64) - floor_Kd.sum(axis=0)
    sizes_K = parts_Kd.sum(axis=1)
    low_K = (sizes_K // whole).astype(np.int64) - floor_Kd.sum(axis=1)
    high_K = -(-sizes_K // whole).astype(np.int64) - floor_Kd.sum(axis=1)

    given_Kd = np.zeros(floor_Kd.shape, dtype=bool)
    owed_K = rest_Kd.sum(axis=1)
    for label, extra in enumerate(extra_d):
        # Ties between remainders go to the client that is owed most; by index, client 0 would win all of them.
        rank_K = np.lexsort((np.round(-(owed_K - given_Kd.sum(axis=1)), 6), -rest_Kd[:, label]))
        given_Kd[rank_K[:extra], label] = True
    _repair(given_Kd, rest_Kd > 0, low_K, high_K)
    return floor_Kd + given_Kd


def _repair(given_Kd: BoolArray, open_Kd: BoolArray, low_K: IntArray, high_K: IntArray) -> None:
    """Move single images along paths of clients, in place, until low <= row sum <= high for all rows."""
    free_dK = np.ascontiguousarray((open_Kd & ~given_Kd).T)
    sums_K = given_Kd.sum(axis=1)
    while (above_K := sums_K > high_K).any() or (sums_K < low_K).any():
        if above_K.any():
            path = _path(given_Kd, free_dK, givers_K=above_K, takers_K=sums_K < high_K)
        else:
            path = _path(given_Kd, free_dK, givers_K=sums_K > low_K, takers_K=sums_K < low_K)
        for taker, giver in pairwise(path):
            label = int(np.flatnonzero(given_Kd[giver] & free_dK[:, taker])[0])
            given_Kd[giver, label], free_dK[label, giver] = False, open_Kd[giver, label]
            given_Kd[taker, label], free_dK[label, taker] = True, False
        sums_K[path[0]] += 1
        sums_K[path[-1]] -= 1


def _path(given_Kd: BoolArray, free_dK: BoolArray, *, givers_K: BoolArray, takers_K: BoolArray) -> list[int]:
    """Find a path from a taker back to a giver by breadth-first search over clients that can pass on an image.

    Each class is examined only once: every client that could get one of its images from a later client has already been
    reached.
    """
    came_from_K = np.where(givers_K, -1, -2)  # -1: a giver, where paths begin; -2: not reached
    new_d = np.ones(len(free_dK), dtype=bool)  # classes that are not examined yet
    queue = np.flatnonzero(givers_K).tolist()
    for client in queue:  # grows during the loop
        label_d = given_Kd[client] & new_d
        if not label_d.any():
            continue
        reached_K = free_dK[label_d].any(axis=0) & (came_from_K == -2)
        came_from_K[reached_K] = client
        if (ends_K := reached_K & takers_K).any():
            path = [int(ends_K.argmax())]
            while (giver := int(came_from_K[path[-1]])) >= 0:
                path.append(giver)
            return path
        new_d &= ~label_d
        queue += np.flatnonzero(reached_K).tolist()
    raise AssertionError("no whole rounding of a table with whole columns")
