"""Define the constants of the rule that judges claims, and its version.

Raise the version with every change that can move a verdict, whether in a constant or in the code:

1  2026-11-22 20:40 UTC, 189696b: signed ranks at interim analyses of confirmatory seeds.
2  2026-11-22 23:08, 944a7df: collapse is judged separately; if more than a fifth of a cell's runs collapsed, it alone
   decides the claim. The first confirmatory runs had begun at 22:07; no verdict moved.
3  2026-11-23 10:19, d5a55a3: collapse is judged contrast by contrast, and (02:08, e4b6505) a seed whose cells were
   trained by several engines does not count. Made after confirmatory runs; no verdict moved.
4  2026-11-25 03:59, fb4a3a8: signed ranks judge all confirmatory seeds, and the sign test has to agree if runs
   collapse. A supervised baseline in a contrast is treated like any other cell. Only rejections pass error on to other
   claims. Later seed blocks have less error.
5  2026-11-26 10:50, baecc6b7: a seed whose cells were trained on a CPU and on a CUDA device, or on two kinds of CUDA
   device, does not count. Made after confirmatory runs; the first ones on CUDA, 40 minutes earlier, were all cells of
   one claim, on one GPU. No verdict moved.
6  2026-11-26 23:05, 36f19237: the cells of each contrast are trained on one kind of device; two contrasts of a claim
   may be trained on two kinds. Made after confirmatory runs of SSFL's Figures 6 and D.1 on CUDA, before any of their
   diversities was seen. No verdict moved.

7  2026-11-27: runs that begin under this version are judged if, within a seed, the cells of a contrast were computed on
   one type of processor with one minor version of torch and, over its seeds, by one engine on one kind of device with
   one numerics version (uniform.py). A second copy of a run, computed on a different kind of device, may replace the
   first. A seed has no difference if no cell of a contrast with unequal weights reaches the accuracy. If several
   contrasts decide, one that contradicts precedes one without an effect of interest, and then the smallest difference;
   before, it was the first contrast in the file. An improvement without an effect of interest, or undecided, has "no
   room" if its cells leave less than four margins of room (room.py). Made after confirmatory runs; five verdicts of
   SSFL's Table 2 became "no room", no other moved.

Manifests contain the version since version 4. A hash of the constants reveals a change without a
new version.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

RULE_VERSION = 7

LOOKS = (9, 16, 24, 32)  # numbers of confirmatory seeds at the interim analyses
SEEDS = 100  # in a seed block, which judges a family of claims
EQUIVALENCE = 20  # smallest number of seeds for a verdict of equivalence
FAMILY_ERROR = 0.05  # error rate of a family on a paper's first seed block
RUNS_FALL = 0.1  # share of a cell's runs that collapsed, above which the sign test has to agree
BELOW_BOUND = 0.05  # a run has collapsed if its accuracy ends this far below its supervised baseline
FALL = 0.2  # a run has collapsed if its accuracy ends this far below its best
WORST = 0.0  # accuracy that a diverged run counts with
TENTH = 0.1  # the end of a run, as a share of its rounds
STILL_RISING = 0.003  # a run that gains this accuracy (.3 points) in its last tenth has not converged
ROOM = 4  # in margins: a claim with less room has "no room"
# Accuracies are clipped to this distance from 0 and 1, since few test images cannot distinguish closer log-odds.
SURE = 1e-3


def constants() -> Mapping[str, Any]:
    """Return every constant of this file except the version."""
    return {name: value for name, value in globals().items() if name.isupper() and name != "RULE_VERSION"}


def rule() -> dict[str, Any]:
    """Return the version, and 16 hexadecimal digits of a hash of the constants, for the manifest of
    a confirmatory run.
    """
    text = json.dumps(constants(), sort_keys=True)
    return {"version": RULE_VERSION, "constants": hashlib.sha256(text.encode()).hexdigest()[:16]}


def version_in_words(manifest: Mapping[str, Any]) -> str:
    """Return the rule's version when a confirmatory run began, as a phrase: "under version 4"."""
    noted = manifest.get("rule")
    return f"under version {noted.get('version')}" if isinstance(noted, Mapping) else "before the rule had a version"
