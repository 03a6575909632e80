"""Mark classes of a data set as unknown, for the open-set label setting ("open").

The server only has labels of the known classes (in-distribution), while clients and the test set also have images of
the unknown classes (out-of-distribution). A network has one output per known class, as in the sources: OpenMatch (Saito
et al. NeurIPS 2021, arXiv:2105.14148), FedOpenMatch (ICLR 2026, OpenReview 5UrPAW3uI1) and OpenFL (submitted to ICLR
2026, OpenReview QBTNpmtYmQ) classify the known classes and detect all other images. An output for a class without any
label would never be trained. Open-world methods, which discover new classes (FedoSSL, arXiv:2305.00771), have such
outputs, but solve a different task.

Legend: N images, D known classes.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from benchmark.data.datasets import DataSet
from benchmark.errors import ConfigError, DataError


def with_unknown(data: DataSet, unknown: Sequence[int]) -> DataSet:
    """Return the set with its classes in the order known, unknown, both in the set's own order.

    Labels 0 to D-1 are the known classes, and higher labels the unknown ones. The images are not changed or moved.
    Raise ConfigError if a number is not a class, or if fewer than two classes are known, and DataError if the test set
    has no image of the known or of the unknown classes.
    """
    d = data.num_classes
    if not unknown or min(unknown) < 0 or max(unknown) >= d or d - len(unknown) < 2:
        raise ConfigError(
            f"data.unknown_classes is {list(unknown)}, but {data.name} has the classes 0 to {d - 1}; at least "
            f"one must be unknown and two known; type --data.unknown_classes=[{d - 1}]"
        )
    known = [label for label in range(d) if label not in unknown]
    new_d = torch.empty(d, dtype=torch.int64)
    new_d[torch.tensor([*known, *unknown])] = torch.arange(d)
    known_names = tuple(data.classes[label] for label in known)
    unknown_names = tuple(data.classes[label] for label in unknown)
    marked = replace(
        data,
        train_labels_N=new_d[data.train_labels_N],
        test_labels_N=new_d[data.test_labels_N],
        classes=known_names,
        unknown=unknown_names,
    )
    is_known_N = marked.test_labels_N < marked.num_classes
    if is_known_N.all() or not is_known_N.any():
        missing = "unknown" if is_known_N.all() else "known"
        raise DataError(
            f"{data.name} has no test image of the {missing} classes; change data.unknown_classes, which are "
            f"{list(unknown)}"
        )
    return marked
