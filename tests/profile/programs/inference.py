"""A user's inference script: no optimizer, no process group."""

import sys
import time

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


model = Model()
end = time.monotonic() + float(sys.argv[1])
calls = 0
with torch.no_grad():
    while time.monotonic() < end or calls < 9:
        calls += 1
        model(torch.ones(4, 64))
        torch.nn.functional.gelu(torch.ones(4))
        time.sleep(0.01)
