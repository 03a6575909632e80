"""Dates of claims against git and the records: a claim's date is that of its hash, and precedes its first run."""

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import pytest

from benchmark.papers.item import Claim, Item
from benchmark.papers.items import VARIANT_OF, base_of, items
from benchmark.records.copies import read_copy
from benchmark.verdicts.cell_results import without_trials
from benchmark.verdicts.families import families_in
from benchmark.verdicts.judge import judge
from sweeps.plan import plan
from tests.conftest import ROOT

SCRIPT = Path(__file__).with_name("hashes_at.py")
PLAIN = ("rscfed/fig2-plain", "rscfed/tab1-plain")


def git(*words: str) -> bytes:
    """Run git in the checkout; skip the test if there is no history."""
    try:
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("there is no history here")


def claims_at(profile: str) -> Iterator[tuple[Item, Claim]]:
    further = [name for name in VARIANT_OF if base_of(name)]
    for item in items(["all", *PLAIN, *further], profile):
        for claim in item.claims:
            yield item, claim


@cache
def hashes_at(commit: str, profile: str, folder: Path) -> frozenset[str]:
    """Compute the hashes of all claims with the sources of that commit, which are unpacked in the folder."""
    place = folder / commit
    with tarfile.open(fileobj=io.BytesIO(git("archive", commit, "benchmark", "results/published"))) as sources:
        sources.extractall(place, filter="data")
    command = [sys.executable, str(SCRIPT), profile]
    environment = {**os.environ, "PYTHONPATH": str(place), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=True)
    return frozenset(json.loads(done.stdout))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("commits")


@pytest.mark.slow
def test_a_claim_s_commit_is_the_first_that_has_its_hash(folder: Path):
    """Its hour is the commit's, the commit has the hash, and none of its parents has."""
    by_commit: dict[str, dict[str, str]] = {}
    made: dict[str, datetime | None] = {}
    for item, claim in claims_at("laptop"):
        by_commit.setdefault(claim.commit, {})[item.hash_of(claim)] = f"{item.name}: {claim.name}"
        assert made.setdefault(claim.commit, claim.made) == claim.made, claim.name
    for commit, names in by_commit.items():
        seconds, *parents = git("show", "-s", "--format=%ct %P", commit).decode().split()
        assert made[commit] == datetime.fromtimestamp(int(seconds), UTC), commit
        assert not [name for known, name in names.items() if known not in hashes_at(commit, "laptop", folder)]
        for parent in parents:
            assert not [name for known, name in names.items() if known in hashes_at(parent, "laptop", folder)]


@cache
def first_runs() -> Mapping[str, str]:
    """Read from the committed copies when the first confirmatory run began under each claim, by the claim's hash."""
    first: dict[str, str] = {}
    for path in sorted((ROOT / "results" / "reference").glob("*/seed=[1-9][0-9][0-9].json.gz")):
        manifest = read_copy(path).manifest
        began = manifest["attempts"][0]["started"]
        for family in families_in(manifest).values():
            for known in (*family.main, *family.others):
                first[known] = min(began, first.get(known, began))
    return first


@pytest.mark.slow
def test_a_claim_is_older_than_the_first_run_that_it_was_known_to():
    """Both times are in UTC. Every claim of a closed family is dated."""
    dated = {item.hash_of(claim): (claim.made, f"{item.name}: {claim.name}") for item, claim in claims_at("laptop")}
    runs = first_runs()
    assert len(runs.keys() & dated.keys()) > 100
    for known in runs.keys() & dated.keys():
        made, name = dated[known]
        assert made is not None and made < datetime.fromisoformat(runs[known]), name


def test_the_date_of_a_claim_on_changed_cells_is_theirs():
    """RSCFed's cells have the released partition since 788cba60; the plain ones were judged from seed 200 before."""
    now, plain = items(["rscfed/fig2", "rscfed/fig2-plain"], "laptop")
    name = "Better than Fed-Consist with adjusted weights"
    dates = [claim for item in (now, plain) for claim in item.claims if claim.name == name]
    assert dates[0].commit.startswith("788cba60") and dates[0].made == datetime(2026, 11, 25, 4, 4, 23, tzinfo=UTC)
    assert dates[1].made is not None and dates[1].made < dates[0].made


def test_a_withdrawn_claim_keeps_the_verdict_of_its_time():
    """Those that runs had decided have it, by their hash, and the records still say the same."""
    names = ["ssfl/tab2", "semifl/tab1", "rscfed/fig2", "rscfed/fig2-plain", "sage/tab1"]
    decided = 0
    resolved = plan(items(names, "laptop"), ROOT / "results", tell=False)
    for item in resolved.items:
        for judged in judge(item, without_trials(item, resolved.records)):
            claim = judged.claim
            kept = claim.verdicts.get(item.hash_of(claim), "")
            if claim.withdrawn and judged.is_decided:
                decided += 1
                assert kept == f"{judged.verdict} at laptop, by {judged.n} seeds"
                assert kept in item.withdrawal_of(claim)
            else:
                assert not kept and not claim.verdicts.keys() & {item.hash_of(claim)}
    assert decided == 10


def test_what_the_first_seed_block_had_measured_is_what_figure_6_says():
    """Of its cells the middle ones alone had measured gradients on all images before the claims were written anew."""
    item = items(["ssfl/fig6"], "laptop")[0]
    metric = "diversity/gradient/l2/squared/clients"
    measured: dict[str, set[int]] = {}
    for cell in item.cells:
        for path in (ROOT / "results" / "reference" / cell.cell_key).glob("seed=1[0-9][0-9].json.gz"):
            record = read_copy(path)
            if any(metric in dict(line) for line in record.rounds):
                measured.setdefault(cell.label, set()).add(record.seed)
    assert measured == {"FedAvg/middle": set(range(100, 116)), "Grouping/middle": set(range(100, 116))}
    for name in ("fig6", "figd1", "figd2"):
        figure = items([f"ssfl/{name}"], "laptop")[0]
        note = next(note for note in items([f"ssfl/{name}"], "paper")[0].notes if "9500fb4" in note)
        assert all(label in note for label in measured)
        assert {claim.commit for claim in figure.claims} == {"0332db74"}
