"""Error rate, power and expected seeds of the rule: `python -m tests.verdicts.simulation` writes results/verdicts.json.

Every draw with every family size, number of primary claims and margin; effects and margins are in standard deviations.
"""

import argparse
import json
import math
from statistics import fmean

import numpy as np

from benchmark.files import write_json
from benchmark.verdicts.judge import decide
from benchmark.verdicts.rule import LOOKS
from tests.conftest import ROOT
from tests.verdicts.test_error_rate import (
    ALLOWED,
    DRAWS,
    MARGINS,
    SEEDS,
    claims_of,
    error_rate,
    evidence_of,
    family_of,
    none_collapsed,
    one_falls,
    within_noise,
)

PATH = ROOT / "results" / "verdicts.json"
CLAIMS = {4: (0, 2, 4), 10: (0, 2, 4, 5), 40: (0, 2, 4, 5)}  # of a family -> how many are main ones
EFFECTS = (0.25, 0.5, 0.75, 1.0, 1.5)


def families_of(number: int, simulated: int) -> int:
    """Return fewer of the large families, because they are slower."""
    return max(200, simulated * 4 // number)


def errors(simulated: int) -> dict[str, dict[str, float]]:
    """Draw -> "10 claims, 2 main, margin 0.5" -> the share of families with a false verdict."""
    rates: dict[str, dict[str, float]] = {}
    for name, draw in DRAWS.items():
        for number, mains in CLAIMS.items():
            for main in mains:
                for margin in MARGINS:
                    rate = error_rate(draw, number, main, margin, families_of(number, simulated))
                    rates.setdefault(name, {})[f"{number} claims, {main} main, margin {margin:g}"] = round(rate, 4)
        print(name, "most:", max(rates[name].values()), flush=True)
    return rates


def power(effect: float, families: int, falls: float = 0.0) -> dict[str, object]:
    """Return, for a family of four claims that all gain, the share of the first claim's "holds" by each look, and the
    seeds that it needs; undecided: the last look's.

    `falls`: in this share of its runs the better arm falls.
    """
    rng = np.random.default_rng(2)
    claims = claims_of(1, 0.1) * 4
    family = family_of(4, 0)
    at: list[int | None] = []
    for _ in range(families):
        runs = one_falls(falls)(rng, 4) if falls else none_collapsed(rng.normal(effect, 1.0, (4, len(SEEDS))))
        if falls:
            runs.differences[:] += effect * ~runs.a
        decision = decide(evidence_of(runs, claims), family)[0]
        at.append(LOOKS[decision.looks - 1] if decision.verdict == "holds" else None)
    holds_by = {}
    for n in LOOKS:
        holds_by[str(n)] = sum(1 for look in at if look is not None and look <= n) / families
    seeds = [LOOKS[-1] if look is None else look for look in at]
    return {
        "effect": effect,
        "share of runs that fall": falls,
        "holds by": holds_by,
        "expected seeds": round(fmean(seeds), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--families", type=int, default=2000, help="of four claims; fewer of larger ones")
    simulated = parser.parse_args().families
    rates = errors(simulated)
    sizes = {str(number): families_of(number, simulated) for number in CLAIMS}
    above = [
        (name, case, rate)
        for name, cases in rates.items()
        for case, rate in cases.items()
        if not within_noise(rate, sizes[case.split()[0]])
    ]
    # of a rate of .05
    standard_errors = {number: round(math.sqrt(ALLOWED * (1 - ALLOWED) / n), 4) for number, n in sizes.items()}
    powers = [power(effect, simulated // 4, falls) for falls in (0.0, 0.1, 0.2) for effect in EFFECTS]
    rule = {
        "families": sizes,
        "standard error": standard_errors,
        "errors": rates,
        "above .05 by more than noise": above,
        "power": powers,
    }
    write_json(PATH, rule)
    print(json.dumps({key: rule[key] for key in ("families", "standard error", "power")}, indent=1))
    print(f"above .05 by more than noise: {above or 'none'}")


if __name__ == "__main__":
    main()
