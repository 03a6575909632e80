"""FSSL benchmark: federated semi-supervised learning, from an `Experiment` to a record."""

__version__ = "0.1.0"
