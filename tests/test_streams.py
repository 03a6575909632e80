"""Seeds of torch's global generators."""

import traceback

import torch

from benchmark.streams import seed_global


def test_what_is_drawn_is_what_torch_s_own_seeding_gives():
    torch.manual_seed(2**62 + 1)
    expected = torch.rand(5)
    seed_global(2**62 + 1)
    assert torch.equal(torch.rand(5), expected)


def test_no_trace_is_taken_for_devices_that_nobody_opened(monkeypatch):
    """torch.manual_seed takes one, which costs more than a small job's whole start; this is called for every job."""
    taken = []

    def take() -> list[str]:
        taken.append("a trace")
        return taken

    monkeypatch.setattr(traceback, "format_stack", take)
    seed_global(0)
    assert not taken
    torch.manual_seed(0)
    assert taken or torch.cuda.is_initialized()  # else seed_global is not needed
