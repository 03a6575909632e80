"""The glossary: the environmental factors and the words of the suite, a symbol and a sentence each."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Factor:
    """An environmental factor, by the letter that the papers give it."""

    symbol: str
    name: str
    text: str
    option: str  # of `fssl run`


FACTORS = (
    Factor(
        symbol="R",
        name="Heterogeneity",
        text="The mean total variation between the class distributions of pairs of clients (SSFL, Eq. 2): 0 where all "
        "clients hold the same mixture of classes, 1 where no two share a class.",
        option="--partition.R",
    ),
    Factor(
        symbol="alpha",
        name="Dirichlet concentration",
        text="How evenly classes are spread over clients when shares are drawn from a Dirichlet distribution: small "
        "values give one-sided clients, large ones nearly equal mixtures.",
        option="--partition.alpha",
    ),
    Factor(
        symbol="T",
        name="Communication period",
        text="Local steps that a client takes between two communications: a round has T of them.",
        option="--federation.T",
    ),
    Factor(
        symbol="N_s",
        name="Labels at the server",
        text="Labelled images that the server holds; the images of the clients carry no label.",
        option="--data.N_s",
    ),
    Factor(
        symbol="K",
        name="Clients",
        text="All clients among which the unlabelled images are shared out.",
        option="--federation.K",
    ),
    Factor(
        symbol="C",
        name="Cohort size",
        text="Clients that take part in one round; C = K where all of them always do.",
        option="--federation.C",
    ),
    Factor(
        symbol="S",
        name="Groups",
        text="Parts into which grouping-based averaging splits the cohort; each is averaged with the server's model "
        "alone, and its members go on from their own average.",
        option="--method.averaging.S",
    ),
)
WORDS: Mapping[str, str] = {
    "client": "holds images and trains on them; sees no other client's.",
    "server": "coordinates the rounds and, in most settings, holds the only labels.",
    "round": "one communication: weights go down, local steps are taken, weights come back.",
    "local step": "one update of a model by stochastic gradient descent.",
    "cohort": "the clients of one round.",
    "group": "a part of the cohort, in grouping-based averaging.",
    "cell": "one entry of a table: a full setting without the seed.",
    "run": "a cell with a seed.",
    "record": "what a run leaves on disk; every number here comes from one.",
    "claim": "a sentence of a paper that the numbers must bear out; its test is fixed before any run.",
    "profile": "how far a run is scaled down: demo, laptop, gpu or paper. Only paper is compared with print.",
    "departure": "where we knowingly differ from a paper or from its released code.",
}
READINGS: Mapping[str, str] = {
    "holds": "the interval of the claim's contrast lies beyond zero in the stated direction (or, for a claim that two "
    "things are alike, within the margin), at a level that allows for all claims of the item.",
    "contradicted": "the same interval lies on the other side.",
    "undecided": "the runs do not tell; the page says how many seeds would, were the spread to stay.",
    "matches": "the difference to the published number lies within the margin that its file fixed in advance (two "
    "one-sided t tests).",
    "differs": "the difference to the published number is not zero, and not shown to lie within the margin.",
}


def glossary_values() -> dict[str, Any]:
    return {"factors": FACTORS, "words": WORDS, "readings": READINGS}
