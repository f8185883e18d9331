"""A program that records its own loop with tracekit.profile."""

import os
import sys

import torch
import torch.distributed as dist

import tracekit

if "RANK" in os.environ:
    dist.init_process_group("gloo")
with tracekit.profile(sys.argv[1], warmup=1, active=2, repeat=2) as profiler:
    for step in range(8):
        x = torch.ones(16) * step
        if dist.is_initialized():
            dist.all_reduce(x)
        profiler.step()
        if len(sys.argv) > 2 and step == int(sys.argv[2]):
            raise ValueError("a bug in the loop")
if dist.is_initialized():
    dist.destroy_process_group()
