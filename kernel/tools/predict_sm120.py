# SPDX-License-Identifier: Apache-2.0
"""A roofline model of the split kernel on an RTX PRO 6000 (sm_120), from its ablations on an H200. A prediction: never run there.

A step is 32 KV rows in a block. On the H200 its slope over length is split into what remains without loads and matrix
instructions (`rest`), the matrix instructions, and the loads that they don't hide (`exposed`); what is left at length 0 is
`fixed`. On sm_120 rest, exposed and fixed are taken over as they are, the matrix part is that GPU's full rate, and a
step takes no less than its rows take from DRAM.
"""

from typing import Any

MULTIPROCESSORS, MATRIX_FLOP_PER_S, DRAM_BYTES_PER_S = 188, 503.8e12, 1674.5e9  # data sheet; the last measured on a 5090
STEP_ROWS, TAKE_UP_UNITS, MOST_TILES = 32, 4, 5
FLOP_PER_STEP_AND_TILE = STEP_ROWS * 8 * 2 * (576 + 512)


def measured(attempts: dict[str, Any]) -> dict[str, float]:
    """rest, matrix, exposed (microseconds a step) and fixed (microseconds a call) on the H200, n 9."""
    slope = {v["name"]: v["us_per_step"] for v in attempts["variants"]}
    whole, still = slope["shipped kernel: whole"], slope["shipped kernel: neither loads nor matrix instructions"]
    no_loads = slope["shipped kernel: no loads"]
    at_65k = next(v["us"]["1x65536x9"] for v in attempts["variants"] if v["name"] == "shipped kernel: whole")
    return {"rest": still, "matrix": no_loads - still, "exposed": whole - no_loads, "fixed": at_65k - 32 * whole}


def predict(attempts: dict[str, Any], context: int, n: int) -> dict[str, Any]:
    """{"us", "bound": "dram" | "kernel"} for batch 1, 8 heads."""
    h200 = measured(attempts)
    groups = -(-n // MOST_TILES)
    tiles = -(-n // groups)
    nsplit = MULTIPROCESSORS // groups
    steps = -(-(-(-(context + n) // STEP_ROWS) + TAKE_UP_UNITS) // nsplit)
    matrix = tiles * FLOP_PER_STEP_AND_TILE / (MATRIX_FLOP_PER_S / MULTIPROCESSORS) * 1e6
    kernel = h200["rest"] + matrix + h200["exposed"]
    dram = nsplit * STEP_ROWS * 1152 / DRAM_BYTES_PER_S * 1e6
    return {"us": h200["fixed"] + steps * max(kernel, dram), "bound": "dram" if dram > kernel else "kernel"}
