"""The arena's methods: as in their own papers where the environment leaves that open, with the source."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from benchmark.data.datasets import known
from benchmark.errors import ConfigError
from benchmark.experiment import Experiment
from benchmark.methods.catalogue import method_class
from benchmark.methods.central import FixMatch
from benchmark.methods.fed_consist import FedConsist
from benchmark.methods.fedprox_fixmatch import FedProxFixMatch
from benchmark.methods.fedswitch import FedSwitch
from benchmark.methods.rscfed import RSCFed
from benchmark.methods.semifl import SemiFL
from benchmark.methods.server_only import ServerOnly
from benchmark.methods.ssfl import CRL, SSFL, Grouping
from benchmark.methods.supervised_fl import SupervisedFL
from benchmark.methods.ts_client_ema import TSClientEMA
from benchmark.methods.ts_server_ema import TSServerEMA
from benchmark.optim.sgd import SGD, Constant, Cosine, RoundCosine
from benchmark.papers.fedswitch import prior_of

# FixMatch's optimizer; SSFL's as Table A.1 has it for EMNIST.
SSFL_SGD = SGD(lr=0.03, momentum=0.9, nesterov=True, weight_decay=1e-4, schedule=Cosine(c=0.4375))
# SemiFL Table 5; one rate a round and clipping at 1 as released (utils.py:115-185, modules.py:165).
SEMIFL_SGD = SGD(lr=0.03, momentum=0.9, nesterov=True, weight_decay=5e-4, schedule=RoundCosine(), clip=1.0)
# RSCFed section 4.1: .03 on labels, .021 without; constant, no Nesterov, clipping at 5 as released
# (local_supervised.py:46-72, local_unsupervised.py:78-149).
RSCFED_SGD = SGD(
    lr=0.021, server_lr=0.03, momentum=0.9, nesterov=False, weight_decay=5e-4, schedule=Constant(), clip=5.0
)
# FedSwitch reports no optimizer: FixMatch's.
FEDSWITCH_SGD = SSFL_SGD

# FedSwitch reports no EMA ratio. A teacher of .999 would still be the initial weights after so few rounds.
SHORT_RUN_RATIO = 0.9

# By the paper the teacher starts at the untrained model and moves by .001 a step, which in so few steps is nothing. In
# the released code it follows from the start (local_unsupervised.py:24-27).
RSCFED_RELEASED: Mapping[str, Any] = {"ema_warm_up": "released_code", "teacher_start": "released_code"}


def by_images(beta: float, environment: Experiment) -> float:
    """RSCFed's beta in the environment, so that beta / N_i is the paper's.

    Its unit is images / distance: it is scaled by a client's images over those of a client in the paper's SVHN.
    """
    data = environment.data
    return beta * ((known(data.name).train - data.N_s - data.N_validation) / environment.federation.K) / 7326


def by_prior(beta: float, environment: Experiment) -> float:
    """FedSwitch's beta, "the amount of expected imbalance", as a multiple of the clients' true imbalance."""
    return beta * prior_of(environment)


AS_CLIENT = "the server's labelled images are one more client's: the method trains nothing at the server"
NOT_SBN = "its paper has static batch norms and five epochs a round, this table the others' network and steps"
NOT_PRINTED = "its paper prints no hyperparameters: FixMatch's optimizer and threshold"


Setting = Literal["server", "one_more_client", "everywhere"]
SETTINGS: tuple[Setting, ...] = ("server", "one_more_client", "everywhere")  # the first that suits a method is its own


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A method as its paper has it, and what its second hyperparameter is in the equal budget."""

    name: str
    method: Any
    sgd: SGD
    second: str | None = "threshold"  # the field tried with the learning rate; None: six learning rates
    values: tuple[float, float] = (0.8, 0.95)
    # Where beta's unit depends on the clients' images: beta in a given environment.
    beta_here: Callable[[float, Experiment], float] | None = None
    setting: Setting = "server"
    bound: bool = False
    note: str = ""


