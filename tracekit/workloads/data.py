"""Where a rank's batches come from: a data loader over a rule that can be learned."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from tracekit.workloads.spec import Spec

Batch = tuple[Tensor, Tensor]


class Batches(IterableDataset[Batch]):
    """The batches of one replica, one per step, read through torch's own loader.

    Each token follows its predecessor by a fixed rule, so there is something to learn.
    """

    def __init__(self, spec: Spec, replica: int, device: torch.device, rows: int) -> None:
        self.spec, self.replica, self.device, self.rows = spec, replica, device, rows
        self.delay_s = 0.0
        self._reader: Iterator[Batch] = iter(DataLoader(self, batch_size=None))

    def __iter__(self) -> Iterator[Batch]:
        step = 0
        while True:
            if self.delay_s:
                time.sleep(self.delay_s)
            yield read(self.spec, step, self.replica, self.rows)
            step += 1

    def __next__(self) -> Batch:
        """The tokens of the next step and the tokens that follow them: (rows, seq) int64 each."""
        tokens, targets = next(self._reader)
        return tokens.to(self.device), targets.to(self.device)


def read(spec: Spec, step: int, replica: int, rows: int) -> Batch:
    """The batch of one step, the same for every rank of one replica.

    Returns:
        Two (rows, seq) int64 tensors.
    """
    generator = torch.Generator().manual_seed(spec.seed * 7919 + step * 104729 + replica)
    start = torch.randint(spec.vocab, (rows, 1), generator=generator)
    tokens = (start + 7 * torch.arange(spec.seq + 1)) % spec.vocab
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
