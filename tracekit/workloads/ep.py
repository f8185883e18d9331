"""Expert parallelism: the experts of each layer are spread over the axis ``ep``.

Each token goes to its top-k experts and back by two uneven all-to-alls, forward
and backward. Who goes where follows the asked routing exactly, so that an
imbalance is a known fact; how much each expert counts is learned.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh

from tracekit.workloads import model
from tracekit.workloads.spec import Routing, RoutingKind, Spec


class Experts(nn.Module):
    """A mixture-of-experts layer; this rank holds ``experts / group size`` of them."""

    def __init__(self, spec: Spec, layer: int, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.spec, self.layer, self.group = spec, layer, group
        self.router = nn.Linear(spec.hidden, spec.experts, bias=False)
        torch.manual_seed(spec.seed * 1013 + layer * 127 + group.rank())
        self.held = nn.ModuleList(
            model.Mlp(spec.hidden) for _ in range(spec.experts // group.size())
        )
        self.first = group.rank() * len(self.held)  # number of the first expert held here
        self.calls = 0
        self.tokens: Tensor | None = None  # of each held expert in the latest call

    def forward(self, x: Tensor) -> Tensor:
        """(batch, seq, hidden) -> the same shape."""
        tokens = x.reshape(-1, x.shape[-1])
        weights = self.router(tokens).softmax(dim=-1)
        chosen = self._choose(len(tokens)).to(x.device)
        by_expert = chosen.flatten().argsort(stable=True)
        source = by_expert // self.spec.top_k  # row of `tokens` behind each assignment

        sent = torch.bincount(chosen.flatten(), minlength=self.spec.experts)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self.group)
        self.tokens = received.view(-1, len(self.held)).sum(dim=0)
        sent_rows = sent.view(self.group.size(), -1).sum(dim=1).tolist()
        received_rows = received.view(self.group.size(), -1).sum(dim=1).tolist()

        arrived = all_to_all_single_autograd(tokens[source], received_rows, sent_rows, self.group)
        done = self._run(arrived, received)
        returned = all_to_all_single_autograd(done, sent_rows, received_rows, self.group)
        weight = weights.gather(1, chosen).flatten()[by_expert]
        mixed = torch.zeros_like(tokens).index_add(0, source, returned * weight.unsqueeze(1))
        return mixed.view_as(x)

    def _run(self, arrived: Tensor, received: Tensor) -> Tensor:
        """Run the held experts on rows that lie by source rank, then by expert; keep that order."""
        local = torch.arange(len(self.held), device=arrived.device).repeat(self.group.size())
        by_expert = local.repeat_interleave(received).argsort(stable=True)
        assert self.tokens is not None
        parts = torch.split(arrived[by_expert], self.tokens.tolist())
        done = torch.cat([mlp(part) for mlp, part in zip(self.held, parts, strict=True)])
        return done[by_expert.argsort()]

    def _choose(self, tokens: int) -> Tensor:
        """The experts of each token, new in every call: (tokens, top_k) int64."""
        self.calls += 1
        place = (self.spec.seed * 1013 + self.layer) * 4099 + self.group.rank()
        generator = torch.Generator().manual_seed(place * 1_000_003 + self.calls)
        return choose(self.spec, tokens, generator)


def choose(spec: Spec, tokens: int, generator: torch.Generator) -> Tensor:
    """Distinct experts for each token, by the asked routing: (tokens, top_k) int64."""
    if spec.routing.kind is RoutingKind.BALANCED:
        first = torch.arange(tokens).unsqueeze(1) * spec.top_k
        return (first + torch.arange(spec.top_k)) % spec.experts
    # Gumbel noise on log-weights: the k largest are k draws without replacement.
    uniform = torch.rand(tokens, spec.experts, generator=generator).clamp_min(1e-20)
    scores = _log_weights(spec.routing, spec.experts) - (-uniform.log()).log()
    if spec.routing.kind is RoutingKind.HOT:
        hot = round(spec.routing.share * spec.top_k * tokens)  # tokens that visit the hot expert
        visits = torch.randperm(tokens, generator=generator) < hot
        scores[:, spec.routing.expert] = torch.where(visits, torch.inf, -torch.inf)
    return scores.topk(spec.top_k).indices


def _log_weights(routing: Routing, experts: int) -> Tensor:
    """(experts,) log of each expert's weight in the draw."""
    return -routing.exponent * torch.arange(1, experts + 1).log()


def experts(spec: Spec, mesh: DeviceMesh) -> model.FeedForward:
    """The feed-forward part of a model with experts."""
    group = mesh.get_group("ep")
    return lambda layer: Experts(spec, layer, group)