ENTRIES = (
    Entry(name="SSFL, FedAvg", method=SSFL(objective=CRL(threshold=0.95)), sgd=SSFL_SGD, second="objective.threshold"),
    Entry(
        name="SSFL, grouping",
        method=SSFL(objective=CRL(threshold=0.95), averaging=Grouping(S=2)),
        sgd=SSFL_SGD,
        second="objective.threshold",
    ),
    Entry(name="SemiFL", method=SemiFL(), sgd=SEMIFL_SGD, note=NOT_SBN),
    Entry(
        name="RSCFed",
        # README's lambda_u; section 4.2's half of a round for the labelled client, which with so few images has no
        # weight under Eq. 6.
        method=RSCFed(unlabelled_weight=0.02, labelled_weight="per_round", **RSCFED_RELEASED),
        sgd=RSCFED_SGD,
        second="unlabelled_weight",
        values=(0.02, 1.0),
        beta_here=by_images,
        setting="one_more_client",
        note=f"{AS_CLIENT}, with half of the weight of a round",
    ),
    Entry(
        name="Fed-Consist",
        method=FedConsist(unlabelled_weight=1.0, **RSCFED_RELEASED),  # Eq. 3 has no factor; README's .02 is tried
        sgd=RSCFED_SGD,
        second="unlabelled_weight",
        values=(1.0, 0.02),
        setting="one_more_client",
        note=AS_CLIENT,
    ),
    Entry(name="FedProx-FixMatch", method=FedProxFixMatch(), sgd=FEDSWITCH_SGD, note=NOT_PRINTED),
    Entry(name="TS-Server EMA", method=TSServerEMA(ratio=SHORT_RUN_RATIO), sgd=FEDSWITCH_SGD, note=NOT_PRINTED),
    Entry(name="TS-Client EMA", method=TSClientEMA(ratio=SHORT_RUN_RATIO), sgd=FEDSWITCH_SGD, note=NOT_PRINTED),
    Entry(
        name="FedSwitch",
        method=FedSwitch(ratio=SHORT_RUN_RATIO, beta=1.0),
        sgd=FEDSWITCH_SGD,
        second="beta",
        values=(0.0, 1.0),
        beta_here=by_prior,
        note=f"{NOT_PRINTED}; beta is the clients' true divergence from equal classes",
    ),
    Entry(
        name="Server only",
        method=ServerOnly(),
        sgd=SSFL_SGD,
        second=None,
        bound=True,
        note="labels alone: the bound every method has to beat",
    ),
    Entry(
        name="Central FixMatch",
        method=FixMatch(unlabelled_ratio=1),
        sgd=SSFL_SGD,
        bound=True,
        note="one holder of all images",
    ),
    Entry(
        name="Supervised FedAvg",
        method=SupervisedFL(),
        sgd=SSFL_SGD,
        second=None,
        setting="everywhere",
        bound=True,
        note="clients know the labels of all their images",
    ),
)


def entry_of(name: str) -> Entry:
    """A method of the catalogue, or of the user's own (`my_module:MyMethod`), at its defaults and SSFL's optimizer.

    Its second hyperparameter is `threshold` where it has one. The server holds the labels if the method can work so,
    else one more client. Raises ConfigError where it can work in neither setting.
    """
    method = method_class(name)()
    settings = [setting for setting in SETTINGS if setting in method.needs]
    if not settings:
        raise ConfigError(f"{name}: needs labels as in {sorted(method.needs)}; the arena has them at the server")
    has_threshold = "threshold" in {f.name for f in fields(method)}
    return Entry(
        name=name.rpartition(":")[2],
        method=method,
        sgd=SSFL_SGD,
        second="threshold" if has_threshold else None,
        setting=settings[0],
        note=AS_CLIENT if settings[0] == "one_more_client" else "",
    )
