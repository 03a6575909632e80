"""`fssl data partition` takes the fields of a run, or a paper's cell, and refuses what a run refuses."""

import json

import numpy as np
import pytest

from benchmark.cli.main import main
from benchmark.data.datasets import load
from benchmark.data.partition import ClassSkew, Dirichlet, Iid, Shards
from benchmark.data.split import split

SIX = ["data", "partition", "--federation.K=6"]


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        ("", ClassSkew(R=0.4)),
        ("--partition.R=0.7 --partition.sizes=equal", ClassSkew(R=0.7, sizes="equal")),
        ("--partition=iid", Iid()),
        ("--partition=dirichlet --partition.alpha=0.9 --partition.rule=limited", Dirichlet(alpha=0.9, rule="limited")),
        ("--partition=shards --partition.classes_per_client=3", Shards(classes_per_client=3)),
    ],
)
def test_every_rule_can_be_asked_for(capsys, words, rule):
    assert main([*SIX, "--data", "digits", "--data.N_s=100", "--seed", "3", "--json", *words.split()]) == 0
    actual = json.loads(capsys.readouterr().out)
    labels_N = load("digits").train_labels_N.numpy()
    expected = split(labels_N, 10, 100, 6, rule, 3)
    assert actual["hash"] == expected.hash() and actual["counts"] == expected.counts(labels_N).tolist()


def test_a_cell_s_partition(capsys):
    """SSFL's Table 2 has R = .4 and as many clients as its stand-in says."""
    assert main(["data", "partition", "--cell", "ssfl/tab2:FedAvg/full", "--json"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert described["R_nominal"] == 0.4 and len(described["counts"]) == described["K"] == 4


def test_few_clients_need_no_cohort(capsys):
    """One that is not given is at most all clients; one that is given is checked."""
    assert main(["data", "partition", "--federation.K=2", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["counts"]) == 2
    assert main(["data", "partition", "--federation.K=2", "--federation.C=3"]) == 65


def test_labels_at_the_clients(capsys):
    at_clients = "--method=fed_consist --data.label_setting=every_client --data.labels_per_client=2 --data.N_s=0"
    words = [*SIX, *at_clients.split(), "--partition=iid"]
    assert main([*words, "--json"]) == 0
    actual = json.loads(capsys.readouterr().out)
    assert actual["labelled_counts"] == [[2] * 10] * 6 and sum(actual["server_counts"]) == 0
    assert np.sum(actual["counts"]) + 6 * 10 * 2 == 1397
    assert main(words) == 0
    assert "client 5, labelled" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--R 0.4", "--partition.R"),
        ("--partition.rule=limited", "partition.rule"),
        ("--partition=shards --partition.classes_per_client=11", "take at most 10"),
        ("--partition=dirichlet --partition.alpha=1 --partition.rule=sage --federation.K=5", "K=5 is odd"),
    ],
)
def test_wrong_words_end_with_65_and_one_line(capsys, words, says):
    assert main(["data", "partition", *words.split()]) == 65
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1
