// SPDX-License-Identifier: Apache-2.0
#pragma once

// What perfectly uniform routing gives, so that a load can be judged for the batch it came from: at
// batch 1 most ranks idle in most layers, and the fullest has a multiple of the mean, even then.
//
// Uniform: each token chooses top_k of `experts` different experts, every choice equally likely,
// tokens independent of each other. `tokens` may be a mean and so not whole. Experts lie in
// `groups` groups of equal size s = experts / groups, one a rank.
namespace kdtree {

// Distinct experts that `tokens` tokens of one step use.
// One token leaves an expert out with probability 1 - top_k / experts; all tokens do with its
// `tokens`-th power; expectations add up over experts:
//     experts (1 - (1 - top_k / experts)^tokens)
double uniform_unique_experts(int experts, int top_k, double tokens);

// Probability that a group gets none of `tokens` tokens of one step.
// One token leaves the group out if all its choices are among the other experts - s:
//     (C(experts - s, top_k) / C(experts, top_k))^tokens
double uniform_idle_share(int experts, int groups, int top_k, double tokens);

// Expected load of the fullest group over the mean load, after `tokens` tokens.
// n = tokens x top_k assignments. A group's load has mean n / groups and, choices being without
// replacement, variance  v = n (1 / groups) (1 - 1 / groups) (experts - top_k) / (experts - 1).
// The loads add up to n, so each pair has correlation -1 / (groups - 1), and by the central limit
// theorem they are as groups independent normal variables of variance v groups / (groups - 1) less
// their mean:
//     1 + m sqrt(v groups / (groups - 1)) / (n / groups),
// m being the expected highest of `groups` standard normal variables,
//     m = integral of x d(Phi(x)^groups).
// Below 256 assignments it is exact but for the replacement: the highest of a multinomial, by
//     P(all <= h) = n! / groups^n  [x^n] (sum of x^j / j!, j = 0 .. h)^groups,
// its excess over the mean times sqrt((experts - top_k) / (experts - 1)).
double uniform_peak_load(int experts, int groups, int top_k, double tokens);

}  // namespace kdtree
