"""Weights that are sent as their changed entries.

FedMatch sends weights in this way (released modules/train.py: `cut`, `cal_s2c`, `cal_c2s`): entries that differ by more
than a threshold get the new value, and all others keep the old one.

If n of a tensor's N entries are sent, it is encoded in the form with the fewest bytes. For four-byte entries these are:
    the whole tensor     4 N                      (entries within the threshold keep their old value)
    positions and values 8 n                      int32 positions in the flattened tensor
    bits and values      ceil(N / 8) + 4 n        one bit per entry: sent or not
Nothing is sent if n = 0. A change is therefore never larger than the tensor. The released code counts n / N, without
the positions of the entries.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmark.methods import protocol as fl


def changed_entries(before: fl.Weights, after: fl.Weights, threshold: float) -> fl.Tree:
    """Encode the entries of `after` that changed, by tensor name, for a participant that has `before`.

    An entry changed if it differs by more than `threshold`. With threshold 0 all entries that differ are sent, so that
    `with_changed_entries` gives `after` exactly. An entry that is not finite is always sent.
    """
    changed = {name: ~((new - before[name]).abs() <= threshold) for name, new in after.items()}
    # All counts are read at once, since each read would wait for the device.
    counts = torch.stack([entries.sum() for entries in changed.values()]).tolist() if changed else []
    sent: fl.Tree = {}
    for (name, entries), count in zip(changed.items(), counts, strict=True):
        if count:
            sent[name] = _smallest(before[name], after[name], entries, count)
    return sent


def with_changed_entries(before: fl.Weights, sent: fl.Tree) -> fl.Weights:
    """Return `before` with the entries that `changed_entries` encoded. The tensors of `before` are not changed."""
    return {name: _filled(old, sent[name]) if name in sent else old for name, old in before.items()}


def _smallest(old: Tensor, new: Tensor, changed: Tensor, count: int) -> Any:
    entry = new.element_size()
    sizes = {
        "dense": entry * new.numel(),
        "positions": (entry + 4) * count,
        "bits": -(-new.numel() // 8) + entry * count,
    }
    form = min(sizes, key=lambda name: sizes[name])  # the first form if several are equally small
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
