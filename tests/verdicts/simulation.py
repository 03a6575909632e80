"""Error rate, power and expected seeds of the rule, and of the one that was: `python -m tests.verdicts.simulation`.

Families of four claims; effects in standard deviations of the difference. Writes results/verdicts.json.
"""

import argparse
import json
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from benchmark.records.files import write_json
from benchmark.verdicts.judge import Decision, decide
from benchmark.verdicts.looks import LOOKS
from tests.conftest import ROOT
from tests.verdicts.test_error_rate import (
    CLAIMS,
    FAMILY,
    NAMES,
    ORDERED,
    Draw,
    any_verdict,
    bimodal,
    evidence_of,
    heavy_tailed,
    normal,
    one_armed,
    simulated,
    until_decided,
)

PATH = ROOT / "results" / "verdicts.json"
DRAWS: dict[str, Draw] = {
    "normal": normal,
    "t with 3 degrees of freedom": heavy_tailed,
    "both arms collapse in a tenth": bimodal,
    **{f"one arm collapses in {share:.0%}": one_armed(share) for share in (0.05, 0.1, 0.2, 0.25, 0.3, 0.5)},
}
EFFECTS = (0.25, 0.5, 0.75, 1.0, 1.5)


def errors(families: int) -> dict[str, dict[str, float]]:
    """The share of families of no difference with any verdict on one, by draw: by Holm's rule, with two main claims,
    and by the rule that was (which knows no collapse)."""
    return {
        name: {
            "holm": simulated(draw, lambda values: any_verdict(values, collapses=True), families),
            "two main": simulated(draw, lambda values: any_verdict(values, collapses=True, family=ORDERED), families),
            "until decided": simulated(draw, until_decided, families // 10),
        }
        for name, draw in DRAWS.items()
    }


def power(effect: float, families: int) -> dict[str, object]:
    """Of a family whose claims all hold: the share of the first claim's verdicts by each look, and the seeds it takes
    (undecided: the last look's)."""
    rng = np.random.default_rng(2)

    def first(values: NDArray[np.float64]) -> Decision:
        found = decide([evidence_of(one, name) for one, name in zip(values, NAMES, strict=True)], FAMILY)
        return found[0][0]

    decisions = [first(rng.normal(0.01 * effect, 0.01, (CLAIMS, LOOKS[-1]))) for _ in range(families)]
    at = [LOOKS[d.looks - 1] if d.verdict == "holds" else None for d in decisions]
    return {
        "effect": effect,
        "holds by": {str(n): sum(1 for one in at if one is not None and one <= n) / families for n in LOOKS},
        "expected seeds": round(fmean(LOOKS[-1] if one is None else one for one in at), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--families", type=int, default=2000)
    families = parser.parse_args().families
    found = {"families": families, "claims": CLAIMS, "errors": errors(families)}
    found["power"] = [power(effect, families // 2) for effect in EFFECTS]
    write_json(PATH, found)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
