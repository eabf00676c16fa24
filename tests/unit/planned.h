// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "agent/plan/engine_unit.h"
#include "plan_host.h"

// A plan that has to be made, an error that has to come instead, and what a plan says.
namespace kdtree::test {

inline Plan planned(const Facts& f, const Config& c, const Wish& w) {
  auto plan = make_plan(f, c, w);
  EXPECT_TRUE(plan) << (plan ? "" : plan.error().what);
  return plan ? *plan : Plan{};
}

inline Error refused(const Facts& f, const Config& c, const Wish& w) {
  auto plan = make_plan(f, c, w);
  EXPECT_FALSE(plan);
  return plan ? Error{} : plan.error();
}

// The drop-in of that state.
inline std::string text_in(const Facts& f, const Deployed& state) {
  return make_engine_unit(f, config(), state)->text;
}

inline bool says(const Plan& plan, const std::string& text) {
  return std::ranges::any_of(
      plan.notes, [&](const auto& note) { return note.find(text) != std::string::npos; });
}

}  // namespace kdtree::test
