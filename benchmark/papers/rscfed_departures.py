"""What RSCFed's departures do to its numbers: each switch of `reports/rscfed/departures.md` as a pair of cells.

The released code and the print differ in more than one thing at a time; here one is changed and all else kept. The
pairs rest on cells of Tables 3 and 7 and of Figure 2, all on SVHN or its stand-in, which are trained anyway.
"""

from dataclasses import replace
from functools import partial

from benchmark.data.augment import Weak
from benchmark.experiment import Experiment
from benchmark.papers.item import Item
from benchmark.papers.rscfed import PAPER, STAND_INS
from benchmark.papers.scale import with_field
from benchmark.papers.switches import Switch, departures_of
from benchmark.papers.table import item

RSCFED, FED_CONSIST = "RSCFed/M=3/K_subset=5 of Table 7", "Fed-Consist (origi.) of Figure 2"
FED_IRM = "FedIRM (weight adju.) of Figure 2"


def cropped(e: Experiment, enlarge: float) -> Experiment:
    """Crops of the image enlarged so, or padded where it is not."""
    weak = replace(Weak(), flip=e.data.augmentation.weak.flip, enlarge=enlarge)
    return with_field(e, "data.augmentation.weak", weak)


SWITCHES = (
    Switch(
        name="weight-per-round",
        entry=1,
        what="labelled clients weigh",
        words=("36 times their size, as released", "half of a round, section 4.2"),
        base=RSCFED,
        other={"method.labelled_weight": "per_round"},
    ),
    Switch(
        name="weight-per-subset",
        entry=1,
        what="labelled clients weigh",
        words=("36 times their size, as released", "half of each subset that holds one"),
        base=RSCFED,
        other={"method.labelled_weight": "per_subset"},
    ),
    Switch(
        name="beta-rule",
        entry=2,
        what="beta of subsets with a labelled client",
        words=("a hundredth, as released", "the same, Eq. 6"),
        base=RSCFED,
        other={"method.beta_labelled": 100.0, "method.beta_rule": "paper"},
    ),
    Switch(
        name="distance",
        entry=3,
        what="the distance of two models",
        words=("the sum of the tensors' norms, as released", "one norm, Eq. 6"),
        base=RSCFED,
        other={"method.distance": "paper"},
    ),
    Switch(
        name="drawn-twice",
        entry=4,
        what="a client in two subsets",
        words=("trains twice", "trains once and counts in both"),
        base=RSCFED,
        other={"method.drawn_twice": "reused"},
    ),
    Switch(
        name="teacher-speed",
        entry=5,
        what="the teacher",
        words=("begins as a mean of students, as released", "moves by alpha throughout, Eq. 4"),
        base=RSCFED,
        other={"method.ema_warm_up": "paper"},
    ),
    Switch(
        name="teacher-start",
        entry=5,
        what="a client's first teacher",
        words=("the current global model, as released", "the first one, section 3.2"),
        base=RSCFED,
        other={"method.teacher_start": "paper"},
    ),
    Switch(
        name="lambda-u",
        entry=6,
        what="the weight of the loss without labels",
        words=(".02, README", "1, Eq. 3"),
        base=RSCFED,
        other={"method.unlabelled_weight": 1.0},
    ),
    Switch(
        name="warm-start",
        entry=8,
        what="rounds on labels at the start",
        words=("the profile's", "none, as in the paper"),
        base=RSCFED,
        other={"method.warm_start_rounds": 0},
    ),
    Switch(
        name="labelled-choice",
        entry=10,
        what="the labelled client",
        words=("has all classes and a mean size", "is the first"),
        base=RSCFED,
        other={"data.labelled_choice": "first"},
    ),
    Switch(
        name="equally",
        entry=12,
        what="Fed-Consist's original average",
        words=("by size, section 4.2", "equal, section 1"),
        base=FED_CONSIST,
        other={"method.weighting": "equal"},
    ),
    Switch(
        name="momentum",
        entry=13,
        what="a client's momentum",
        words=("kept, as released", "reset every round"),
        base=RSCFED,
        other={"method.momentum": "reset"},
    ),
    Switch(
        name="clipping",
        entry=14,
        what="gradients",
        words=("clipped at 5, as released", "not clipped"),
        base=RSCFED,
        other={"optimizer.clip": None},
    ),
    Switch(
        name="view",
        entry=15,
        what="the crop of a view",
        words=("of the enlarged image, section 4.1", "of the padded image"),
        base=RSCFED,
        default=partial(cropped, enlarge=40 / 32),
        other=partial(cropped, enlarge=1.0),
    ),
    Switch(
        name="irm-uncertainty",
        entry=16,
        what="FedIRM's images whose relations count",
        words=("entropy below 2, as released", "all but by confidence"),
        base=FED_IRM,
        other={"method.uncertainty": 100.0},
    ),
    Switch(
        name="irm-confidence",
        entry=16,
        what="FedIRM's images whose relations count",
        words=("probability of .3 or more, as released", "all but by entropy"),
        base=FED_IRM,
        other={"method.least_confidence": 0.0},
    ),
    Switch(
        name="irm-ramp",
        entry=17,
        what="FedIRM's lambda",
        words=("over 30 rounds", "at once"),
        base=FED_IRM,
        other={"method.ramp_rounds": 0},
    ),
    Switch(
        name="irm-lambda",
        entry=17,
        what="FedIRM's lambda",
        words=("15, as released", ".02, as RSCFed's lambda_u"),
        base=FED_IRM,
        other={"method.unlabelled_weight": 0.02},
    ),
)


def departures(profile: str) -> Item:
    """Every switch as a row. Raises ConfigError."""
    cells = {
        f"{cell.label} of {where}": cell.experiment
        for name, where in (("tab7", "Table 7"), ("fig2", "Figure 2"))
        for cell in item(PAPER, name, profile).cells
    }
    stand_in = STAND_INS[profile]["svhn"][0].title if profile in STAND_INS else ""
    return departures_of("rscfed", SWITCHES, cells, profile, stand_in)
