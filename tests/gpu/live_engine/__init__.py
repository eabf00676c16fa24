# SPDX-License-Identifier: Apache-2.0
"""A real SGLang server on a GPU host, kdtree in it as on a user's host, and what is measured and proven there.

    model      config-only models, one TP8 rank of Kimi K2.x each      server    one running server and its log
    release    kdtree built and laid out as deploy does                load      requests, and the time of each step
    records    what is written down, and what must not be merged       context   what a stage is given
    speed, switch, agree, faults, moe, host                            one stage each
"""
