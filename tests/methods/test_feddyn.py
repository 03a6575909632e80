"""FedDyn: the server's and the client's lines of Algorithm 1, computed again."""

from dataclasses import replace

import torch

from benchmark.federated.environment import prepare, weights_of
from benchmark.federated.jobs import JobRunner
from benchmark.methods.feddyn import FedDyn
from benchmark.optim.sgd import SGD, Constant
from tests.federated.helpers import equal
from tests.methods.watch import tiny_with, watched

ALPHA = 0.3


def experiment(alpha, **factors):
    return tiny_with(FedDyn(alpha=alpha, batch_size=8), "everywhere", **factors)


def test_servers_lines_of_algorithm_1():
    """h^t = h^{t-1} - alpha / m sum (theta_k - theta^{t-1}), theta^t = mean - h / alpha: rounds 1 and 2 from what the
    round's clients sent, with m = 4 clients of which 2 take part. What is evaluated is their mean."""
    module, watch = watched(experiment(ALPHA, C=2), rounds=2)
    theta = weights_of(prepare(experiment(ALPHA)).network())
    h = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in theta.items()}
    for number in (1, 2):
        outcomes = watch.seen[number]
        assert len(outcomes) == 2 and all(equal(job.receives["student"], theta) for job, _ in outcomes)
        sent = [outcome.sends["student"] for _, outcome in outcomes]
        for name, value in theta.items():
            h[name] -= ALPHA / 4 * sum(w[name].double() - value.double() for w in sent)
        mean = {name: sum(w[name].double() for w in sent) / 2 for name in theta}
        theta = {name: (mean[name] - h[name] / ALPHA).float() for name in theta}
        there = watch.seen[2][0][0].receives["student"] if number == 1 else module.state.server["theta"]
        for name, value in there.items():
            torch.testing.assert_close(value, theta[name], rtol=1e-5, atol=1e-6)
        theta = there
    for name, value in module.models()["student"].items():
        torch.testing.assert_close(value.double(), mean[name], rtol=1e-5, atol=1e-6)


def test_a_client_keeps_its_own_gradient():
    """g_k = -alpha sum_t (theta_k^t - theta^{t-1}) over the rounds in which it took part."""
    module, watch = watched(experiment(ALPHA, C=2), rounds=3)
    for client in range(4):
        moves = [
            {name: outcome.sends["student"][name].double() - w.double() for name, w in job.receives["student"].items()}
            for number in (1, 2, 3)
            for job, outcome in watch.seen[number]
            if job.key.client == client
        ]
        kept = [tree for keeper, tree in module.state.clients.items() if keeper == str(client)]
        assert len(kept) == bool(moves)
        for name in moves[0] if moves else ():
            expected = -ALPHA * sum(move[name] for move in moves)
            torch.testing.assert_close(kept[0]["gradient"][name].double(), expected, rtol=1e-4, atol=1e-6)


def test_a_step_goes_along_the_client_s_gradient():
    """theta - eta (grad L - g_k): the same first step of plain SGD with and without g_k differs by eta g_k."""
    e = replace(
        experiment(ALPHA, T=1, C=4),
        optimizer=SGD(lr=0.1, momentum=0.0, nesterov=False, weight_decay=0.0, schedule=Constant()),
    )
    module, watch = watched(e, rounds=2)
    job, outcome = watch.seen[2][0]
    before, after = next((old, left) for old, left in watch.seen[1] if old.key == job.key)
    gradient = {
        name: -ALPHA * (value - before.receives["student"][name]).double()
        for name, value in after.sends["student"].items()
    }
    plain = JobRunner(module.environment).run(job, 2, None).sends["student"]
    for name, value in outcome.sends["student"].items():
        torch.testing.assert_close((value - plain[name]).double(), 0.1 * gradient[name], rtol=1e-3, atol=2e-7)
