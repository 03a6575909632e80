"""What SemiFL's departures do to its numbers: each switch of `reports/semifl/departures.md` as a pair of cells.

The pairs rest on Table 4's cell of clients with two classes, which is trained anyway: there most of them matter.
"""

from benchmark.papers.item import Item
from benchmark.papers.scale import REDUCED
from benchmark.papers.semifl import PAPER, SCALES, STRONG
from benchmark.papers.switches import Switch, departures_of
from benchmark.papers.table import item

SKEWED = "SemiFL/K=2 of Table 4"

SWITCHES = (
    Switch(
        name="mix-source",
        entry=1,
        what="what is mixed in",
        words=("unsure images, Eq. 4", "any image, as released"),
        base=SKEWED,
        other={"method.mix_source": "released_code"},
    ),
    Switch(
        name="nothing-below",
        entry=2,
        what="where no image is unsure",
        words=("no mixing", "any image is mixed in"),
        base=SKEWED,
        other={"method.nothing_below": "draw_from_all"},
    ),
    Switch(
        name="order",
        entry=4,
        what="who trains first in a round",
        words=("the server, Algorithm 1", "the clients, as released"),
        base=SKEWED,
        other={"method.order": "released_code"},
    ),
    Switch(
        name="momentum",
        entry=5,
        what="clients' momentum",
        words=("reset every round", "kept, as released"),
        base=SKEWED,
        other={"method.momentum": "released_code"},
    ),
    Switch(
        name="clip",
        entry=6,
        what="gradients",
        words=("clipped at 1, as released", "not clipped, as printed"),
        base=SKEWED,
        other={"optimizer.clip": None},
    ),
    Switch(
        name="moments",
        entry=8,
        what="variance of static batch norms",
        words=("of all images, section 3.4", "mean over batches, as released"),
        base=SKEWED,
        other={"method.moments": "released_code"},
    ),
    Switch(
        name="statistics",
        entry=8,
        what="statistics of static batch norms",
        words=("from everyone", "from the server alone"),
        base=SKEWED,
        other={"method.statistics": "server"},
    ),
    Switch(
        name="augmentation",
        entry=10,
        what="strong views",
        words=("the profile's", "SemiFL's released pool"),
        base=SKEWED,
        other={"data.augmentation.strong": STRONG},
    ),
    Switch(
        name="warm-start",
        entry=14,
        what="rounds of the server alone at the start",
        words=("the profile's", "none, as in the paper"),
        base=SKEWED,
        other={"method.warm_start_rounds": 0},
    ),
)


def departures(profile: str) -> Item:
    """Every switch as a row: our default, the other way, and their difference. Raises ConfigError."""
    bases = {SKEWED: item(PAPER, "tab4", profile).cell("SemiFL/K=2").experiment}
    stand_in = SCALES[profile].title if profile in REDUCED else ""
    return departures_of("semifl", SWITCHES, bases, profile, stand_in)
