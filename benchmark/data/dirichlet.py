"""Three ways in which the papers share images out by a Dirichlet distribution, as functions of one signature.

* "rscfed" (RSCFed, and the usual one): class by class, proportions over the clients from Dirichlet(alpha, ..., alpha).
* "semifl" (SemiFL, data.py, `non_iid`, tag "d"): the same, but a client that holds N/K images or more gets proportion
  0 of further classes.
* "fedswitch" (Hsu et al. 2019, arXiv 1909.06335, section 3.1): client by client, N/K images each, in proportions of the
  classes from Dirichlet(alpha p), p the proportions of the whole; used-up classes drop out of the later clients' draws.

Departures:
* rscfed, semifl: the released codes cut at floor(cumulated proportion x n); here the largest remainders are rounded up,
  and so they are in fedswitch, for which there is no released code.
* semifl: the released code zeroes the full clients' proportions and renormalises. The rest of a Dirichlet draw,
  renormalised, is a Dirichlet draw over the rest, so that one is drawn: the same distribution, and never 0/0.
* semifl: the released code shares out all training images and then takes the server's back from whoever has them, so
  that its N counts them; here the server's come first and N counts the clients' images.

Shapes: K clients, d classes, M whatever is shared among; `n_d` counts the images left in each class.
"""

from collections.abc import Callable, Mapping

import numpy as np

from benchmark.data.tables import BoolArray, FloatArray, IntArray, largest_remainders
from benchmark.streams import numpy_stream

# (n_d, K, alpha, seed, redraw) -> counts_Kd
Rule = Callable[[IntArray, int, float, int, int], IntArray]


def class_over_clients(n_d: IntArray, K: int, alpha: float, seed: int, redraw: int) -> IntArray:
    """(K, d) each class in its own proportions over all clients."""
    everyone_K = np.ones(K, dtype=bool)
    shared = [_share_class(int(n), everyone_K, alpha, seed, redraw, label) for label, n in enumerate(n_d)]
    return np.stack(shared, axis=1)


def class_over_open_clients(n_d: IntArray, K: int, alpha: float, seed: int, redraw: int) -> IntArray:
    """(K, d) each class in its own proportions over the clients that hold less than N/K images so far."""
    counts_Kd = np.zeros((K, len(n_d)), dtype=np.int64)
    for label, n in enumerate(n_d.tolist()):
        if n:  # only then is a client short of N/K: they cannot all hold it while images are left
            open_K = counts_Kd.sum(axis=1) * K < n_d.sum()
            counts_Kd[:, label] = _share_class(n, open_K, alpha, seed, redraw, label)
    return counts_Kd


def equal_clients(n_d: IntArray, K: int, alpha: float, seed: int, redraw: int) -> IntArray:
    """(K, d) clients of equal size (up to one image), each in its own proportions of the classes still in stock."""
    counts_Kd = np.zeros((K, len(n_d)), dtype=np.int64)
    size, larger = divmod(int(n_d.sum()), K)
    concentration_d = alpha * n_d / n_d.sum()
    stock_d = n_d.astype(np.int64)
    for client in range(K):
        stream = numpy_stream(seed, "partition", "dirichlet", "redraw", redraw, "client", client)
        log_weights_d = _log_gamma_draws(concentration_d, stream)
        counts_Kd[client] = take_in_proportion(size + (client < larger), log_weights_d, stock_d)
        stock_d -= counts_Kd[client]
    return counts_Kd


RULES: Mapping[str, Rule] = {
    "rscfed": class_over_clients,
    "semifl": class_over_open_clients,
    "fedswitch": equal_clients,
}


def _share_class(n: int, open_K: BoolArray, alpha: float, seed: int, redraw: int, label: int) -> IntArray:
    stream = numpy_stream(seed, "partition", "dirichlet", "redraw", redraw, "class", label)
    counts_K = np.zeros(len(open_K), dtype=np.int64)
    exact_M = stream.dirichlet(np.full(int(open_K.sum()), alpha)) * n
    counts_K[open_K] = largest_remainders(exact_M, n)
    return counts_K


def _log_gamma_draws(concentration_d: FloatArray, stream: np.random.Generator) -> FloatArray:
    """(d,) logarithms of Gamma(concentration) draws, -inf where it is 0; normalised, they are a Dirichlet draw.

    Logarithms, since at alpha = 0.01 most plain draws are 0 in floating point and what is left after a class is used
    up would be 0/0. Gamma(a) is Gamma(a + 1) U^(1/a) (Marsaglia and Tsang 2000, section 6).
    """
    larger_d = stream.standard_gamma(concentration_d + 1)
    uniform_d = 1 - stream.random(len(concentration_d))  # in (0, 1]: its logarithm is finite
    with np.errstate(divide="ignore", invalid="ignore"):
        log_d = np.log(larger_d) + np.log(uniform_d) / concentration_d
    return np.where(concentration_d > 0, log_d, -np.inf)


def take_in_proportion(size: int, log_weights_d: FloatArray, stock_d: IntArray) -> IntArray:
    """(d,) `size` images in these proportions; a class that would run out is taken whole and the rest renormalised."""
    taken_d = np.zeros_like(stock_d)
    open_d = stock_d > 0
    while (wanted := size - int(taken_d.sum())) > 0:
        weights_d = np.exp(log_weights_d - log_weights_d[open_d].max(), where=open_d, out=np.zeros(len(stock_d)))
        exact_d = wanted * weights_d / weights_d.sum()
        short_d = open_d & (exact_d >= stock_d)
        if not short_d.any():
            return taken_d + largest_remainders(exact_d, wanted)
        taken_d[short_d] = stock_d[short_d]
        open_d &= ~short_d
    return taken_d
