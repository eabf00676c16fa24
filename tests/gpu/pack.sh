#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Packs SGLang 0.5.17 and what it imports into one archive for a GPU host that reaches no package index but already has
# Python 3.12 with torch 2.11.0 and the usual numeric packages (README.md). About 55 MB; a few minutes.
#   PYTHON=python3.12 tests/gpu/pack.sh OUT.tar.xz
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$(realpath "$1")
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
platforms=(); for n in 39 35 34 31 28 27 24 17; do platforms+=(--platform "manylinux_2_${n}_x86_64"); done
"${PYTHON:-python3}" -m pip install -q --disable-pip-version-check --no-deps --no-compile --target "$site" \
  --python-version 3.12 --implementation cp --only-binary=:all: "${platforms[@]}" --platform manylinux2014_x86_64 \
  --platform manylinux1_x86_64 --platform linux_x86_64 -r "$here/pins.txt"
cd "$site"
# Not imported by a Triton-backend server on sm_90: FlashAttention kernels, other architectures, static libraries, data.
rm -rf bin sgl_kernel/flash_ops* sgl_kernel/infllm_ops* sgl_kernel/flashmla_ops* sgl_kernel/sm100 sglang/test xgrammar/lib/*.a \
       zstandard/_cffi* torchao/_C_cutlass* pycountry/locales mistral_common/data/* \
       flashinfer/data/cutlass/{test,examples,media,docs,python}
find . -name '*.so*' -exec strip -g {} +
tar -cf - . | nice xz -T0 -6 >"$out"
ls -l "$out"
