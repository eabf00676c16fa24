// SPDX-License-Identifier: Apache-2.0
// The CUDA kernels' own source, emulated, against the fp64 reference: index arithmetic, fragments,
// masks, pipelines and barriers. Both extremes of when an asynchronous copy lands, threads and
// blocks in random order.
#include "emulator/simt.h"
//
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "emulator/scene.h"
#define load_index device_load_index  // host_view.h has the host's
#include "verify_attn_combine.cuh"
#include "verify_attn_walk.cuh"

namespace kdtree {
namespace {

template <typename T, int kTiles, bool kFp8>
void launch(const kdtree_verify_attn_params& p, const Shape& shape, const simt::Block& how) {
  auto* statistics =
      reinterpret_cast<float2*>(static_cast<char*>(p.workspace) + output_bytes(shape, p.batch));
  simt::Block block = how;
  block.threads = kThreads;
  block.grid = static_cast<unsigned>(shape.groups * shape.nsplit);
  simt::run(block,
            [&] { split_kernel<T, kTiles, kFp8>(p, shape.groups, shape.nsplit, statistics); });
  block.grid = static_cast<unsigned>(p.batch * shape.groups * shape.row_tiles * (kPieces / 4));
  simt::run(block, [&] {
    combine_kernel<T, 4, kFp8>(p, shape.groups, shape.row_tiles, shape.nsplit, statistics);
  });
}

template <typename T, bool kFp8>
void launch(const kdtree_verify_attn_params& p, const Shape& shape, const simt::Block& how) {
  switch (shape.row_tiles) {
    case 1:
      return launch<T, 1, kFp8>(p, shape, how);
    case 2:
      return launch<T, 2, kFp8>(p, shape, how);
    case 3:
      return launch<T, 3, kFp8>(p, shape, how);
    case 4:
      return launch<T, 4, kFp8>(p, shape, how);
    default:
      return launch<T, 5, kFp8>(p, shape, how);
  }
}

template <typename Cuda, typename Host, bool kFp8>
void expect_right(const emulator::SceneShape& wanted, double tolerance, simt::Copies copies) {
  emulator::Scene<Host, kFp8> scene(wanted);
  kdtree_verify_attn_params p = scene.params();
  const Shape shape = make_shape(p.draft_tokens, p.heads, wanted.nsplit, 4);
  std::vector<char> workspace(
      static_cast<std::size_t>(output_bytes(shape, p.batch) + statistics_bytes(shape, p.batch)) +
      256);
  p.workspace = workspace.data() + 256 - reinterpret_cast<uintptr_t>(workspace.data()) % 256;
  std::memset(p.workspace, 0xff, workspace.size() - 256);
  launch<Cuda, kFp8>(p, shape, {.grid = 0, .threads = 0, .seed = 5, .copies = copies});
  EXPECT_LT(scene.worst_difference(p), tolerance);
}

using emulator::SceneShape;

// Every number of row tiles, more than one group, tails of a tile and whole tiles, empty prefixes,
// requests cut by a split's border.
const std::vector<SceneShape> kShapes = {
    {{70}, 1, 8, 2},  {{0}, 3, 4, 1},       {{32, 1}, 3, 8, 3}, {{33, 0, 64}, 4, 8, 2},
    {{200}, 9, 8, 2}, {{31, 100}, 5, 8, 4}, {{5}, 33, 1, 1},
};

class Emulated : public testing::TestWithParam<simt::Copies> {};

TEST_P(Emulated, Bf16) {
  for (const auto& shape : kShapes)
    expect_right<__nv_bfloat16, Bf16, false>(shape, 8e-3, GetParam());
}
TEST_P(Emulated, Fp16) {
  for (const auto& shape : kShapes) expect_right<__half, Fp16, false>(shape, 2e-3, GetParam());
}
TEST_P(Emulated, Bf16OverE4m3) {
  for (const auto& shape : kShapes)
    expect_right<__nv_bfloat16, Bf16, true>(shape, 8e-3, GetParam());
}
TEST_P(Emulated, Fp16OverE4m3) {
  for (const auto& shape : kShapes) expect_right<__half, Fp16, true>(shape, 2e-3, GetParam());
}

INSTANTIATE_TEST_SUITE_P(, Emulated, testing::Values(simt::Copies::early, simt::Copies::late),
                         [](const auto& info) {
                           return info.param == simt::Copies::early ? "copies_land_early"
                                                                    : "copies_land_late";
                         });

}  // namespace
}  // namespace kdtree
