#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that wants a GPU, in one go: tests, compute-sanitizer, HMMA in the machine code, benchmark. Needs a built
# library, pytest and a CUDA toolkit's compute-sanitizer and cuobjdump on PATH; leaves FOLDER/{verify-h200,verify-h200-fp8,sweep-h200,observe}.json and gpu.log
# (another GPU's report is named like that too). SGLang's kernel is timed beside ours if python3 can import it;
# KDTREE_SGLANG=FOLDER is added to the benchmark's PYTHONPATH.
#   tests/kernel/run_gpu.sh LIBRARY FOLDER [COMMIT]
set -uo pipefail
library=$(realpath "$1"); out=$2; commit=${3:-$(git rev-parse --short HEAD 2>/dev/null || echo unknown)}
cd "$(dirname "$0")/../.."
mkdir -p "$out"
failed=0
check() { local what=$1; shift; echo "== $what"; "$@" || { echo "FAILED: $what"; failed=1; }; }
{
  echo "date $(date -u +%FT%TZ), commit $commit"
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
  driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -1)
  hmma=$(cuobjdump --dump-sass "$(dirname "$library")/libkdtree.so" | grep -c HMMA)
  check "machine code uses the matrix units: $hmma HMMA" test "$hmma" -gt 0
  check selftest env PYTHONPATH=kernel/python python3 -m kdtree_kernel.selftest --lib "$library" --device cuda
  check tests env KDTREE_TEST_LIB="$library" python3 -m pytest -q -rs -p no:cacheprovider tests/kernel -k "cuda or gpu or graph_replay or captur or fault or split or beyond or workspace or wrong_device or before"
  for tool in memcheck racecheck initcheck synccheck; do
    check "compute-sanitizer $tool" compute-sanitizer --tool "$tool" --error-exitcode 9 --kernel-name-exclude regex="at::.*" python3 tests/kernel/sanitize.py "$library"
  done
  check "what observing costs" python3 kernel/bench/bench_observe.py --lib "$library" --out "$out/observe.json" --commit "$commit" --driver "$driver"
  check benchmark env PYTHONPATH="kernel/python${KDTREE_SGLANG:+:$KDTREE_SGLANG}" python3 -m kdtree_kernel.bench --lib "$library" --out "$out/verify-h200.json" --commit "$commit"
  check "benchmark, fp8" env PYTHONPATH="kernel/python${KDTREE_SGLANG:+:$KDTREE_SGLANG}" python3 -m kdtree_kernel.bench --kv fp8_e4m3 --lib "$library" --out "$out/verify-h200-fp8.json" --commit "$commit"
  check "sweep of nsplit" env PYTHONPATH=kernel/python python3 -m kdtree_kernel.bench --sweep nsplit --lib "$library" --out "$out/sweep-h200.json"
  [ "$failed" = 0 ] && echo "ALL PASSED" || echo "SOME FAILED"
} 2>&1 | tee "$out/gpu.log"
grep -q '^ALL PASSED$' "$out/gpu.log"
