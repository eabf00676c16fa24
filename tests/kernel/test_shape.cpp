// SPDX-License-Identifier: Apache-2.0
// How a call is cut into blocks: the chooser for the GPUs that are known here, and what must
// hold on any.
#include <gtest/gtest.h>
#include <verify_attn_shape.h>

#include <fstream>
#include <iterator>
#include <ostream>
#include <sstream>
#include <string>
#include <vector>

namespace kdtree {

static bool operator==(const Shape& a, const Shape& b) {
  return a.groups == b.groups && a.row_tiles == b.row_tiles && a.nsplit == b.nsplit;
}
static std::ostream& operator<<(std::ostream& out, const Shape& shape) {
  return out << shape.groups << " x " << shape.row_tiles << ", " << shape.nsplit;
}

namespace {

constexpr int kH200 = 132;
constexpr int kRtxPro6000 = 188;

struct Row {
  int draft_tokens, heads;
  Shape h200, rtx_pro_6000;
};

const std::vector<Row> kTable = {
    {1, 8, {1, 1, 132}, {1, 1, 188}},  {2, 8, {1, 2, 132}, {1, 2, 188}},
    {4, 8, {1, 4, 132}, {1, 4, 188}},  {8, 8, {2, 4, 66}, {2, 4, 94}},
    {9, 8, {2, 5, 66}, {2, 5, 94}},    {12, 8, {3, 4, 44}, {3, 4, 62}},
    {16, 8, {4, 4, 33}, {4, 4, 47}},   {17, 8, {4, 5, 33}, {4, 5, 47}},
    {31, 8, {7, 5, 18}, {7, 5, 26}},   {33, 8, {7, 5, 18}, {7, 5, 26}},
    {61, 8, {13, 5, 10}, {13, 5, 14}}, {65, 8, {13, 5, 10}, {13, 5, 14}},
    {128, 8, {26, 5, 5}, {26, 5, 7}},  {1, 16, {1, 2, 132}, {1, 2, 188}},
    {9, 16, {4, 5, 33}, {4, 5, 47}},   {16, 16, {7, 5, 18}, {7, 5, 26}},
    {65, 16, {26, 5, 5}, {26, 5, 7}},  {9, 4, {1, 5, 132}, {1, 5, 188}},
    {9, 64, {15, 5, 8}, {15, 5, 12}},  {128, 128, {410, 5, 1}, {410, 5, 1}},
};

TEST(Shape, TableOfKnownGpus) {
  for (const auto& row : kTable) {
    SCOPED_TRACE(testing::Message() << "n " << row.draft_tokens << ", heads " << row.heads);
    EXPECT_EQ(make_shape(row.draft_tokens, row.heads, 0, kH200), row.h200);
    EXPECT_EQ(make_shape(row.draft_tokens, row.heads, 0, kRtxPro6000), row.rtx_pro_6000);
  }
}

TEST(Shape, ReadmeShowsTheTable) {
  std::ifstream file(KDTREE_KERNEL_README);
  const std::string readme((std::istreambuf_iterator<char>(file)),
                           std::istreambuf_iterator<char>());
  for (const auto& row : kTable) {
    std::ostringstream line;
    line << "| " << row.draft_tokens << " | " << row.heads << " | " << row.h200 << " | "
         << row.rtx_pro_6000 << " |\n";
    EXPECT_NE(readme.find(line.str()), std::string::npos) << line.str();
  }
}

TEST(Shape, EveryRowHasAPlaceAndNoGroupIsEmpty) {
  for (const int multiprocessors : {1, 2, 3, 46, kH200, kRtxPro6000})
    for (int heads = 1; heads <= 128; ++heads)
      for (int n = 1; n <= 128; ++n) {
        const Shape shape = make_shape(n, heads, 0, multiprocessors);
        const int rows = n * heads;
        ASSERT_GE(shape.row_tiles, 1);
        ASSERT_LE(shape.row_tiles, kMaxRowTiles);
        ASSERT_GE(shape.groups * shape.row_tiles * 8, rows) << n << " x " << heads;
        ASSERT_LT((shape.groups - 1) * shape.row_tiles * 8, rows) << n << " x " << heads;
        ASSERT_GE(shape.nsplit, 1);
      }
}

TEST(Shape, OneWaveUnlessTheRowsAloneFillTheGpu) {
  for (const int multiprocessors : {46, kH200, kRtxPro6000})
    for (int n = 1; n <= 128; ++n) {
      const Shape shape = make_shape(n, 8, 0, multiprocessors);
      if (shape.groups > multiprocessors) continue;
      ASSERT_LE(shape.groups * shape.nsplit, multiprocessors) << n;
      ASSERT_GT(shape.groups * (shape.nsplit + 1), multiprocessors) << n;
    }
}

TEST(Shape, GivenNumberOfSplitsIsTaken) {
  EXPECT_EQ(make_shape(9, 8, 7, kH200).nsplit, 7);
  EXPECT_EQ(make_shape(9, 8, 7, kH200).groups, make_shape(9, 8, 0, kH200).groups);
}

}  // namespace
}  // namespace kdtree
