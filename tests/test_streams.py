"""Seeds of torch's global generators."""

import torch

from benchmark.streams import seed_global


def test_what_is_drawn_is_what_torch_s_own_seeding_gives():
    torch.manual_seed(2**62 + 1)
    expected = torch.rand(5)
    seed_global(2**62 + 1)
    assert torch.equal(torch.rand(5), expected)
