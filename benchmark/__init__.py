"""FSSL benchmark: federated semi-supervised learning, from an `Experiment` to a record."""

import gc

__version__ = "0.1.0"

# Loading torch and Lightning makes objects by the hundred thousand and no garbage; a collection every 700 of them is an
# eighth of the CPU seconds in which a training process starts.
gc.set_threshold(10_000, *gc.get_threshold()[1:])
