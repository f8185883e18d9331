"""Which kernels a transformer launches, by which operators, and how long they typically take."""

from __future__ import annotations

_ATEN = "void at::native::"
_GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_cublas"
_MLP_GEMM = "nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_TNT"
_NORM = _ATEN + "(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float, false>"
_NORM_GRAD = _ATEN + "(anonymous namespace)::layer_norm_grad_input_kernel_vectorized<c10::BFloat16>"
ADD = _ATEN + "vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16> >"
_GELU = _ATEN + "vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl>(int)"
_ATTENTION = "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4> >(Flash_fwd_params)"
_ATTENTION_GRAD = "void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128> >"
ADAM = _ATEN + "(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4> >"
_SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<c10::BFloat16, float, 11, true>"
EMBEDDING = _ATEN + "(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16, long>"

Work = tuple[str, str, float]  # operator, kernel, µs
ATTENTION: tuple[Work, ...] = (
    ("aten::native_layer_norm", _NORM, 20),
    ("aten::mm", _GEMM, 180),
    ("aten::_flash_attention_forward", _ATTENTION, 150),
    ("aten::mm", _GEMM, 80),
)
BETWEEN: tuple[Work, ...] = (("aten::add", ADD, 15), ("aten::native_layer_norm", _NORM, 20))
MLP: tuple[Work, ...] = (
    ("aten::mm", _MLP_GEMM, 220),
    ("aten::gelu", _GELU, 30),
    ("aten::mm", _MLP_GEMM, 210),
)
MLP_GRAD: tuple[Work, ...] = (
    ("aten::mm", _MLP_GEMM, 215),
    ("aten::mm", _GEMM, 220),
    ("aten::gelu_backward", _GELU, 45),
    ("aten::mm", _MLP_GEMM, 225),
    ("aten::mm", _GEMM, 218),
)
BETWEEN_GRAD: tuple[Work, ...] = (("aten::native_layer_norm_backward", _NORM_GRAD, 40),)
ATTENTION_GRAD: tuple[Work, ...] = (
    ("aten::mm", _MLP_GEMM, 85),
    ("aten::mm", _GEMM, 82),
    ("aten::_flash_attention_backward", _ATTENTION_GRAD, 340),
    ("aten::mm", _MLP_GEMM, 185),
    ("aten::mm", _GEMM, 182),
    ("aten::native_layer_norm_backward", _NORM_GRAD, 40),
)
HEAD: tuple[Work, ...] = (("aten::mm", _GEMM, 150), ("aten::_log_softmax", _SOFTMAX, 60))
HEAD_GRAD: tuple[Work, ...] = (("aten::mm", _GEMM, 150), ("aten::mm", _MLP_GEMM, 150))

_SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
COMMUNICATION = {
    "allreduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "all_to_allv": _SEND_RECV,
    "send": _SEND_RECV,
    "recv": _SEND_RECV,
}
