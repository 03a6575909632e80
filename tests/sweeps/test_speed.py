"""Plans without the data set at hand, and how long counted work takes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from benchmark.methods.protocol import State
from benchmark.methods.semifl import SemiFL
from benchmark.methods.server_only import ServerOnly
from sweeps.cost import STAND_IN, cost_of, counted
from sweeps.holders import COUNTS, environment_of
from sweeps.speed import RUN_SECONDS, Stopwatch
from sweeps.work import Work
from tests.conftest import tiny_experiment

BASE = tiny_experiment()


@pytest.mark.parametrize("name", sorted(COUNTS))
@pytest.mark.parametrize(
    ("setting", "held"),
    [("server", (40, 0)), ("every_client", (40, 5)), ("one_more_client", (0, 0)), ("share", (40, 1))],
)
def test_a_stand_in_holds_every_image_once(name, setting, held, monkeypatch, tmp_path):
    """The server's labels, and clients as large as each other up to one image and to what they hold as labelled."""
    monkeypatch.setenv("FSSL_DATA", str(tmp_path))
    monkeypatch.setenv("FSSL_CACHE", str(tmp_path))
    data = replace(BASE.data, name=name, N_s=40, label_setting=setting)
    method = AnySetting()
    experiment = replace(BASE, data=data, method=method)
    environment, own = environment_of(experiment)
    sizes = environment.sizes
    assert not own and sum(sizes.values()) == COUNTS[name][0]
    assert sizes[-1] == held[0] and max(sizes[k] for k in range(4)) - min(sizes[k] for k in range(4)) <= 1
    assert (environment.labelled[0] > 0) == (held[1] > 0)
    assert STAND_IN in counted(experiment).notes


@dataclass(frozen=True, kw_only=True)
class AnySetting(ServerOnly):
    """Trains nothing anywhere, so that every label setting suits it."""

    needs = frozenset({"server", "every_client", "one_more_client", "share"})

    def round(self, state: State, world: Any) -> tuple[State, Mapping[str, float]]:
        return state, {}


def test_a_stopwatch_needs_no_data_and_times_each_kind_once(tiny, monkeypatch, tmp_path):
    """Server and client jobs, an image that is tested, an exchange of weights: 4, whatever the number of clients. What
    a run costs before its first round is there once, however many rounds there are."""
    monkeypatch.setenv("FSSL_DATA", str(tmp_path))
    monkeypatch.setenv("FSSL_CACHE", str(tmp_path))
    stopwatch = Stopwatch(repeats=1)
    mnist = replace(tiny, data=replace(tiny.data, name="mnist"))
    first = cost_of(mnist, stopwatch).core_seconds
    more = replace(mnist, federation=replace(mnist.federation, rounds=6))
    second = cost_of(more, stopwatch).core_seconds
    assert stopwatch.timed == 4
    assert second - RUN_SECONDS == pytest.approx(2 * (first - RUN_SECONDS))  # six rounds instead of three


def test_a_client_that_waits_for_confident_labels_is_timed_as_training(tiny):
    """SemiFL at tau = .95 on an untrained network trains no client; its plan has to time clients at work."""
    experiment = replace(tiny, method=SemiFL())
    work, environment = counted(experiment).work, counted(experiment).environment
    client = next(kind for kind in work.jobs if not kind.at_server)
    stopwatch = Stopwatch(repeats=1)
    few = stopwatch.seconds(environment, Work(jobs={client: 1}, steps={client: 1}, examples=work.examples))
    many = stopwatch.seconds(environment, Work(jobs={client: 1}, steps={client: 60}, examples=work.examples))
    assert many - few > 0.03  # 59 local steps; one takes over 2 ms where it trains


def test_exact_diversity_is_timed_as_passes_over_all_images(tiny, monkeypatch):
    """A job trains on 2 x 8 images in one second. With a gradient on all images of every job's holder in every second
    round, the server's three jobs take 1 + 20/16/2 s each, the twelve of clients (n images in the first) 1 + n/16/2.
    """
    monkeypatch.setattr(Stopwatch, "_once", lambda self, what, *args: float(what[0] == "job"))
    monkeypatch.setattr("sweeps.speed.ROUND_SECONDS", 0.0)
    monkeypatch.setattr("sweeps.speed.RUN_SECONDS", 0.0)
    experiment = replace(tiny, evaluation=replace(tiny.evaluation, gradient_diversity_every=2))
    found = counted(experiment)
    client = next(kind for kind in found.work.jobs if not kind.at_server)
    n = found.environment.sizes[found.work.examples[client].key.client]
    expected = 3 * (1 + 20 / 16 / 2) + 12 * (1 + n / 16 / 2)
    assert Stopwatch().seconds(found.environment, found.work) == pytest.approx(expected)
    assert Stopwatch().seconds(counted(tiny).environment, counted(tiny).work) == 15.0
