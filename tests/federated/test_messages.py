"""Tensors of a message keep values, types and memory format, also in another process."""

from multiprocessing import Pipe

import pytest
import torch

from benchmark.federated.process_pool import packed, passes_files, received, send
from benchmark.federated.processes import process_context
from tests.federated.helpers import agree

TENSORS = {
    "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "a part of another": torch.arange(12.0).view(3, 4)[:, 1],
    "one value for all": torch.tensor(7).expand(3, 2),
    "a number": torch.tensor(0.1, dtype=torch.float64),
    "nothing": torch.empty(0, 3),
    "of one byte": torch.tensor([True, False, True]),
}


def answers(pipe, in_files: bool) -> None:
    """Send back the message that this other process received."""
    send(pipe, packed(received(pipe, in_files), in_files))


WAYS = pytest.mark.parametrize("in_files", [*([True] if passes_files() else []), False])


@WAYS
def test_tensors_keep_values_types_and_layout_between_processes(in_files):
    with process_context() as context:
        ours, theirs = context.Pipe()
        process = context.Process(target=answers, args=(theirs, in_files))
        process.start()
    send(ours, packed(sent := {"of": TENSORS, "n": 3}, in_files))
    assert ours.poll(60), "no answer"
    found = received(ours, in_files)
    process.join()
    assert agree(found, sent) and found["of"]["channels last"].is_contiguous(memory_format=torch.channels_last)


@WAYS
def test_a_message_outlasts_the_next_one_and_what_its_reader_changes_in_place_is_its_own(in_files):
    ours, theirs = Pipe()
    sent = {"weights": torch.zeros(10_000)}
    for number in (1, 2):
        sent["weights"] += number
        send(ours, packed(sent, in_files))
    first, second = received(theirs, in_files), received(theirs, in_files)
    first["weights"] += 10
    assert [tree["weights"].unique().tolist() for tree in (sent, first, second)] == [[3.0], [11.0], [3.0]]
