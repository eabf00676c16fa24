# SPDX-License-Identifier: Apache-2.0
"""The demo's last page: what changed on the host, what was compared, what was served. Pure: facts in, text out."""

from __future__ import annotations

from typing import Any, Mapping

from kdtree_host import stats_format

_REASONS = dict(enumerate(stats_format.BACK_NAMES))


def compared(ranks: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """What validate compared, over all ranks: counts are sums, differences and prefix the largest."""
    return {
        "compares": sum(rank["compares"] for rank in ranks.values()),
        "fewest_on_a_rank": min(rank["compares"] for rank in ranks.values()),
        "mismatches": sum(rank["mismatches"] for rank in ranks.values()),
        "max_ulp": max(rank["max_ulp"] for rank in ranks.values()),
        "max_abs": max(rank["max_abs"] for rank in ranks.values()),
        "longest_prefix": max(rank["longest_prefix"] for rank in ranks.values()),
        "batches": sorted({batch for rank in ranks.values() for batch in rank["batches"]}),
    }


def served(ranks: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Who answered verify calls, over all ranks, and why calls were handed back."""
    handed_back = {}
    for rank in ranks.values():
        for index, count in enumerate(rank["handed_back"]):
            if count:
                reason = _REASONS.get(index, f"reason {index}")
                handed_back[reason] = handed_back.get(reason, 0) + count
    return {"kernel": sum(rank["calls_kernel"] for rank in ranks.values()),
            "engine": sum(rank["calls_engine"] for rank in ranks.values()), "handed_back": handed_back}


def changed(before: Mapping[str, tuple], after: Mapping[str, tuple]) -> list[str]:
    """Paths that are new, gone or different; of a release only its folder."""
    lines = []
    releases: dict[str, list[tuple]] = {}
    for path in sorted(set(before) | set(after)):
        if before.get(path) == after.get(path):
            continue
        parts = path.split("/")
        if path.startswith("/opt/kdtree/releases/") and len(parts) > 4:
            releases.setdefault("/".join(parts[:5]), []).append(after.get(path))
        elif path not in before and isinstance(after[path][3], bytes):
            lines.append(f"+ {path}  ({len(after[path][3])} bytes)")
        elif path not in before and isinstance(after[path][3], str):
            lines.append(f"+ {path} -> {after[path][3]}")
        elif path not in after:
            lines.append(f"- {path}")
        elif path in before and not isinstance(after[path][3], (bytes, str)):
            lines.append(f"~ {path}  (owner or mode)")
        elif path in before:
            lines.append(f"~ {path}")
    for folder, entries in releases.items():
        held = [entry[3] for entry in entries if entry and isinstance(entry[3], bytes)]
        lines.append(f"+ {folder}/  ({len(held)} files, {sum(map(len, held)) / 2**20:.1f} MiB)")
    return lines


def text(facts: Mapping[str, Any]) -> str:
    """The page."""
    cpu = facts["device"] == "cpu"
    where = "CPU implementation" if cpu else "GPU"
    validate, on, seen = facts["validate"], facts["served"], facts["prometheus"]
    tokens = facts["tokens"]
    same = "the same tokens" if tokens["plain"] == tokens["validate"] == tokens["on"] == tokens["after"] else "NOT the same tokens"
    broken = facts["history"][-1]
    rows = [("changed on the host", changed(facts["files_before"], facts["files_after"])
             + [f"  {line}" for line in ("the engine's own unit file: " + ("untouched" if facts["unit_before"] == facts["unit_after"] else "CHANGED"),)]),
            ("validate compared", [f"{validate['compares']} calls on {facts['ranks']} ranks ({where}), at least {validate['fewest_on_a_rank']} on each, "
                                   f"batch sizes {', '.join(map(str, validate['batches']))}, prefixes up to {validate['longest_prefix']} tokens",
                                   f"{validate['mismatches']} over tolerance; largest difference {validate['max_ulp']:.3g} ULP, {validate['max_abs']:.3g} absolute"]),
            ("the patch served", [f"{on['kernel']} verify calls by kdtree's kernel ({where}), {on['engine']} by the engine's own (modes off and validate)",
                                  f"a fixed prompt gave {same} before kdtree, in validate, in on, and after the rollback"]),
            ("handed back", [f"{count} calls: {reason}" for reason, count in on["handed_back"].items()] or ["none"]),
            ("live switches", [f"off -> validate {facts['to_validate_s']:.1f} s, validate -> on {facts['to_on_s']:.1f} s, no restart"]),
            ("broken change", [f"{broken['result']} in {facts['broken_s']:.0f} s: {broken['reason'][:110]}…"]),
            ("Prometheus saw", [f"{seen['gpus']} GPUs{' (simulated)' if cpu else ''}, {seen['ranks_on']} ranks in mode on, "
                                f"calls by {', '.join(f'{who} {count}' for who, count in sorted(seen['calls'].items()))} since the last start; "
                                f"alerts firing: {', '.join(seen['alerts']) or 'none'}"])]
    lines = [f"Summary ({facts['seconds']:.0f} s" + (", no GPU: CPU implementation throughout" if cpu else "") + ")"]
    for name, values in rows:
        for index, value in enumerate(values):
            lines.append(f"  {name if index == 0 else '':<20} {value}")
    return "\n".join(lines)


def plain(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts without file contents, for a JSON file."""
    out = {name: value for name, value in facts.items() if name not in ("files_before", "files_after")}
    out["changed"] = changed(facts["files_before"], facts["files_after"])
    return out
