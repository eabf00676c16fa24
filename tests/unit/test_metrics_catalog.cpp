// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>

#include "agent/metrics/catalog.h"
#include "agent/metrics/exposition.h"
#include "agent/metrics/scrape_text.h"

namespace kdtree {
namespace {

TEST(Catalog, FollowsTheNamingRules) {
  const std::regex name_form("kdtree_[a-z0-9_]+");
  const std::set<std::string_view> base_units{"1",      "seconds",         "bytes", "ratio",
                                              "watts",  "joules",          "hertz", "celsius",
                                              "tokens", "bytes_per_second"};
  std::set<std::string_view> names;
  for (const MetricSpec& spec : metric_catalog()) {
    const std::string name(spec.name);
    EXPECT_TRUE(std::regex_match(name, name_form)) << name;
    EXPECT_TRUE(names.insert(spec.name).second) << name;
    EXPECT_EQ(name.ends_with("_total"), spec.type == MetricType::counter) << name;
    EXPECT_TRUE(base_units.contains(spec.unit)) << name << ": " << spec.unit;
    if (spec.unit != "1" && spec.unit != "tokens") {
      EXPECT_NE(name.find("_" + std::string(spec.unit)), std::string::npos) << name;
    }
    EXPECT_FALSE(spec.help.empty()) << name;
    EXPECT_FALSE(spec.absent.empty()) << name;
    EXPECT_FALSE(spec.cost.empty()) << name;
    EXPECT_NE(spec.example.find(name), std::string_view::npos) << name;
    EXPECT_EQ(spec.help.find('\n'), std::string_view::npos) << name;
    for (std::string_view label : spec.labels)
      EXPECT_FALSE(label == "type" || label == "le" || label == "quantile" || label == "job" ||
                   label == "instance")
          << name;
  }
}

TEST(Catalog, IsInTheOrderOfItsEnum) {
  ASSERT_EQ(metric_catalog().size(), static_cast<std::size_t>(Metric::count_));
  for (std::size_t i = 0; i < metric_catalog().size(); ++i)
    EXPECT_EQ(metric_catalog()[i].id, static_cast<Metric>(i)) << metric_catalog()[i].name;
}

TEST(Catalog, ItsJsonListsAll) {
  const auto json = nlohmann::json::parse(catalog_as_json());
  ASSERT_EQ(json["metrics"].size(), metric_catalog().size());
  EXPECT_EQ(json["metrics"][0]["name"], "kdtree_gpu_info");
  EXPECT_EQ(json["metrics"][0]["labels"].size(), 5u);
  for (const MetricSpec& spec : metric_catalog())
    EXPECT_NE(catalog_as_text().find(spec.name), std::string::npos);
}

std::vector<std::string> sorted_lines(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

// Line by line what prometheus-cpp's own serialiser says, but for their order within a histogram
// and for how a number is spelt.
TEST(Exposition, TheTextFormatIsThatOfPrometheusCpp) {
  Exposition out;
  out.add(Metric::gpu_power, {"0", "GPU-\"\\"}, 100);
  out.add(Metric::gpu_power, {"1", "u"}, -0.1);
  out.add(Metric::gpu_energy, {"0", "u"}, 123456789.125);
  out.add(Metric::moe_tokens, 18446744073709549568.0);
  out.add(Metric::nvml_up, 1);
  const double bounds[]{0.5, 1};
  const std::uint64_t counts[]{2, 1};
  out.add_histogram(Metric::gpu_utilization_distribution, {"0", "u"}, bounds, counts, 1.75);
  std::ostringstream theirs;
  prometheus::TextSerializer().Serialize(theirs, out.families());
  const auto expected = sorted_lines(theirs.str());
  const auto given = sorted_lines(as_text(out.families()));
  ASSERT_EQ(given.size(), expected.size());
  for (std::size_t i = 0; i < given.size(); ++i) {
    const bool comment = given[i].front() == '#';
    const auto value = comment ? given[i].size() : given[i].rfind(' ') + 1;
    EXPECT_EQ(given[i].substr(0, value), expected[i].substr(0, value));
    if (!comment) {
      EXPECT_EQ(std::stod(given[i].substr(value)), std::stod(expected[i].substr(value)));
    }
  }
}

TEST(Exposition, OpenMetricsHasUnitsCountersWithoutTotalAndAnEnd) {
  Exposition out;
  out.add(Metric::gpu_power, {"0", "GPU-\"\\"}, 100);
  out.add(Metric::gpu_energy, {"0", "u"}, 0.1);
  out.add(Metric::nvml_up, 1);
  const double bounds[]{0.5, 1};
  const std::uint64_t counts[]{2, 1};
  out.add_histogram(Metric::gpu_utilization_distribution, {"0", "u"}, bounds, counts, 1.75);
  const std::string text = as_openmetrics(out.families());
  for (const char* line :
       {"# TYPE kdtree_gpu_power_watts gauge\n", "# UNIT kdtree_gpu_power_watts watts\n",
        "kdtree_gpu_power_watts{gpu=\"0\",uuid=\"GPU-\\\"\\\\\"} 100.0\n",
        "# TYPE kdtree_gpu_energy_joules counter\n", "# UNIT kdtree_gpu_energy_joules joules\n",
        "kdtree_gpu_energy_joules_total{gpu=\"0\",uuid=\"u\"} 0.1\n",
        "# TYPE kdtree_nvml_up gauge\n", "kdtree_nvml_up 1.0\n",
        "kdtree_gpu_utilization_distribution_ratio_bucket{gpu=\"0\",uuid=\"u\",le=\"0.5\"} 2\n",
        "kdtree_gpu_utilization_distribution_ratio_bucket{gpu=\"0\",uuid=\"u\",le=\"1.0\"} 3\n",
        "kdtree_gpu_utilization_distribution_ratio_bucket{gpu=\"0\",uuid=\"u\",le=\"+Inf\"} 3\n",
        "kdtree_gpu_utilization_distribution_ratio_count{gpu=\"0\",uuid=\"u\"} 3\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  EXPECT_EQ(text.find("# UNIT kdtree_nvml_up"), std::string::npos);
  EXPECT_TRUE(text.ends_with("\n# EOF\n"));
}

TEST(Exposition, OpenMetricsIsGivenOnlyToThoseWhoAskForIt) {
  for (const char* yes :
       {"application/openmetrics-text",
        "application/openmetrics-text; version=1.0.0; charset=utf-8",
        "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version="
        "0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
        "text/plain;q=0.5, Application/OpenMetrics-Text;Version=1.0.0"})
    EXPECT_TRUE(wants_openmetrics(yes)) << yes;
  for (const char* no :
       {"", "*/*", "text/plain", "application/openmetrics-text;version=0.0.1",
        "application/openmetrics-text;q=0", "text/plain,application/openmetrics-text;q=0.9",
        "application/openmetrics-text;version=2.0.0", ";;,,=", "text/html;q=x"})
    EXPECT_FALSE(wants_openmetrics(no)) << no;
}

TEST(Exposition, WhatIsNotKnownHasNoSeries) {
  Exposition out;
  out.add(Metric::gpu_power, {"0"}, std::numeric_limits<double>::quiet_NaN());
  out.add(Metric::gpu_power, {"1"}, std::numeric_limits<double>::infinity());
  EXPECT_TRUE(out.families().empty());
}

TEST(Exposition, NoByteOfALabelCanSpoilAScrape) {
  Exposition out;
  out.add(Metric::release_info, {"a\"b\\c\nd\xff\x01z"}, 1);
  const auto parsed = parse_scrape(as_text(out.families()));
  ASSERT_TRUE(parsed);
  ASSERT_EQ(parsed->size(), 1u);
  EXPECT_EQ(parsed->at(0).label("release"), "a\"b\\c?d??z");
}

TEST(ScrapeText, ReadsValuesAndLabels) {
  const auto parsed = parse_scrape("# HELP a b\na 1.5\nb{x=\"1\",y=\"q,}\"} 2e3\n\n");
  ASSERT_TRUE(parsed);
  ASSERT_EQ(parsed->size(), 2u);
  EXPECT_EQ(parsed->at(0).value, 1.5);
  EXPECT_EQ(parsed->at(1).label("y"), "q,}");
  EXPECT_EQ(parsed->at(1).label("z"), "");
  EXPECT_EQ(parsed->at(1).value, 2000);
  for (const char* bad : {"<html>", "a{x=\"1\"", "a{x=1} 2", "a ", "{} 1"})
    EXPECT_FALSE(parse_scrape(bad)) << bad;
}

}  // namespace
}  // namespace kdtree
