"""What FedSwitch's open choices do to its numbers: each switch of `reports/fedswitch/departures.md` as a pair of cells.

There is no released code, so that none of them can be looked up. The pairs rest on cells of Figure 4 and Table 2, which
are trained anyway.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from benchmark.data.partition import Dirichlet
from benchmark.experiment import Experiment
from benchmark.papers.fedswitch import CLASSES, PAPER, SCALES, clients_of, with_prior
from benchmark.papers.item import Item
from benchmark.papers.scale import REDUCED
from benchmark.papers.switches import Switch, departures_of
from benchmark.papers.table import item

SKEWED, MILD = "FedSwitch/alpha=0.05 of Figure 4", "FedSwitch/alpha=10 of Figure 4"
CLIENT_TEACHER = "TS-Client EMA/alpha=0.05 of Figure 4"
AT_SERVER = "Labels at Server/Batch-NonIID/FedSwitch of Table 2"
AT_CLIENTS = "Labels at Client/Batch-NonIID/FedSwitch of Table 2"


def dirichlet(e: Experiment, change: Callable[[Dirichlet], Dirichlet]) -> Experiment:
    """Other clients, with their own beta."""
    assert isinstance(e.partition, Dirichlet)
    return with_prior(replace(e, partition=change(e.partition)))


def skewed_labels(e: Experiment) -> Experiment:
    """As many labels at a client, of its classes in proportion (section 5.4), instead of equally many of each."""
    labels = CLASSES * e.data.labels_per_client
    share = round(labels / (labels + float(clients_of(e).sum(axis=1).mean())), 4)
    return with_prior(
        replace(e, data=replace(e.data, label_setting="share", labelled_share=share, labels_per_client=5))
    )


def more_labels(e: Experiment) -> Experiment:
    """Five times the labels at the server: 5,000 at the paper's scale (section 5.1)."""
    return with_prior(replace(e, data=replace(e.data, N_s=5 * e.data.N_s)))


SWITCHES = (
    Switch(
        name="rule",
        entry=1,
        what="the teacher is sent",
        words=("where it is nearer to beta, Eq. 3", "where it is not, Algorithms 1 and 2"),
        base=SKEWED,
        other={"method.rule": "algorithm"},
    ),
    Switch(
        name="always-teacher",
        entry=1,
        what="who labels",
        words=("teacher or student, Eq. 3", "the teacher in every round"),
        base=SKEWED,
        other={"method.rule": "teacher"},
    ),
    Switch(
        name="always-student",
        entry=1,
        what="who labels",
        words=("teacher or student, Eq. 3", "the student in every round"),
        base=SKEWED,
        other={"method.rule": "student"},
    ),
    Switch(
        name="beta",
        entry=2,
        what="beta",
        words=("the clients' true divergence", "0"),
        base=SKEWED,
        other={"method.beta": 0.0},
    ),
    Switch(
        name="divergence",
        entry=3,
        what="a client's divergence",
        words=("mean over batches, Eq. 2", "sum, as in the algorithms"),
        base=SKEWED,
        other={"method.divergence": "sum"},
    ),
    Switch(
        name="prediction",
        entry=3,
        what="the distribution of predictions",
        words=("mean softmax output", "shares of the labels"),
        base=SKEWED,
        other={"method.prediction": "histogram"},
    ),
    Switch(
        name="counted",
        entry=3,
        what="images whose predictions count",
        words=("all", "those a model is sure of"),
        base=SKEWED,
        other={"method.counted": "kept"},
    ),
    Switch(
        name="unsent-teacher",
        entry=4,
        what="a teacher that is not sent",
        words=("starts from the student and is measured", "keeps its last divergence"),
        base=SKEWED,
        other={"method.unsent_teacher": "keep_last"},
    ),
    Switch(
        name="first-round",
        entry=4,
        what="who labels in the first round",
        words=("the teacher", "the student"),
        base=SKEWED,
        other={"method.first_round": "student"},
    ),
    Switch(
        name="local-teacher",
        entry=5,
        what="the teacher at a client",
        words=("follows the student, section 4", "stays, as in the algorithms"),
        base=SKEWED,
        other={"method.local_ratio": 1.0},
    ),
    Switch(
        name="proximal",
        entry=6,
        what="the proximal term",
        words=("mu/2, Algorithm 2", "mu, Algorithm 1"),
        base=SKEWED,
        other={"method.proximal": "full"},
    ),
    Switch(
        name="evaluated",
        entry=7,
        what="the tested model",
        words=("student", "teacher"),
        base=SKEWED,
        other={"method.evaluated": "teacher"},
    ),
    Switch(
        name="server-teacher",
        entry=8,
        what="TS-Client EMA's averaged teacher",
        words=("then follows the student", "stays"),
        base=CLIENT_TEACHER,
        other={"method.server_teacher": "mean"},
    ),
    Switch(
        name="alpha",
        entry=9,
        what="alpha of the Dirichlet draw",
        words=("the sum of the concentrations", "of each class, ten times it"),
        base=SKEWED,
        other=partial(dirichlet, change=lambda d: replace(d, alpha=CLASSES * d.alpha)),
    ),
    Switch(
        name="clients-in-turn",
        entry=9,
        what="clients draw",
        words=("one after another", "all at once"),
        base=MILD,
        other=partial(dirichlet, change=lambda d: replace(d, rule="fedswitch_at_once")),
    ),
    Switch(
        name="labelled-skew",
        entry=10,
        what="labels at a client",
        words=("equally many of each class, section 5.1", "in proportion to its classes, section 5.4"),
        base=AT_CLIENTS,
        other=skewed_labels,
    ),
    Switch(
        name="server-labels",
        entry=10,
        what="labels at the server",
        words=("100 a class, section 5.2", "five times as many, section 5.1"),
        base=AT_SERVER,
        other=more_labels,
    ),
)


def departures(profile: str) -> Item:
    """Every switch as a row. Raises ConfigError."""
    cells = {
        f"{cell.label} of {where}": cell.experiment
        for name, where in (("fig4", "Figure 4"), ("tab2", "Table 2"))
        for cell in item(PAPER, name, profile).cells
    }
    stand_in = SCALES[profile].title if profile in REDUCED else ""
    return departures_of("fedswitch", SWITCHES, cells, profile, stand_in)
