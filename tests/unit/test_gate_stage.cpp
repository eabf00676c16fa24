// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "agent/gate/stage.h"
#include "agent/gate/unit_journal.h"

namespace kdtree {
namespace {

TEST(StageOfLine, KnowsSglangsLines) {
  EXPECT_EQ(stage_of_line("[2026-11-29 17:00:00 TP0] Init torch distributed begin."),
            Stage::joining);
  EXPECT_EQ(stage_of_line("[2026-11-29 17:00:00 TP0] Load weight begin. avail mem=94.10 GB"),
            Stage::loading);
  EXPECT_EQ(
      stage_of_line(
          "Loading safetensors checkpoint shards:  12% Completed | 12/96 [00:10<01:10,  1.2it/s]"),
      Stage::loading);
  EXPECT_EQ(stage_of_line("[TP0] Load weight end. elapsed=600.0 s, type=KimiK2ForCausalLM"),
            Stage::memory);
  EXPECT_EQ(stage_of_line("[TP0] KV Cache is allocated. #tokens: 400000, KV size: 30.00 GB"),
            Stage::memory);
  EXPECT_EQ(
      stage_of_line(
          "[TP0] Capture target verify CUDA graph begin. This can take up to several minutes."),
      Stage::capture);
  EXPECT_EQ(stage_of_line("Capturing batches (bs=4 avail_mem=3.2 GB):  50%|#####"), Stage::capture);
  EXPECT_EQ(stage_of_line("[TP0] Capture target verify CUDA graph end. Time elapsed: 12.00 s."),
            Stage::warm_up);
  EXPECT_EQ(stage_of_line("The server is fired up and ready to roll!"), Stage::ready);
}

TEST(StageOfLine, OtherLinesSayNothing) {
  for (const char* line :
       {"", "Decode batch. #running-req: 1", "Capture", "begin.", "weights loaded"})
    EXPECT_FALSE(stage_of_line(line)) << line;
}

TEST(Printable, ControlCharactersNeverReachTheTerminal) {
  EXPECT_EQ(printable("a\x1b[31mb\tc\n"), "a [31mb c");
  EXPECT_EQ(printable(" 10%\r 50%\r100% done"), "100% done");
  EXPECT_EQ(printable("line\r"), "line");
  EXPECT_EQ(printable(""), "");
}

TEST(Printable, CutsWholeCharacters) {
  EXPECT_EQ(printable("abc\xC3\xA4", 4), "abc");
  EXPECT_EQ(printable("abc\xC3\xA4", 5), "abc\xC3\xA4");
}

}  // namespace
}  // namespace kdtree
