// SPDX-License-Identifier: Apache-2.0
#include "agent/stats/control_file.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>

#include "agent/stats/stats_abi.h"
#include "agent/util/atomic_file.h"
#include "agent/util/clock.h"
#include "agent/util/file.h"

namespace kdtree {
namespace {

std::uint32_t checksum_of(const kdtree_control& control) {
  return static_cast<std::uint32_t>(
      ::crc32(0, reinterpret_cast<const Bytef*>(&control), offsetof(kdtree_control, crc32)));
}

tl::unexpected<Error> not_a_control_file(const Root& root, const std::string& why) {
  return fail(ExitCode::refused, root(paths::kControl).string() + ": " + why,
              "'kdtreectl mode <mode>' writes a new one");
}

}  // namespace

Result<std::optional<Control>> read_control(const Root& root) {
  KDTREE_TRY_ASSIGN(auto bytes, read_file_if_there(root(paths::kControl), sizeof(kdtree_control)));
  if (!bytes) return std::nullopt;
  kdtree_control raw;
  if (bytes->size() != sizeof raw)
    return not_a_control_file(root, std::to_string(bytes->size()) + " bytes, a control file has " +
                                        std::to_string(sizeof raw));
  std::memcpy(&raw, bytes->data(), sizeof raw);
  if (std::memcmp(raw.magic, KDTREE_CONTROL_MAGIC, sizeof raw.magic) != 0)
    return not_a_control_file(root, "not a control file");
  if (raw.version != KDTREE_CONTROL_VERSION)
    return not_a_control_file(root, "format version " + std::to_string(raw.version));
  if (raw.crc32 != checksum_of(raw)) return not_a_control_file(root, "checksum is wrong");
  if (raw.mode > KDTREE_MODE_ON)
    return not_a_control_file(root, "mode is " + std::to_string(raw.mode));
  return Control{static_cast<Mode>(raw.mode), raw.generation,
                 std::string(raw.release_id, ::strnlen(raw.release_id, sizeof raw.release_id))};
}

Result<Control> write_control(const Root& root, Mode mode, const std::string& release_id) {
  kdtree_control raw{};
  if (release_id.size() >= sizeof raw.release_id)
    return fail(ExitCode::refused, "release id '" + release_id + "' is longer than 63 bytes");
  std::uint64_t generation = boottime_ns() / 1'000'000;
  if (const auto before = read_control(root); before && *before)
    generation = std::max(generation, (*before)->generation + 1);

  std::memcpy(raw.magic, KDTREE_CONTROL_MAGIC, sizeof raw.magic);
  raw.version = KDTREE_CONTROL_VERSION;
  raw.mode = static_cast<std::uint32_t>(mode);
  raw.generation = generation;
  std::memcpy(raw.release_id, release_id.data(), release_id.size());
  raw.crc32 = checksum_of(raw);
  KDTREE_TRY(write_file_atomic(root(paths::kControl),
                               {reinterpret_cast<const char*>(&raw), sizeof raw}, 0644));
  return Control{mode, generation, release_id};
}

}  // namespace kdtree
