// SPDX-License-Identifier: Apache-2.0
// The router's CUDA kernels' own source, emulated, against their CPU implementation.
#include "emulator/simt.h"
//
#include <gtest/gtest.h>

#include <random>

#include "moe_count.cuh"

namespace kdtree {
namespace {

struct Routing {
  int32_t layers, experts, ranks, tokens, columns, gap;
};

class Tables {
 public:
  explicit Tables(const Routing& routing)
      : routing_(routing),
        words_(words_of(kdtree_moe_table_bytes)),
        copy_(words_of(kdtree_moe_copy_bytes)) {}

  kdtree_moe_table table() {
    return {head(), routing_.layers, routing_.experts, routing_.ranks, 0};
  }
  kdtree_moe_head* head() { return reinterpret_cast<kdtree_moe_head*>(words_.data()); }
  kdtree_moe_head* copy() { return reinterpret_cast<kdtree_moe_head*>(copy_.data()); }
  std::vector<uint64_t> counters() const {
    return {words_.begin() + 1, words_.begin() + static_cast<std::ptrdiff_t>(copy_.size())};
  }
  std::vector<uint64_t> copied() const { return {copy_.begin() + 1, copy_.end()}; }

 private:
  std::size_t words_of(int64_t (*bytes)(int32_t, int32_t, int32_t)) const {
    return static_cast<std::size_t>(bytes(routing_.layers, routing_.experts, routing_.ranks) + 7) /
           8;
  }
  Routing routing_;
  std::vector<uint64_t> words_, copy_;
};

template <typename Id>
void count(const kdtree_moe_count_params& p, uint64_t seed) {
  const MoeCount made(p);
  simt::run({made.blocks(), kCountThreads, seed}, [&] {
    if (made.dense())
      count_kernel<Id, true>(made);
    else
      count_kernel<Id, false>(made);
  });
}

void end(Tables& tables, int32_t first, int32_t last, uint64_t seed) {
  simt::run({1, 1, seed}, [&] { open_kernel(tables.head(), tables.copy()); });
  EXPECT_EQ(tables.copy()->sequence % 2, 1U);
  simt::run({static_cast<unsigned>(last - first + 1), kEndThreads, seed},
            [&] { end_kernel(tables.table(), tables.copy(), first, last); });
  EXPECT_EQ(tables.copy()->sequence % 2, 0U);
}

template <typename Id>
void expect_the_same(const Routing& routing) {
  Tables emulated(routing), host(routing);
  std::mt19937 random(7);
  std::uniform_int_distribution<Id> any(-1, routing.experts);  // both ends are to be left out
  const int32_t stride = routing.columns + routing.gap;
  for (const int32_t rows : {routing.tokens, 1, 0, routing.tokens + 3, routing.tokens / 2}) {
    simt::run({1, 1, 3}, [&] { begin_kernel(emulated.head(), rows); });
    kdtree_moe_table table = host.table();
    ASSERT_EQ(kdtree_moe_begin_cpu(&table, rows), KDTREE_OK);
    for (int32_t layer = 1; layer < routing.layers; ++layer) {
      std::vector<Id> ids(static_cast<std::size_t>(routing.tokens) *
                          static_cast<std::size_t>(stride));
      for (Id& id : ids) id = any(random);
      kdtree_moe_count_params p{};
      p.struct_bytes = sizeof p;
      p.layer = layer;
      p.ids = ids.data();
      p.ids_stride = stride;
      p.ids_bits = 8 * sizeof(Id);
      p.tokens = routing.tokens;
      p.columns = routing.columns;
      p.table = emulated.table();
      count<Id>(p, static_cast<uint64_t>(layer));
      p.table = host.table();
      ASSERT_EQ(kdtree_moe_count_cpu(&p), KDTREE_OK);
    }
    end(emulated, 1, routing.layers - 1, static_cast<uint64_t>(rows));
    ASSERT_EQ(kdtree_moe_end_cpu(&table, host.copy(), 1, routing.layers - 1), KDTREE_OK);
    EXPECT_EQ(emulated.head()->rows, 0);
    EXPECT_EQ(emulated.copied(), host.copied());
  }
  std::vector<uint64_t> own = emulated.counters(), shown = emulated.copied();
  for (const std::size_t word : {2, 3}) own[word] = shown[word];  // rows, and what is reserved
  EXPECT_EQ(own, shown);
}

TEST(EmulatedMoe, CountsWhatTheCpuCounts) {
  for (const Routing& routing :
       {Routing{3, 384, 8, 9, 8, 0}, Routing{3, 384, 8, 9, 8, 1}, Routing{2, 1024, 256, 65, 8, 0},
        Routing{2, 60, 0, 40, 4, 0}, Routing{2, 16, 4, 3, 2, 6}, Routing{2, 7, 1, 1, 1, 0}}) {
    SCOPED_TRACE(routing.experts);
    expect_the_same<int32_t>(routing);
    expect_the_same<int64_t>(routing);
  }
}

}  // namespace
}  // namespace kdtree
