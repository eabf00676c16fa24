# SPDX-License-Identifier: Apache-2.0
"""kdtree inside an SGLang process: decides which verify-attention calls kdtree's kernel answers, counts, reports.

    env         the KDTREE_* environment, read once            engines.json, fingerprint, probe   which engines are known
    hook        patches modules right after their import       verify, eligible    the verify path and its hand-backs
    control     follows the control file                       kernel, compare     loads and calls torch.ops.kdtree
    stats       writes the stats file                          graphs              the same under CUDA graphs
    patch       this process's state; side thread              sort, moe, rank     KV free-list sort, router load, ranks

Two ways in, one install(): bootstrap() from sitecustomize, install() as SGLang's plugin entry point.
"""
