"""Tables of counts that the partition rules share: proportions as exact fractions, and their rounding to whole images.

Shapes: K clients, d classes; `n_d` counts the images left in each class once the server has its own.
"""

import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
Table = list[list[Fraction]]  # K rows of d exact numbers of images: rounding must not depend on a machine's float sums


class Shares(NamedTuple):
    """What a rule decides: images of each class for each client, and how many draws were thrown away for it."""

    counts_Kd: IntArray
    redraws: int


def stratified(sizes_K: list[Fraction], n_d: IntArray) -> Table:
    """(K, d) clients of the given sizes, each in the proportions of the whole: the R = 0 end of Eq. 9."""
    share_d = [Fraction(int(n), int(n_d.sum())) for n in n_d]
    return [[size * share for share in share_d] for size in sizes_K]


def largest_remainders(exact_M: FloatArray, total: int) -> IntArray:
    """(M,) whole numbers that sum to `total`: rounded down, then the largest remainders up (ties: lower index)."""
    counts_M = np.floor(exact_M).astype(np.int64)
    largest_first_M = np.argsort(counts_M - exact_M, kind="stable")
    counts_M[largest_first_M[: total - int(counts_M.sum())]] += 1
    return counts_M


def round_table(exact_Kd: Table) -> IntArray:
    """(K, d) integers: each entry its target rounded down or up, column sums kept, row sums rounded down or up.

    Column sums must be whole numbers. Such a rounding always exists (a flow with whole capacities has a whole
    solution), so the repair below always finds its path.
    """
    floor_Kd = np.array([[math.floor(x) for x in row] for row in exact_Kd], dtype=np.int64)
    rest_Kd = np.array([[float(x - math.floor(x)) for x in row] for row in exact_Kd])
    extra_d = [int(sum(column)) for column in zip(*exact_Kd, strict=True)] - floor_Kd.sum(axis=0)
    sizes_K = [sum(row, Fraction(0)) for row in exact_Kd]
    low_K = np.array([math.floor(size) for size in sizes_K]) - floor_Kd.sum(axis=1)
    high_K = np.array([math.ceil(size) for size in sizes_K]) - floor_Kd.sum(axis=1)

    given_Kd = np.zeros(floor_Kd.shape, dtype=bool)
    owed_K = rest_Kd.sum(axis=1)
    for label, extra in enumerate(extra_d):
        # Largest remainder first; among equals the client that is owed most, else client 0 would win every tie.
        rank_K = np.lexsort((np.round(-(owed_K - given_Kd.sum(axis=1)), 6), -rest_Kd[:, label]))
        given_Kd[rank_K[:extra], label] = True
    _repair(given_Kd, rest_Kd > 0, low_K, high_K)
    return floor_Kd + given_Kd


def _repair(given_Kd: BoolArray, open_Kd: BoolArray, low_K: IntArray, high_K: IntArray) -> None:
    """Move single images along paths of clients, in place, until low <= row sum <= high everywhere."""
    while True:
        sums_K = given_Kd.sum(axis=1)
        if (sums_K > high_K).any():
            _shift(given_Kd, open_Kd, givers_K=sums_K > high_K, takers_K=sums_K < high_K)
        elif (sums_K < low_K).any():
            _shift(given_Kd, open_Kd, givers_K=sums_K > low_K, takers_K=sums_K < low_K)
        else:
            return


def _shift(given_Kd: BoolArray, open_Kd: BoolArray, *, givers_K: BoolArray, takers_K: BoolArray) -> None:
    """One image less for a giver and one more for a taker: breadth first over clients that can pass one on."""
    free_Kd = open_Kd & ~given_Kd
    came_from_K = np.where(givers_K, -1, -2)  # -1: a giver, where paths begin; -2: not reached
    queue = np.flatnonzero(givers_K).tolist()
    for client in queue:  # grows while it is walked
        if takers_K[client]:
            break
        new_K = free_Kd[:, given_Kd[client]].any(axis=1) & (came_from_K == -2)
        came_from_K[new_K] = client
        queue += np.flatnonzero(new_K).tolist()
    else:
        raise AssertionError("no whole rounding of a table whose columns are whole")
    while (giver := int(came_from_K[client])) >= 0:
        label = int(np.flatnonzero(given_Kd[giver] & free_Kd[client])[0])
        given_Kd[giver, label], given_Kd[client, label] = False, True
        client = giver
