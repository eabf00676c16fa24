# SPDX-License-Identifier: Apache-2.0
"""Stands in for sgl-deep-gemm where a GPU host lacks it: SGLang's EAGLE worker imports it for an isinstance check, and calls
nothing of it with bf16 weights and the Triton backend."""
