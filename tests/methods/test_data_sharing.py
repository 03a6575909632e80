"""DataSharing: which of the server's images a client is given, and what it trains on."""

from benchmark.methods.data_sharing import DataSharing, DataSharingUpdate
from tests.federated.helpers import module_of
from tests.methods.watch import Watch, tiny_with

METHOD = DataSharing(batch_size=8, server_batch_size=8, warm_start_rounds=0, alpha=0.25)


def test_a_client_trains_on_its_own_and_its_share_of_g():
    """N_s = 20, alpha = 1/4: 5 images each, drawn once, other ones for other clients. One epoch of B = 8 over n_k + 5
    images is ceil((n_k + 5) / 8) steps; the images are the client's own, then those of the server."""
    module = module_of(tiny_with(METHOD, "everywhere", C=2, epochs=1, rounds=8))
    watch, environment = Watch(module), module.environment
    given: dict[int, tuple[int, ...]] = {}
    for round_number in range(1, 6):
        new = set(module._world(round_number).cohort()) - given.keys()
        module.training_step(round_number, 0)
        assert module.metrics["comm/shared_images"] == 5 * len(new)
        for job, outcome in watch.seen[round_number]:
            client, update = job.key.client, job.update
            assert isinstance(update, DataSharingUpdate)
            assert given.setdefault(client, update.shared_N) == update.shared_N
            own = len(environment.split.clients[client])
            assert outcome.steps == -(-(own + 5) // 8)
            local = update.start(job.receives, None, None)  # type: ignore[arg-type]  # it reads nothing
            assert local is not None
            part = environment.part(client, "with_shared")
            images = part.positions_N[local.selected["labelled"].positions_N].tolist()
            assert images[:own] == environment.split.clients[client].tolist()
            assert set(images[own:]) < set(environment.split.server_N.tolist()) and len(set(images[own:])) == 5
    assert len(given) == 4 and len(set(given.values())) > 1
