"""What goes between processes comes out as it went in; and jobs are handed out so that no call waits for itself.

Legend: A, B, C sizes of any tensor.
"""

import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmark.federated.process_pool import Sent, pack, unpack
from benchmark.federated.sharing import IN_PROGRESS, Call
from benchmark.methods.protocol import Job, Key, Limit, Outcome, Tree
from tests.methods.toys import ToConstant

DTYPES = (torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16, torch.uint8)


def there_and_back(tree: Any) -> Any:
    return unpack(pack(tree, {}), {})


@given(
    sizes=st.lists(st.integers(0, 4), min_size=3, max_size=3),
    order=st.permutations([0, 1, 2]),
    dtype=st.sampled_from(DTYPES),
    sliced=st.booleans(),
)
def test_a_tensor_keeps_its_values_type_and_layout(sizes, order, dtype, sliced):
    """Whatever its order in memory; a slice with gaps comes without them, with the same values."""
    tensor_ABC = torch.randint(0, 2, sizes, generator=torch.Generator().manual_seed(0)).to(dtype).permute(order)
    whole = tensor_ABC[:, ::2] if sliced else tensor_ABC
    found = there_and_back({"it": whole})["it"]
    assert found.dtype == dtype and torch.equal(found, whole)
    assert sliced or found.stride() == whole.stride()


def test_weights_in_channels_last_stay_so_and_may_be_written_to():
    weights_OIHW = torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last).requires_grad_()
    found = there_and_back([weights_OIHW])[0]
    assert found.is_contiguous(memory_format=torch.channels_last) and not found.requires_grad
    found += 1
    assert torch.equal(found, weights_OIHW.detach() + 1)


def test_a_tensor_is_sent_once_and_stays_one():
    """In two places of a tree, and in a second tree to the same receiver."""
    shared, other = torch.zeros(3), torch.ones(2)
    sent: Sent = {}
    first, second = pack({"a": shared, "b": [shared, other]}, sent), pack({"c": other}, sent)
    assert len(second) < 50 < len(first)  # a tensor of two numbers takes some 200 bytes
    received: dict[int, torch.Tensor] = {}
    found = unpack(first, received)
    assert found["a"] is found["b"][0] and found["a"] is not found["b"][1]
    assert unpack(second, received)["c"] is found["b"][1]


def test_a_freed_tensor_is_not_taken_for_another():
    """Python reuses the ids of what it has freed."""
    sent: Sent = {}
    received: dict[int, torch.Tensor] = {}
    for value in range(100):
        assert float(unpack(pack(torch.full((1,), float(value)), sent), received)) == value


def call_of(keepers: list[str], costs: list[float], kept: dict[str, Tree]) -> Call:
    jobs = [
        Job(key=Key(client=index), update=ToConstant(), receives={}, data={}, limit=Limit(steps=1), keeps=keeper)
        for index, keeper in enumerate(keepers)
    ]
    return Call(0, jobs, 1, costs, kept, wants_gradient=False)


@given(
    jobs=st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 5)), min_size=1, max_size=30),
    workers=st.integers(1, 5),
    luck=st.randoms(use_true_random=False),
)
def test_any_jobs_on_any_workers_come_to_an_end_in_order(jobs, workers, luck: random.Random):
    """Workers end in any order. Outcomes come in list order; a keeper's jobs run one by one, in list order, each on
    what the one before left; at most IN_PROGRESS jobs a worker are in progress."""
    keepers, costs = [keeper for keeper, _ in jobs], [float(cost) for _, cost in jobs]
    call = call_of(keepers, costs, {})
    running: dict[int, list[int]] = {}
    taken: list[int] = []
    while call.due < len(jobs):
        while len(running) < workers and (index := call.next_job(workers)) is not None:
            assert keepers[index] not in {keepers[other] for other in running}
            private = call.start(index)
            expected = [other for other in range(index) if keepers[other] == keepers[index]]
            assert (private or {"seen": []})["seen"] == expected
            running[index] = [*expected, index]
        assert running, "nothing runs and something is due"
        done = luck.choice(sorted(running))
        call.enter(done, Outcome(key=Key(client=done), sends={}, private={"seen": running.pop(done)}))
        while call.is_due:
            taken.append(call.take().key.client)
        assert len(running) + sum(done > call.due for done in call._results) <= IN_PROGRESS * workers
    assert taken == list(range(len(jobs)))


@pytest.mark.parametrize("workers", [1, 2])
def test_the_longest_begin_first_until_two_results_a_worker_would_wait(workers):
    """Costs 1, 2, ..., 9 of independent jobs, none ends: the 2 W longest, then the first W of the list, then none."""
    call = call_of([str(index) for index in range(9)], [float(index + 1) for index in range(9)], {})
    begun = []
    while (index := call.next_job(workers)) is not None:
        call.start(index)
        begun.append(index)
    assert begun == {1: [8, 7, 0], 2: [8, 7, 6, 5, 0, 1]}[workers]


def test_jobs_of_equal_length_begin_in_list_order():
    call = call_of(list("abc"), [1.0, 1.0, 1.0], {"a": {"here": 1}})
    assert call.next_job(2) == 0 and call.start(0) == {"here": 1} and call.next_job(2) == 1
