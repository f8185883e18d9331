"""A user's training script: DDP in a plain loop, data loader workers, no thought of profiling."""

import argparse
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=8)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--crash", type=int, default=-1)
parser.add_argument("--code", type=int, default=0)
parser.add_argument("--own-profiler", action="store_true")
arguments = parser.parse_args()

distributed = "RANK" in os.environ
if distributed:
    dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
if distributed:
    model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
other = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
data = TensorDataset(torch.randn(16 * arguments.steps, 32))
for step, (batch,) in enumerate(DataLoader(data, batch_size=16, num_workers=arguments.workers)):
    if step == arguments.crash:
        raise RuntimeError("a bug in the script")
    if arguments.own_profiler and step == 5:
        with torch.profiler.profile() as own:
            model(batch).sum().backward()
        assert own.events()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    other.step()
    optimizer.zero_grad()
print(f"finished with loss {loss.item():.4f}")
if distributed:
    dist.destroy_process_group()
sys.exit(arguments.code)
