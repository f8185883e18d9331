"""Named model sizes, as published; every number can be overridden by its own option."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Preset:
    """Size of a decoder-only transformer; layers None leaves their number to the pipeline."""

    hidden: int
    heads: int
    seq: int
    vocab: int
    layers: int | None = None
    experts: int = 8
    top_k: int = 2


PRESETS = {
    "tiny": Preset(hidden=256, heads=8, seq=64, vocab=512),
    "small": Preset(layers=8, hidden=512, heads=8, seq=256, vocab=8192),
    "gpt2": Preset(layers=12, hidden=768, heads=12, seq=1024, vocab=50304),
    "gpt2-xl": Preset(layers=48, hidden=1600, heads=25, seq=1024, vocab=50304),
    "llama-8b": Preset(layers=32, hidden=4096, heads=32, seq=4096, vocab=128256),
    "mixtral-8x7b": Preset(layers=32, hidden=4096, heads=32, seq=4096, vocab=32000),
}
