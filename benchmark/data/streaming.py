"""Unlabelled images that arrive in steps.

FedMatch and FedSwitch, "streaming non-i.i.d.": 10 clients, 10 steps. Departures, as neither paper released code for it
or says: a client's images are cut into steps at random and equally, so that skew is between clients; one round is one
step; a client sees only the images of the present step; after the last step the first one comes again.

Shapes: N images of a client.
"""

import numpy as np

from benchmark.data.tables import IntArray
from benchmark.errors import ConfigError
from benchmark.streams import numpy_stream, shuffled


def arrivals(positions_N: IntArray, steps: int, seed: int, client: int) -> tuple[IntArray, ...]:
    """The client's images by step, in equal numbers up to one. Shuffled, then ascending inside each step. Depends on
    which images there are, not on their order. Raises ConfigError where there are fewer images than steps."""
    if len(positions_N) < steps:
        raise ConfigError(
            f"data.streaming_steps: {steps}, but client {client} has {len(positions_N)} unlabelled images; "
            f"choose {len(positions_N)} or less"
        )
    order_N = shuffled(np.sort(positions_N), numpy_stream(seed, "streaming", "client", client))
    return tuple(np.sort(order_N[step::steps]) for step in range(steps))
