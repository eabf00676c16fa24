// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/bench_report.h"

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

namespace kdtree {
namespace {

using Json = nlohmann::ordered_json;

std::string number(double value, int digits) {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

double rounded(double value, double per_unit) { return std::round(value * per_unit) / per_unit; }

const BenchPoint* find(const BenchReport* report, const BenchShape& shape) {
  if (report != nullptr)
    for (const auto& point : report->points)
      if (point.shape == shape) return &point;
  return nullptr;
}

std::string text_at(const Json& object, const char* name) {
  const auto it = object.find(name);
  return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}

double number_at(const Json& object, const char* name) {
  const auto it = object.find(name);
  return it != object.end() && it->is_number() ? it->get<double>() : -1;
}

}  // namespace

Json to_json(const BenchReport& report) {
  Json points = Json::array();
  for (const auto& point : report.points)
    points.push_back({{"batch", point.shape.batch},
                      {"context", point.shape.context},
                      {"ms", rounded(point.ms, 1000)},
                      {"tok_s", rounded(point.tokens_per_s, 10)},
                      {"tokens_a_step", rounded(point.tokens_a_step, 100)},
                      {"steps", point.steps}});
  return {{"format", kBenchFormat},    {"engine", report.engine},
          {"date", report.date},       {"mode", report.mode},
          {"release", report.release}, {"engine_version", report.engine_version},
          {"gpus", report.gpus},       {"points", points}};
}

Result<BenchReport> parse_report(std::string_view text, const std::string& where) {
  const auto no_report = [&](const std::string& why) {
    return fail(ExitCode::refused, where + ": " + why,
                "it has to be what `kdtreectl bench --engine URL --json` printed");
  };
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return no_report("not a JSON object");
  if (number_at(json, "format") != kBenchFormat)
    return no_report("not a report of format " + std::to_string(kBenchFormat));
  BenchReport report{.engine = text_at(json, "engine"),
                     .date = text_at(json, "date"),
                     .mode = text_at(json, "mode"),
                     .release = text_at(json, "release"),
                     .engine_version = text_at(json, "engine_version"),
                     .gpus = {},
                     .points = {}};
  const auto gpus = json.find("gpus");
  const auto points = json.find("points");
  if (gpus == json.end() || !gpus->is_array() || points == json.end() || !points->is_array())
    return no_report("no gpus or no points");
  for (const auto& gpu : *gpus)
    if (gpu.is_string()) report.gpus.push_back(gpu.get<std::string>());
  for (const auto& point : *points) {
    const double ms = number_at(point, "ms"), context = number_at(point, "context");
    const double batch = number_at(point, "batch");
    if (!point.is_object() || ms <= 0 || context < 1 || batch < 1)
      return no_report("a point without context, batch and ms above 0");
    report.points.push_back({.shape = {std::lround(context), static_cast<int>(batch)},
                             .ms = ms,
                             .tokens_per_s = number_at(point, "tok_s"),
                             .tokens_a_step = number_at(point, "tokens_a_step"),
                             .steps = std::lround(number_at(point, "steps"))});
  }
  return report;
}

Result<BenchTable> make_table(const BenchReport& report, const BenchReport* against) {
  BenchTable table;
  if (against != nullptr && against->gpus != report.gpus)
    return fail(ExitCode::refused,
                "the earlier report is of other GPUs: " +
                    (against->gpus.empty() ? "unknown ones" : against->gpus.front()) +
                    " instead of " + (report.gpus.empty() ? "unknown ones" : report.gpus.front()),
                "figures of different machines don't mix: measure both here");
  table.header = {"context", "batch"};
  if (against != nullptr)
    table.header.insert(table.header.end(), {against->mode + " ms/step", against->mode + " tok/s"});
  table.header.insert(table.header.end(),
                      {report.mode + " ms/step", report.mode + " tok/s", "tokens/step"});
  if (against != nullptr) table.header.push_back(against->mode + " / " + report.mode);
  for (const auto& point : report.points) {
    std::vector<std::string> row = {std::to_string(point.shape.context),
                                    std::to_string(point.shape.batch)};
    const BenchPoint* other = find(against, point.shape);
    if (against != nullptr)
      row.insert(row.end(), {other ? number(other->ms, 2) : "-",
                             other ? number(other->tokens_per_s, 1) : "-"});
    row.insert(row.end(), {number(point.ms, 2), number(point.tokens_per_s, 1),
                           number(point.tokens_a_step, 2)});
    if (against != nullptr) row.push_back(other ? number(other->ms / point.ms, 1) + "x" : "-");
    table.rows.push_back(std::move(row));
  }
  return table;
}

}  // namespace kdtree
