"""Weights sent as changes: only the entries that differ from what the other side has, in the form that takes least.

Source: FedMatch (Jeong et al., ICLR 2021): sigma and psi cross the network as differences; released modules/train.py,
`cut`, `cal_s2c`, `cal_c2s`: entries that differ by more than a threshold take the new value, all others keep the old.

A tensor of N entries of which n are sent is, whichever is smallest in bytes (for four-byte entries):
    itself               4 N                      (entries below the threshold at their old value)
    positions and values 8 n                      int32 positions in the flattened tensor
    bits and values      ceil(N / 8) + 4 n        one bit an entry: sent or not
and nothing where n = 0. So a change never takes more than the tensor, and the ledger, which counts the bytes of what is
handed over, needs to know nothing of it. The released code counts n / N and leaves out where the entries are.
"""

from typing import Any

import torch
from torch import Tensor

from benchmark.methods.protocol import Tree, Weights

BITS = 8


def changes(before: Weights, after: Weights, threshold: float) -> Tree:
    """What to send to a holder of `before`: by tensor name, entries of `after` that differ by more than `threshold`.

    threshold 0 sends all that differ, so that `applied` gives `after` exactly. An entry that is not finite is sent.
    """
    sent: Tree = {}
    for name, new in after.items():
        old = before[name]
        changed = ~((new - old).abs() <= threshold)
        count = int(changed.sum())
        if count:
            sent[name] = _smallest(old, new, changed, count)
    return sent


def applied(before: Weights, sent: Tree) -> Weights:
    """`before` with the entries that were sent; its own tensors stay as they are. Undoes `changes`."""
    return {name: _filled(old, sent[name]) if name in sent else old for name, old in before.items()}


def hard_threshold(weights: Weights, threshold: float) -> Weights:
    """Entries of at most `threshold` in size as zero (released modules/layers.py: `l1_thres`)."""
    return {name: value * (value.abs() > threshold) for name, value in weights.items()}


def _smallest(old: Tensor, new: Tensor, changed: Tensor, count: int) -> Any:
    entry = new.element_size()
    sizes = {
        "dense": entry * new.numel(),
        "positions": (entry + 4) * count,
        "bits": -(-new.numel() // BITS) + entry * count,
    }
    form = min(sizes, key=lambda name: sizes[name])  # of equals the first
    if form == "dense":
        return torch.where(changed, new, old)
    values_n = new.reshape(-1)[changed.reshape(-1)]
    if form == "positions":
        return {"positions": changed.reshape(-1).nonzero().flatten().int(), "values": values_n}
    return {"bits": _packed(changed.reshape(-1)), "values": values_n}


def _filled(old: Tensor, sent: Any) -> Tensor:
    if isinstance(sent, Tensor):
        return sent
    flat = old.reshape(-1).clone()
    at = sent["positions"].long() if "positions" in sent else _unpacked(sent["bits"], len(flat))
    flat[at] = sent["values"]
    return flat.reshape(old.shape)


def _packed(flags_N: Tensor) -> Tensor:
    padded = torch.nn.functional.pad(flags_N.to(torch.uint8), (0, -len(flags_N) % BITS)).reshape(-1, BITS)
    return (padded << torch.arange(BITS, dtype=torch.uint8, device=flags_N.device)).sum(dim=1, dtype=torch.uint8)


def _unpacked(bits: Tensor, N: int) -> Tensor:
    shifted = bits[:, None] >> torch.arange(BITS, dtype=torch.uint8, device=bits.device)
    return (shifted & 1).bool().reshape(-1)[:N]
