"""The comparison's order and arithmetic by hand; real blocks: ours, a failing one, and each peer that is installed."""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from benchmark.errors import ConfigError, FsslError
from tests.performance.peers.compare import as_text, best, last_object, neighbours, rows, run
from tests.performance.peers.contenders import KEEP_FREED_MEMORY, Contender, in_turn, interpreters, ours, setups
from tests.performance.peers.work import Work

TINY = Work(clients=1, steps=1, batch=2)


def block(name: str, wall: list[float], cpu: float = 1.0) -> dict[str, Any]:
    """A driver's figures; all CPU seconds are `cpu`, the median of an odd number of rounds is the middle one."""
    seconds = {"median": sorted(wall)[len(wall) // 2], "each": wall}
    cpu_seconds = {"median": cpu, "each": [cpu] * len(wall)}
    return {
        "name": name, "peer": name.split()[0], "wall_seconds": seconds, "cpu_seconds": cpu_seconds,
        "others": 0.1, "difference": 1e-7,
    }  # fmt: skip


BLOCKS = [
    block("ours", [2, 1, 3], cpu=2),
    block("flower a", [8, 6, 7], cpu=8),
    block("ours", [4, 4, 4], cpu=4),
    block("flower a, channels last", [5, 5, 6], cpu=6),
    block("ours", [2, 2, 2], cpu=2),
]


def test_ratios_are_to_the_neighbours() -> None:
    """flower a: median 7 between ours of 2 and 4, hence 3.5 and 1.75, in the middle 2.625. CPU: 8 to 2 and to 4."""
    assert neighbours(BLOCKS, 1, "wall_seconds") == [3.5, 1.75]
    mine, plain, last = rows(BLOCKS)
    assert plain["wall_ratio"] == {"median": 2.625, "min": 1.75, "max": 3.5}
    assert plain["cpu_ratio"] == {"median": 3, "min": 2, "max": 4}
    assert last["wall_ratio"] == {"median": 1.875, "min": 1.25, "max": 2.5}
    assert mine["wall_seconds"] == {"median": 2, "min": 1, "max": 4} and "wall_ratio" not in mine


def test_repeated_blocks_of_a_set_up_are_one_row() -> None:
    """The second time flower a takes 9 beside ours of 2 and 3: ratios 3.5, 1.75, 4.5 and 3, in the middle 3.25."""
    blocks = [*BLOCKS, block("flower a", [9, 9, 9]), block("ours", [3, 3, 3])]
    _, plain, _ = rows(blocks)
    assert plain["wall_ratio"] == {"median": 3.25, "min": 1.75, "max": 4.5}
    assert plain["wall_seconds"] == {"median": 8.5, "min": 6, "max": 9}


def test_the_best_set_up_is_the_fastest_not_the_first() -> None:
    assert best(rows(BLOCKS)) == {
        "flower": {
            "best": "flower a, channels last",
            "ratio": 1.875,
            "best_in_default_order": "flower a",
            "ratio_in_default_order": 2.625,
            "wanted": 2.0,
        }
    }


def test_the_text_holds_every_row_and_what_is_wanted() -> None:
    table = rows(BLOCKS)
    lines = as_text(table, best(table)).splitlines()
    assert len(lines) == 1 + 3 + 1  # head, rows, one line a peer
    assert "2.62 (1.75..3.50)" in lines[2] and "1.00..4.00" in lines[1]
    assert lines[-1].startswith("flower: 1.88 in its best set-up") and lines[-1].endswith("wanted: 2.0")


def test_every_block_of_a_peer_stands_between_two_of_ours() -> None:
    order = [contender.peer for contender in in_turn(2, ["flower", "fedlab", "pfl"], repeats=2)]
    assert order[::2] == ["ours"] * len(order[::2]) and order[-1] == "ours"
    assert set(order[1::2]) == {"flower", "fedlab", "pfl"}


@pytest.mark.parametrize("peer, tried", [("flower", 5), ("fedlab", 3), ("pfl", 5)])
def test_each_peer_is_tried_in_both_orders_of_memory_and_no_set_up_twice(peer: str, tried: int) -> None:
    """Two ways to share two cores (FedLab: one), two orders of memory, and one with memory kept; all use both cores."""
    names = [contender.name for contender in setups(peer, cores=2)]
    assert len(names) == len(set(names)) == tried
    assert all(contender.processes * contender.threads == 2 for contender in setups(peer, cores=2))
    assert len({contender.name for contender in setups(peer, cores=1)}) == 3  # on one core both ways are the same


def test_commands_say_all_that_a_driver_needs() -> None:
    contender = Contender(peer="pfl", processes=2, threads=1, channels_last=True, keeps_memory=True)
    command = contender.command(Path("python"), TINY, 3)
    launcher = command.index("torch.distributed.run")
    assert command[launcher + 1 : launcher + 4] == ["--standalone", "--nproc-per-node", "2"]
    assert command[command.index("--clients") + 1] == "1" and "--channels-last" in command
    assert KEEP_FREED_MEMORY.items() <= contender.variables().items()
    assert not KEEP_FREED_MEMORY.keys() & ours(2).variables().keys()


def test_the_last_object_is_found_among_a_frameworks_lines() -> None:
    assert last_object('{"a": 1}\nround 1\n{"b": 2}\n[3]\nbye {\n') == {"b": 2}
    assert last_object("nothing\n") is None


def test_interpreters_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--pfl: .*absent"):
        interpreters({"pfl": tmp_path / "absent", "flower": None})
    with pytest.raises(ConfigError, match="no peer"):
        interpreters({"pfl": None})


def test_a_block_of_ours() -> None:
    """A real one: one counted round of three, whose mean is the plain loop's, and whose tree worked for some time."""
    found = run(ours(1), Path(sys.executable), TINY, 3)
    assert found["rounds"] == 1 and found["work"] == {"clients": 1, "steps": 1, "batch": 2, "seed": 0}
    assert found["difference"] < 1e-4 and found["wall_seconds"]["median"] > 0


def test_a_driver_that_fails_is_named(tmp_path: Path) -> None:
    """An interpreter that ends with 3 and says why."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no such thing >&2\nexit 3\n")
    python.chmod(0o755)
    with pytest.raises(FsslError, match="flower 2 x 1: .*exit code 3: no such thing"):
        run(setups("flower", 2)[0], python, TINY, 3)


def test_a_mean_that_is_not_the_plain_loops_is_refused(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho '{\"difference\": 0.01}'\n")
    python.chmod(0o755)
    with pytest.raises(FsslError, match="differs from the plain loop's by 1.0e-02"):
        run(setups("fedlab", 2)[0], python, TINY, 3)


def test_too_few_rounds_are_refused() -> None:
    with pytest.raises(ConfigError, match="rounds: 2; more than the 2"):
        run(ours(1), Path(sys.executable), TINY, 2)


@pytest.mark.parametrize("peer, package", [("flower", "flwr"), ("fedlab", "fedlab"), ("pfl", "pfl")])
def test_a_block_of_the_peer(peer: str, package: str) -> None:
    """Where this Python has the peer: its first set-up arrives at the plain loop's mean."""
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed here: see tests/performance/peers/requirements/{peer}.txt")
    found = run(setups(peer, 2)[0], Path(sys.executable), TINY, 3)
    assert found["peer"] == peer and found["versions"][package]
