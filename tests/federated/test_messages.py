"""Tensors of a message keep values, types and memory order, also in another process."""

import torch

from benchmark.federated.messages import MessageMemory
from benchmark.federated.start import starting

TENSORS = {
    "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "a part of another": torch.arange(12.0).view(3, 4)[:, 1],
    "one value for all": torch.tensor(7).expand(3, 2),
    "a number": torch.tensor(0.1, dtype=torch.float64),
    "nothing": torch.empty(0, 3),
    "of one byte": torch.tensor([True, False, True]),
}


def same(found: dict[str, torch.Tensor]) -> bool:
    return all(
        torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype for name, tensor in TENSORS.items()
    ) and found["channels last"].is_contiguous(memory_format=torch.channels_last)


def answers(there: MessageMemory, packed: bytes, back: MessageMemory, pipe) -> None:
    """In another process: what it was sent, put into the other memory."""
    message = there.opened(packed, copies=False)
    pipe.send_bytes(back.packed(message))


def test_tensors_keep_values_types_and_layout_between_processes():
    there, back = MessageMemory(), MessageMemory()
    with starting() as context:
        ours, theirs = context.Pipe()
        process = context.Process(target=answers, args=(there, there.packed({"of": TENSORS, "n": 3}), back, theirs))
        process.start()
    assert ours.poll(60), "no answer"
    found = back.opened(ours.recv_bytes(), copies=True)
    process.join()
    assert found["n"] == 3 and same(found["of"])


def test_only_copies_outlast_the_next_message_and_a_larger_message_makes_the_memory_larger():
    memory = MessageMemory()
    first = memory.packed(TENSORS)
    copied, shown = memory.opened(first, copies=True), memory.opened(first, copies=False)
    assert same(copied) and same(shown)
    memory.packed([torch.zeros(9)])
    assert same(copied) and not same(shown)
    large = torch.randn(100_000)
    (found,) = memory.opened(memory.packed([large]), copies=False)
    assert torch.equal(found, large) and same(copied)
