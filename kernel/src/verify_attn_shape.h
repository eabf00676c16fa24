// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// How a call is cut into blocks; host and device must agree, so it is said once, here.
namespace kdtree {

constexpr int kThreads = 256;
constexpr int kTileRows = 32;    // KV rows of one step
constexpr int kRowBytes = 1152;  // 576 elements of two bytes
constexpr int kMaxRowTiles = 5;  // 8-row tiles of queries that one block's registers hold
constexpr int kPieces = 32;      // 32-lane fragments that make up 8 rows of output: 8 warps times 4

// Rows (token * heads + head) go to `groups` blocks of 8 * row_tiles rows each.
struct Shape {
  int groups;
  int row_tiles;
  int nsplit;
};

// What taking a request up costs a block beside its units, in units: the pipeline runs empty, Q is
// loaded, a partial is written.
constexpr int kTakeUpUnits = 4;

// The chooser: as few groups as the registers allow, as many splits as fill the GPU once.
inline Shape make_shape(int draft_tokens, int heads, int nsplit, int multiprocessors) {
  const int rows = draft_tokens * heads;
  const int groups = (rows + 8 * kMaxRowTiles - 1) / (8 * kMaxRowTiles);
  const int tiles = (rows + 8 * groups - 1) / (8 * groups);
  const int chosen = multiprocessors / groups > 0 ? multiprocessors / groups : 1;
  return {groups, tiles, nsplit > 0 ? nsplit : chosen};
}

// The workspace: fp32 partial outputs in fragment order, then (maximum, sum) of each row of each
// partial. A block's partial for request b in split s has index s + b: both grow along a block's
// walk, so no two share one.
inline int64_t partials(const Shape& shape, int batch) {
  return (int64_t{shape.nsplit} + batch) * shape.groups;
}
inline int64_t output_bytes(const Shape& shape, int batch) {
  return partials(shape, batch) * shape.row_tiles * 8 * 512 * 4;
}
inline int64_t statistics_bytes(const Shape& shape, int batch) {
  return partials(shape, batch) * shape.row_tiles * 8 * 8;
}

}  // namespace kdtree
