"""Golden traces, and one number of each without the suite's training code."""

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

from benchmark.data.augment import make_views
from benchmark.experiment import from_json, to_json
from benchmark.federated.batches import passes
from benchmark.federated.environment import prepare
from benchmark.methods.catalogue import method_name
from benchmark.streams import numpy_stream, torch_stream
from tests.federated.helpers import module_of
from tests.methods.golden import FOLDER, TRACES, trace
from tests.methods.watch import Watch
from tests.models.written_out import TINY, forward


@pytest.mark.parametrize("name", TRACES)
def test_the_trace_has_not_moved(name):
    """Equal up to what another processor's order of additions may change; and all local work equals its pickled self,
    since it is sent to other processes, and so do the settings, written and read."""
    assert from_json(to_json(TRACES[name])) == TRACES[name]
    assert to_json(TRACES[name])["method"]["kind"] == method_name(TRACES[name].method)
    golden = json.loads((FOLDER / f"{name}.json").read_text())
    module = module_of(TRACES[name])
    watch = Watch(module)
    for mine, theirs in zip(trace(TRACES[name], module), golden, strict=True):
        assert mine.keys() == theirs.keys()
        assert all(mine[key] == pytest.approx(theirs[key], rel=2e-4, abs=1e-7) for key in mine)
    updates = {job.update for seen in watch.seen.values() for job, _ in seen}
    assert updates and pickle.loads(pickle.dumps(updates)) == updates


def test_no_trace_is_left_over():
    assert {path.stem for path in FOLDER.glob("*.json")} == set(TRACES)


class OnLabels(Exception):
    """The first job that trains on labels has an outcome."""


def first_on_labels(module):
    """The first job that trains on labels: its round, the job and its outcome. Then nothing more."""
    fit = module.engine.fit

    def spied(jobs, round_number, kept):
        for job, outcome in zip(jobs, fit(jobs, round_number, kept), strict=True):
            if "labelled" in job.data:
                raise OnLabels(round_number, job, outcome)
            yield outcome

    module.engine.fit = spied
    with pytest.raises(OnLabels) as actual:
        module.training_step(1, 0)
    return actual.value.args


@pytest.mark.parametrize(
    "name",
    [
        *("crl-fedavg", "semifl-static-batch-norm", "fixmatch", "server-only-everyones"),
        *("supervised-fl-control", "fedlabel", "sage", "fedprox-fixmatch-one-more-client", "cbafed"),
    ],
)
def test_the_first_loss_on_labels_written_out(name):
    """Whoever trains on labels first (the server, a labelled client, the one holder of everything): the cross-entropy
    of the first batch's view at the weights received, by a network written out in functions, in float64."""
    experiment = replace(TRACES[name], federation=replace(TRACES[name].federation, T=1))
    environment = prepare(experiment)
    round_number, job, outcome = first_on_labels(module_of(experiment, environment))

    stream, holder = job.data["labelled"], job.key.client
    part, data = environment.part(holder, stream.part), environment.data
    names = ("train", "round", round_number, "client", holder, "draw", job.key.draw, "labelled")
    (order,) = passes(len(part), stream.batch_size, 1, stream.drop_last, numpy_stream(0, *names, "order"))
    at = part.positions_N[torch.from_numpy(order)]
    draw = torch_stream(0, *names, "augmentation")
    views = make_views(data.train_images_NCHW[at], stream.views, environment.augmentation, data.mean, data.std, draw)
    weights = {tensor: value.double() for tensor, value in job.receives["student"].items()}
    groups = 4 if experiment.model.norm == "gn" else 0
    logits_ND = forward(TINY, weights, views[stream.views[0]].double(), norm=groups).numpy()
    expected = -log_softmax(logits_ND, axis=1)[np.arange(len(at)), data.train_labels_N[at].numpy()].mean()
    losses = ("server/loss", "client/supervised_loss", "client/labelled_loss")
    (actual,) = [outcome.metrics[loss] for loss in losses if loss in outcome.metrics]
    assert outcome.steps == 1 and actual == pytest.approx(expected, rel=1e-5)
