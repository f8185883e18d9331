"""What a layer costs: its kernels forward and backward, as shares of the layer's time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KernelClass:
    """A kind of kernel: what it is called by whom.

    Attributes:
        name: short name, the key of ``Spec.contention``.
        operator: the operator that launches it.
        kernel: its name on the device.
        grid, block: its launch shape.
    """

    name: str
    operator: str
    kernel: str
    grid: tuple[int, int, int] = (132, 1, 1)
    block: tuple[int, int, int] = (128, 1, 1)


def _gemm(name: str, tile: str, grid: int) -> KernelClass:
    kernel = f"sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize{tile}_warpgroupsize1x1x1_cublas"
    return KernelClass(name, "aten::mm", kernel, (grid, 1, 1), (384, 1, 1))


def _elementwise(name: str, operator: str, functor: str) -> KernelClass:
    kernel = f"void at::native::vectorized_elementwise_kernel<4, at::native::{functor}>(int)"
    return KernelClass(name, operator, kernel, (2048, 1, 1), (128, 1, 1))


CLASSES = {
    item.name: item
    for item in (
        KernelClass(
            "norm",
            "aten::native_layer_norm",
            "void at::native::vectorized_layer_norm_kernel<c10::BFloat16, float>(int, float)",
            (1024, 1, 1),
        ),
        _gemm("qkv", "128x128x64", 96),
        KernelClass(
            "attention",
            "aten::_flash_attention_forward",
            "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>(Flash_fwd_params)",
            (8, 1, 8),
        ),
        _gemm("projection", "128x64x64", 64),
        _gemm("up", "128x256x64", 128),
        _elementwise("gelu", "aten::gelu", "GeluCUDAKernelImpl"),
        _gemm("down", "256x128x64", 64),
        _gemm("router", "64x64x64", 8),
        KernelClass(
            "experts",
            "aten::_grouped_mm",
            "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<GroupProblemShape>>",
            (132, 1, 1),
            (384, 1, 1),
        ),
        KernelClass(
            "attention_backward",
            "aten::_flash_attention_backward",
            "void flash_bwd_dq_dk_dv_loop_kernel<Flash_bwd_kernel_traits<128>>(Flash_bwd_params)",
            (8, 1, 8),
        ),
        KernelClass(
            "norm_backward",
            "aten::native_layer_norm_backward",
            "void at::native::layer_norm_grad_input_kernel<c10::BFloat16, float>(int)",
            (1024, 1, 1),
        ),
        _elementwise("gelu_backward", "aten::gelu_backward", "GeluBackwardCUDAKernelImpl"),
        _gemm("layer", "128x256x64", 132),
        KernelClass(
            "optimizer",
            "aten::_fused_adamw_",
            "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float>>(float)",
            (320, 1, 1),
            (512, 1, 1),
        ),
    )
}  # fmt: skip

# Steps of a layer's forward: (class, share of the layer's time), or what is communicated there.
Part = tuple[str, float]
ATTENTION: tuple[Part, ...] = (
    ("norm", 0.04), ("qkv", 0.22), ("attention", 0.22), ("projection", 0.10),
)  # fmt: skip
DENSE: tuple[Part, ...] = (("norm", 0.04), ("up", 0.20), ("gelu", 0.03), ("down", 0.15))
ROUTER: tuple[Part, ...] = (("norm", 0.04), ("router", 0.03))
EXPERTS: tuple[Part, ...] = (("experts", 0.35),)
FUSED: tuple[Part, ...] = (("layer", 1.0),)

# Weight gradients come from matrix products only.
_WITH_WEIGHTS = frozenset({"qkv", "projection", "up", "down", "router", "experts", "layer"})
_BACKWARD_NAMES = {
    "attention": "attention_backward",
    "norm": "norm_backward",
    "gelu": "gelu_backward",
}


def backward(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """The kernels of the input gradients of these forward kernels, last first."""
    return tuple((_BACKWARD_NAMES.get(name, name), share) for name, share in reversed(parts))


def weights(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """The kernels of the weight gradients; their shares sum to 1."""
    chosen = [(name, share) for name, share in reversed(parts) if name in _WITH_WEIGHTS]
    total = sum(share for _, share in chosen)
    return tuple((name, share / total) for name, share in chosen)
