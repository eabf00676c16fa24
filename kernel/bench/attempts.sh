#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The attempts at the goals that no GPU has run yet (KDTREE_ATTEMPT in src/verify_attn_split.cuh), with the shipped kernel
# between them: built, checked against fp64 by the selftest, timed by graph replay. One that is wrong is not timed.
#   kernel/bench/attempts.sh FOLDER build          any machine with nvcc; KDTREE_PYTHON names a Python with torch
#   kernel/bench/attempts.sh FOLDER run            a GPU host, with the same FOLDER; leaves FOLDER/attempt-N.json and .log
set -euo pipefail
folder=$(realpath -m "$1"); kernel=$(realpath "$(dirname "$0")/..")
python=${KDTREE_PYTHON:-python3}
points=1:1024:9,1:4096:9,1:16384:9,1:65536:9,1:185000:9,1:65536:16,1:65536:33,1:65536:65,4:65536:9,16:16384:9
case ${2:-} in
  build)
    for attempt in 0 1 2; do
      cmake -S "$kernel" -B "$folder/build-$attempt" -DKDTREE_PYTHON="$(command -v "$python")" -DKDTREE_ATTEMPT=$attempt
      cmake --build "$folder/build-$attempt" -j "$(nproc)"
      python3 "$kernel/tools/check_ptxas.py" "$folder/build-$attempt"
    done ;;
  run)
    for attempt in 0 1 2 0; do
      library=$folder/build-$attempt/libkdtree_torch.so
      if ! PYTHONPATH=$kernel/python "$python" -m kdtree_kernel.selftest --lib "$library" --device cuda; then
        echo "attempt $attempt is wrong: not timed" >&2
        continue
      fi
      PYTHONPATH=$kernel/python "$python" -m kdtree_kernel.bench --lib "$library" --no-triton --only $points \
        --out "$folder/attempt-$attempt.json" --commit "attempt $attempt" | tee -a "$folder/attempt-$attempt.log"
    done ;;
  *) echo "usage: attempts.sh FOLDER build|run" >&2; exit 2 ;;
esac
