# SPDX-License-Identifier: Apache-2.0
"""What a publication of the stats file holds."""
from .stats import Batches, Section


def report(patch: object) -> tuple[dict[str, object], Batches, list[Section]]:
    """Of a patch.Patch: header fields by name, calls and compares by batch size, sections; what nobody knows yet is left
    out."""
    c, ranks = patch.counters, patch.ranks
    values: dict[str, object] = {
        "tp_rank": ranks.tp_rank, "tp_size": ranks.tp_size, "moe_ep_rank": ranks.moe_ep_rank,
        "moe_ep_size": ranks.moe_ep_size, "device_uuid": patch.device[0], "device_name": patch.device[1],
        "environment_sha256": patch.digest, "patch_state": patch.state, "mode": patch.mode, "reason": patch.reason,
        "control_generation": patch.generation, "sort_state": patch.sort_state, "graphs": patch.graphs_state,
        "calls_kernel": c.calls_kernel, "calls_engine": c.calls_engine, "handed_back": list(c.handed_back)}
    if patch.settings is not None:
        values["start_mode"] = patch.settings.mode
    values.update(release_id=patch.release_id, torch_version=patch.torch_version)
    if patch.engine is not None:
        values.update(engine_version=patch.engine.version, engine_fingerprint=patch.engine.fingerprint)
    calls, compares = dict(c.batches), {}
    if patch.kernel is not None:
        values["library_sha256"] = patch.kernel.library_sha256
        compared, compares = patch.kernel.accumulator.values()
        values.update(compared, **patch.kernel.slot_counts.values())
    if patch.graphs is not None:
        patch.graphs.add_counts(values, calls)
    sections: list[Section] = []
    if patch.moe is not None:
        routed, sections = patch.moe.read()
        values.update(routed)
    return values, {size: (compares.get(size, 0), calls.get(size, 0)) for size in {*calls, *compares}}, sections
