"""Parts of the workloads that need no second rank."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace

import pytest
import torch

from tracekit.profile.plan import Options, make
from tracekit.workloads import Routing, RoutingKind, data, ep, model, serve, sleep

SPEC = make(Options(workload="ep", hidden=32, heads=4, seq=8, vocab=64, experts=8, top_k=2)).spec


class Alone:
    """A group of one rank."""

    def size(self) -> int:
        return 1

    def rank(self) -> int:
        return 0


def shares(routing: Routing, tokens: int = 2000) -> dict[int, float]:
    spec = replace(SPEC, routing=routing)
    chosen = ep.choose(spec, tokens, torch.Generator().manual_seed(0))
    assert chosen.shape == (tokens, 2)
    assert (chosen[:, 0] != chosen[:, 1]).all()  # a token visits an expert once
    counts = Counter(chosen.flatten().tolist())
    return {expert: counts[expert] / (2 * tokens) for expert in range(8)}


def test_balanced_is_exactly_even() -> None:
    assert set(shares(Routing()).values()) == {1 / 8}


def test_a_hot_expert_gets_exactly_its_share() -> None:
    found = shares(Routing(RoutingKind.HOT, expert=3, share=0.4))
    assert found[3] == 0.4
    assert all(share == pytest.approx(0.6 / 7, abs=0.02) for e, share in found.items() if e != 3)


def test_zipf_falls_with_the_number_of_the_expert() -> None:
    found = list(shares(Routing(RoutingKind.ZIPF, exponent=1.2)).values())
    assert found == sorted(found, reverse=True)
    assert found[0] > 3 * found[-1]


def test_zipf_with_one_expert_per_token_has_its_weights() -> None:
    spec = replace(SPEC, top_k=1, routing=Routing(RoutingKind.ZIPF, exponent=1.0))
    chosen = ep.choose(spec, 4000, torch.Generator().manual_seed(0))
    harmonic = sum(1 / n for n in range(1, 9))
    assert (chosen == 0).float().mean().item() == pytest.approx(1 / harmonic, abs=0.03)


def test_parameters_are_counted_once() -> None:
    dense = replace(SPEC, experts=0)
    whole = model.Transformer(dense, model.dense(dense))
    assert model.parameters(dense) == sum(p.numel() for p in whole.parameters())
    mixed = model.Transformer(SPEC, lambda layer: ep.Experts(SPEC, layer, Alone()))  # type: ignore[arg-type]
    assert model.parameters(SPEC) == sum(p.numel() for p in mixed.parameters())


def test_stages_hold_the_weights_of_the_whole_model() -> None:
    dense = replace(SPEC, experts=0)
    whole = model.Transformer(dense, model.dense(dense)).state_dict()
    first = model.Transformer(dense, model.dense(dense), 0, 2).state_dict()
    last = model.Transformer(dense, model.dense(dense), 1, 2).state_dict()
    assert torch.equal(
        first["blocks.0.attention.out.weight"], whole["blocks.0.attention.out.weight"]
    )
    assert torch.equal(
        last["blocks.0.attention.out.weight"], whole["blocks.1.attention.out.weight"]
    )
    assert torch.equal(last["head.weight"], whole["head.weight"])
    assert "head.weight" not in first
    assert "embed.weight" not in last


def test_batches_differ_by_step_and_replica_only() -> None:
    tokens, targets = data.read(SPEC, 3, 0, 4)
    assert tokens.shape == (4, 8)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
    assert torch.equal(tokens, data.read(SPEC, 3, 0, 4)[0])
    assert not torch.equal(tokens, data.read(SPEC, 4, 0, 4)[0])
    assert not torch.equal(tokens, data.read(SPEC, 3, 1, 4)[0])


def test_the_loader_gives_the_batches_in_order_of_steps() -> None:
    batches = data.Batches(SPEC, 1, torch.device("cpu"), 4)
    for step in range(3):
        assert torch.equal(next(batches)[0], data.read(SPEC, step, 1, 4)[0])
    batches.delay_s = 0.05
    before = time.perf_counter()
    next(batches)
    assert time.perf_counter() - before >= 0.05


def test_cached_decoding_gives_what_the_whole_sequence_gives() -> None:
    dense = replace(SPEC, experts=0)
    whole = model.Transformer(dense, model.dense(dense)).eval()
    cached = model.Transformer(dense, model.dense(dense))
    cache = model.KvCache(rows=6, capacity=8)
    serve.attach([cached], cache)
    tokens, _ = data.read(dense, 0, 0, 4)
    rows = torch.arange(2, 6)
    with torch.no_grad():
        expected = whole(tokens)
        torch.testing.assert_close(cached(tokens[:, :5], rows), expected[:, :5])
        for place in (5, 6, 7):
            cache.length = place
            token = tokens[:, place : place + 1]
            torch.testing.assert_close(cached(token, rows)[:, 0], expected[:, place])
    assert cache.bytes() == 2 * 2 * 6 * 4 * 8 * 8 * 4


def test_a_sleeping_layer_pauses_forward_and_backward() -> None:
    layer = sleep.SleepLayer(0.05)
    x = torch.ones(2, 3)  # needs no gradient, as the tokens of a first stage
    before = time.perf_counter()
    output = layer(x)
    middle = time.perf_counter()
    torch.autograd.backward(output.sum())
    assert 0.05 <= middle - before < 1
    assert 0.05 <= time.perf_counter() - middle < 1
    assert layer.scale.grad is not None
    assert layer.scale.grad.item() == 6
