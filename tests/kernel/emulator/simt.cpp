// SPDX-License-Identifier: Apache-2.0
#include "simt.h"

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace simt {
namespace {

constexpr std::size_t kStackBytes = 256 * 1024;

struct Copy {
  uint32_t to;
  const void* from;
  uint32_t bytes;
};

struct Fiber {
  ucontext_t context{};
  std::unique_ptr<char[]> stack = std::make_unique<char[]>(kStackBytes);
  std::vector<std::vector<Copy>> groups;
  std::vector<Copy> open;
  uint64_t warp_meetings = 0, block_meetings = 0;
  bool done = false;
};

struct Warp {
  char payload[2][32][kPayload];
  std::array<uint64_t, 2> arrived{};
};

struct State {
  ucontext_t scheduler{};
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::array<uint64_t, 2> arrived{};
  std::array<int, 2> with_true{};
  std::function<void()> kernel;
  unsigned current = 0, block = 0, alive = 0;
  uint64_t progress = 0;
  Copies copies = Copies::late;
  std::string error;
};

thread_local State* state = nullptr;

[[noreturn]] void fail(const std::string& what) {
  state->error = "block " + std::to_string(state->block) + ", thread " +
                 std::to_string(state->current) + ": " + what;
  swapcontext(&state->fibers[state->current].context, &state->scheduler);
  std::abort();
}

void yield() { swapcontext(&state->fibers[state->current].context, &state->scheduler); }

void perform(const Copy& copy) {
  char* to = shared_memory() + copy.to;
  std::memset(to, 0, 16);
  std::memcpy(to, copy.from, copy.bytes);
}

void enter() {
  state->kernel();
  state->fibers[state->current].done = true;
  --state->alive;
  ++state->progress;
  yield();
}

void run_block(const Block& block, std::mt19937_64& random) {
  const unsigned threads = block.threads;
  state->warps.assign(threads / 32, {});
  state->arrived = {};
  state->with_true = {};
  state->alive = threads;
  for (unsigned i = 0; i < threads; ++i) {
    Fiber& fiber = state->fibers[i];
    fiber.groups.clear();
    fiber.open.clear();
    fiber.warp_meetings = fiber.block_meetings = 0;
    fiber.done = false;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStackBytes;
    makecontext(&fiber.context, enter, 0);
  }
  std::memset(shared_memory(), 0xff, sizeof kdtree::shared);
  std::vector<unsigned> order(threads);
  std::iota(order.begin(), order.end(), 0U);
  while (state->alive > 0) {
    std::shuffle(order.begin(), order.end(), random);
    const uint64_t before = state->progress;
    for (const unsigned i : order) {
      if (state->fibers[i].done) continue;
      state->current = i;
      swapcontext(&state->scheduler, &state->fibers[i].context);
      if (!state->error.empty()) throw std::runtime_error(state->error);
    }
    if (state->progress == before)
      throw std::runtime_error("block " + std::to_string(state->block) +
                               ": threads wait for each other for ever");
  }
}

}  // namespace

Index thread() { return {state->current}; }
Index block() { return {state->block}; }
char* shared_memory() { return kdtree::shared; }

const char (*meet_warp(const void* bytes, std::size_t size))[kPayload] {
  Fiber& fiber = state->fibers[state->current];
  Warp& warp = state->warps[state->current / 32];
  const auto parity = static_cast<std::size_t>(fiber.warp_meetings % 2);
  const uint64_t complete = (fiber.warp_meetings / 2 + 1) * 32;
  ++fiber.warp_meetings;
  std::memcpy(warp.payload[parity][state->current % 32], bytes, size);
  ++warp.arrived[parity];
  ++state->progress;
  while (warp.arrived[parity] < complete) yield();
  return warp.payload[parity];
}

int meet_block(bool value) {
  Fiber& fiber = state->fibers[state->current];
  const auto parity = static_cast<std::size_t>(fiber.block_meetings % 2);
  const uint64_t threads = state->fibers.size();
  const uint64_t complete = (fiber.block_meetings / 2 + 1) * threads;
  ++fiber.block_meetings;
  if (state->arrived[parity] % threads == 0) state->with_true[parity] = 0;
  state->with_true[parity] += value ? 1 : 0;
  ++state->arrived[parity];
  ++state->progress;
  while (state->arrived[parity] < complete) yield();
  return state->with_true[parity];
}

void copy_async(uint32_t to, const void* from, uint32_t bytes) {
  if (to % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0) fail("cp.async is misaligned");
  if (to + 16 > sizeof kdtree::shared) fail("cp.async leaves shared memory");
  const Copy copy{to, from, bytes};
  if (state->copies == Copies::early)
    perform(copy);
  else
    state->fibers[state->current].open.push_back(copy);
}

void copy_commit() {
  Fiber& fiber = state->fibers[state->current];
  fiber.groups.push_back(std::move(fiber.open));
  fiber.open.clear();
}

void copy_wait(int pending) {
  auto& groups = state->fibers[state->current].groups;
  while (groups.size() > static_cast<std::size_t>(pending)) {
    for (const Copy& copy : groups.front()) perform(copy);
    groups.erase(groups.begin());
  }
}

void run(const Block& block, const std::function<void()>& kernel) {
  State own;
  state = &own;
  own.kernel = kernel;
  own.copies = block.copies;
  own.fibers = std::vector<Fiber>(block.threads);
  std::mt19937_64 random(block.seed);
  std::vector<unsigned> order(block.grid);
  std::iota(order.begin(), order.end(), 0U);
  std::shuffle(order.begin(), order.end(), random);
  for (const unsigned b : order) {
    own.block = b;
    run_block(block, random);
  }
  state = nullptr;
}

}  // namespace simt
