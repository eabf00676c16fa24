// SPDX-License-Identifier: Apache-2.0
#include "agent/metrics/moe_uniform.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

namespace kdtree {
namespace {

constexpr int kExactUpTo = 256;  // assignments

// The expected highest of `count` standard normal variables.
double highest_of_normals(int count) {
  constexpr double kStep = 1.0 / 256;  // from -8 to 8, at the middle of each step
  double expected = 0;
  for (int i = -2048; i < 2048; ++i) {
    const double x = (i + 0.5) * kStep;
    const double below = std::pow(0.5 * std::erfc(-x / std::sqrt(2.0)), count);
    expected += kStep * (x > 0 ? 1 - below : -below);
  }
  return expected;
}

// weights[j] = P(Poisson(mean) = j).
std::vector<double> poisson(double mean, int up_to) {
  std::vector<double> weights(static_cast<std::size_t>(up_to) + 1);
  for (int j = 0; j <= up_to; ++j)
    weights[static_cast<std::size_t>(j)] =
        std::exp(j * std::log(mean) - mean - std::lgamma(j + 1.0));
  return weights;
}

// P(no group gets more than `most`): of `groups` Poisson variables with the sum n, which are the
// multinomial.
double all_at_most(int most, int n, int groups, const std::vector<double>& weights, double of_sum) {
  std::vector<double> sums{1};
  for (int group = 0; group < groups; ++group) {
    std::vector<double> next(
        std::min(sums.size() + static_cast<std::size_t>(most), static_cast<std::size_t>(n) + 1));
    for (std::size_t i = 0; i < sums.size(); ++i)
      for (std::size_t j = 0; j <= static_cast<std::size_t>(most) && i + j < next.size(); ++j)
        next[i + j] += sums[i] * weights[j];
    sums = std::move(next);
  }
  return sums.size() > static_cast<std::size_t>(n) ? sums.back() / of_sum : 0;
}

double highest_of_multinomial(int n, int groups) {
  const auto weights = poisson(static_cast<double>(n) / groups, n);
  const double of_sum = poisson(n, n).back();
  double expected = 0;
  for (int most = 0; most < n; ++most) {
    const double above = 1 - all_at_most(most, n, groups, weights, of_sum);
    expected += above;
    if (most * groups > n && above < 1e-6) break;
  }
  return expected;
}

// Both are asked for the same few arguments each second.
template <typename Compute>
double remembered(std::map<std::pair<int, int>, double>& known, std::pair<int, int> key,
                  Compute compute) {
  if (known.size() > 512) known.clear();
  const auto found = known.find(key);
  return found != known.end() ? found->second : known[key] = compute(key.first, key.second);
}

}  // namespace

double uniform_unique_experts(int experts, int top_k, double tokens) {
  return experts * (1 - std::pow(1 - static_cast<double>(top_k) / experts, tokens));
}

double uniform_idle_share(int experts, int groups, int top_k, double tokens) {
  const int others = experts - experts / groups;
  double one_token = 1;
  for (int i = 0; i < top_k; ++i)
    one_token *= std::max(0.0, static_cast<double>(others - i) / (experts - i));
  return std::pow(one_token, tokens);
}

double uniform_peak_load(int experts, int groups, int top_k, double tokens) {
  thread_local std::map<std::pair<int, int>, double> exact;
  thread_local std::map<std::pair<int, int>, double> normal;
  const double assignments = tokens * top_k;
  if (groups <= 1 || experts <= 1 || assignments < 1) return 1;
  const double mean = assignments / groups;
  const double without_replacement =
      std::sqrt(static_cast<double>(experts - top_k) / (experts - 1));
  if (assignments < kExactUpTo) {
    const int n = static_cast<int>(std::lround(assignments));
    const double highest = remembered(exact, {n, groups}, highest_of_multinomial);
    return 1 + without_replacement * (highest * groups / n - 1);
  }
  const double highest =
      remembered(normal, {0, groups}, [](int, int count) { return highest_of_normals(count); });
  return 1 + without_replacement * highest / std::sqrt(mean);
}

}  // namespace kdtree
