#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# kdtree-agent beside nvidia-smi on a host with a real GPU.
#   tests/agent/run_gpu.sh AGENT FOLDER     AGENT: the built kdtree-agent (its libraries on LD_LIBRARY_PATH)
# Leaves FOLDER/agent-gpu.json (what both said, what the agent and the driver's library cost) and the scrapes. About 3 minutes;
# nothing but python3 and nvidia-smi is needed, and torch where the GPU shall be kept busy. Keep the JSON in tests/agent/results.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
agent=${1:?run_gpu.sh AGENT FOLDER}
out=${2:?run_gpu.sh AGENT FOLDER}
mkdir -p "$out"
command -v nvidia-smi >/dev/null || { echo "run_gpu.sh: no nvidia-smi here" >&2; exit 3; }
"$agent" --version >/dev/null || { echo "run_gpu.sh: $agent doesn't run here; are its libraries on LD_LIBRARY_PATH?" >&2; exit 3; }
exec timeout 420 python3 "$here/measure_gpu.py" "$agent" "$out"
