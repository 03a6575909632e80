"""The constants of the rule that judges claims, and its version.

Raise the version with every change that can move a verdict, in a constant or in the code:

1  2026-11-22 20:40 UTC, 189696b: signed ranks at looks of confirming seeds.
2  2026-11-22 23:08, 944a7df: collapse is judged apart, alone above a fifth of a cell's runs. The first runs that
   confirm had begun at 22:07; no verdict moved.
3  2026-11-23 10:19, d5a55a3: collapse is judged contrast by contrast, and (02:08, e4b6505) no seed whose cells several
   engines trained. After runs that confirm; no verdict moved.
4  2026-11-25 03:59, fb4a3a8: all confirming seeds are judged by signed ranks, and the sign test has to agree where runs
   fall; a bound inside a contrast is an arm like any other; only rejections hand error on; later hundreds have less.
5  2026-11-26 10:50, baecc6b7: no seed whose cells were trained on a CPU and on a CUDA device, or on two kinds of these.
   After runs that confirm; the first on CUDA, 40 minutes before, are all cells of one claim, on one card. No verdict
   moved.
6  2026-11-26 23:05, 36f19237: the cells of each contrast are trained on one kind of device; two contrasts of a claim
   may be on two. After confirming runs of SSFL's Figures 6 and D.1 on CUDA, before a diversity of theirs was seen. No
   verdict moved.

7  2026-11-27: runs that begin under this version are judged if, within a seed, the cells of a contrast were computed on
   one type of processor with one minor version of torch and, over its seeds, by one engine on one kind of device with
   one numerics version (uniform.py). A second copy of a run, computed on another kind of device, may take the first
   one's place. A seed at which no cell of a contrast of unequal weights reaches the accuracy has no difference. Of
   several contrasts that decide, one that contradicts goes before one without an effect of interest, and then the
   smallest difference; it was the first in the file. An improvement without an effect of interest, or undecided, has
   "no room" if its cells leave less than four margins of room (room.py). After confirmatory runs; five verdicts of
   SSFL's Table 2 became "no room", no other moved.

Manifests have the version since 4. The hash of the constants shows a change without a new version.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

RULE_VERSION = 7

LOOKS = (9, 16, 24, 32)  # confirming seeds
SEEDS = 100  # of a family of claims
EQUIVALENCE = 20  # the least seeds at which two things can be called alike
FAMILY_ERROR = 0.05  # of a family on a paper's first hundred of seeds
RUNS_FALL = 0.1  # of a cell's runs: above it the sign test has to agree
BELOW_BOUND = 0.05  # of accuracy: a run that ends so far below labels alone has collapsed
FALL = 0.2  # of accuracy: a run that ends so far below its own best has collapsed
WORST = 0.0  # accuracy that a diverged run counts with
TENTH = 0.1  # of a run: its end
STILL_RISING = 0.003  # .3 points: a run that gains so much over its last tenth has not come to an end
ROOM = 4  # margins: a claim whose cells leave less room has "no room"
SURE = 1e-3  # accuracies nearer to 0 or 1 have no log-odds that few test images could tell apart


def constants() -> Mapping[str, Any]:
    """Every constant of this file except the version."""
    return {name: value for name, value in globals().items() if name.isupper() and name != "RULE_VERSION"}


def rule() -> dict[str, Any]:
    """For the manifest of a confirming run: the version, and 16 hexadecimal digits for the constants."""
    text = json.dumps(constants(), sort_keys=True)
    return {"version": RULE_VERSION, "constants": hashlib.sha256(text.encode()).hexdigest()[:16]}


def version_in_words(manifest: Mapping[str, Any]) -> str:
    """The rule's version when a confirming run began: "under version 4"."""
    noted = manifest.get("rule")
    return f"under version {noted.get('version')}" if isinstance(noted, Mapping) else "before the rule had a version"
