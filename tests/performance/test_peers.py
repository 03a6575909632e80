"""What other frameworks are timed on is our round; one that computes another mean is refused. Needs none of them."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmark.errors import FsslError
from benchmark.federated.engines import ReferenceEngine
from benchmark.federated.module import FederatedModule
from tests.performance.peers import __main__ as command
from tests.performance.peers.work import ROUNDS_OF, Setup, by_hand, environment_for, network_for, weights_of

pytestmark = pytest.mark.slow  # of tools for speed, which no command needs


def as_arrays(weights) -> dict:
    return {name: value.detach().numpy() for name, value in weights.items()}


@pytest.mark.parametrize("work", sorted(ROUNDS_OF))
@pytest.mark.parametrize("channels_last", [False, True])
def test_the_round_is_the_reference_engines(work: str, channels_last: bool) -> None:
    setup = Setup(work=work, rounds=1, processes=1, small=True, channels_last=channels_last)
    known = environment_for(setup)
    module = FederatedModule(known, ReferenceEngine(known))
    module.training_step(1, 0)
    (wanted,) = module.models().values()
    assert command.difference(as_arrays(by_hand(setup)), wanted) < 1e-5
    assert command.difference(as_arrays(weights_of(network_for(setup))), wanted) > 1e-3


def test_other_weights_are_refused() -> None:
    weights = weights_of(network_for(Setup(work="A", rounds=1, processes=1, small=True)))
    with pytest.raises(FsslError, match="other names"):
        command.difference({"strange": weights}, weights)


def test_a_driver_that_computes_something_else_is_not_timed(monkeypatch) -> None:
    """Ours, where twice what is allowed is added to every weight that is wanted."""
    start = by_hand(Setup(work="laptop", rounds=1, processes=1, small=True))
    monkeypatch.setattr(
        command, "by_hand", lambda setup: {name: value + 2 * command.OURS for name, value in start.items()}
    )
    monkeypatch.setattr(sys, "argv", ["peers", "--small", "--rounds", "1", "--work", "laptop"])
    with pytest.raises(SystemExit, match="it is not the same work"):
        command.main()


def test_cpu_seconds_are_those_of_a_process_and_its_children() -> None:
    burn = "import time\nwhile time.process_time() < .3: pass\n"
    parent = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {burn!r}])\ninput()"
    with subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE) as process:
        while command.tree_seconds(process.pid) < 0.3:
            assert process.poll() is None
        assert command.tree(process.pid)[0] == process.pid and Path(f"/proc/{process.pid}").exists()
        process.communicate(b"\n")
