"""Weights that are sent as their changed entries.

FedMatch sends them so (released modules/train.py: `cut`, `cal_s2c`, `cal_c2s`): entries that differ by more than a
threshold take the new value, all others keep the old.

A tensor of N entries of which n are sent is, whichever is smallest in bytes (for four-byte entries):
    itself               4 N                      (entries below the threshold at their old value)
    positions and values 8 n                      int32 positions in the flattened tensor
    bits and values      ceil(N / 8) + 4 n        one bit an entry: sent or not
and nothing where n = 0. So a change never takes more than the tensor. The released code counts n / N and leaves out
where the entries are.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmark.methods import protocol as fl


def changed_entries(before: fl.Weights, after: fl.Weights, threshold: float) -> fl.Tree:
    """Return what to send to a participant that has `before`: by tensor name, the entries of `after` that changed.

    Entries change if they differ by more than `threshold`. With threshold 0 all that differ are sent, so that
    `with_changed_entries` gives `after` exactly. An entry that is not finite is sent.
    """
    changed = {name: ~((new - before[name]).abs() <= threshold) for name, new in after.items()}
    # All are counted in one read, since each read would wait for a device.
    counts = torch.stack([entries.sum() for entries in changed.values()]).tolist() if changed else []
    sent: fl.Tree = {}
    for (name, entries), count in zip(changed.items(), counts, strict=True):
        if count:
            sent[name] = _smallest(before[name], after[name], entries, count)
    return sent


def with_changed_entries(before: fl.Weights, sent: fl.Tree) -> fl.Weights:
    """Return `before` with the entries that `changed_entries` gave. Its own tensors are not changed."""
    return {name: _filled(old, sent[name]) if name in sent else old for name, old in before.items()}


def _smallest(old: Tensor, new: Tensor, changed: Tensor, count: int) -> Any:
    entry = new.element_size()
    sizes = {
        "dense": entry * new.numel(),
        "positions": (entry + 4) * count,
        "bits": -(-new.numel() // 8) + entry * count,
    }
    form = min(sizes, key=lambda name: sizes[name])  # of equals the first
    if form == "dense":
        return torch.where(changed, new, old)
    values_n = new.reshape(-1)[changed.reshape(-1)]
    if form == "positions":
        return {"positions": changed.reshape(-1).nonzero().flatten().int(), "values": values_n}
    bits = torch.from_numpy(np.packbits(changed.cpu().numpy(), bitorder="little"))
    return {"bits": bits.to(new.device), "values": values_n}


def _filled(old: Tensor, sent: Any) -> Tensor:
    if isinstance(sent, Tensor):
        return sent
    flat = old.reshape(-1).clone()
    if "positions" in sent:
        flat[sent["positions"].long()] = sent["values"]
    else:
        bits = np.unpackbits(sent["bits"].cpu().numpy(), count=len(flat), bitorder="little")
        flat[torch.from_numpy(bits).bool().to(flat.device)] = sent["values"]
    return flat.reshape(old.shape)
