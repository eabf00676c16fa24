// SPDX-License-Identifier: Apache-2.0
#include "agent/metrics/yaml_json.h"

#include <yaml.h>

#include <charconv>
#include <memory>

namespace kdtree {
namespace {

using nlohmann::json;

constexpr int kDeepest = 16;

struct EndParser {
  void operator()(yaml_parser_t* parser) const {
    yaml_parser_delete(parser);
    delete parser;
  }
};
struct EndEvent {
  void operator()(yaml_event_t* event) const {
    yaml_event_delete(event);
    delete event;
  }
};
using Event = std::unique_ptr<yaml_event_t, EndEvent>;

json scalar(const yaml_event_t& event) {
  const auto& value = event.data.scalar;
  const std::string_view text(reinterpret_cast<const char*>(value.value), value.length);
  if (value.style != YAML_PLAIN_SCALAR_STYLE) return text;
  if (text == "true" || text == "false") return text == "true";
  if (text.empty() || text == "~" || text == "null") return nullptr;
  long long number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc{} && end == text.data() + text.size()) return number;
  return text;
}

class Reader {
 public:
  Reader(std::string_view text, const std::string& where)
      : where_(where), parser_(new yaml_parser_t) {
    yaml_parser_initialize(parser_.get());
    yaml_parser_set_input_string(parser_.get(), reinterpret_cast<const unsigned char*>(text.data()),
                                 text.size());
  }

  Result<json> document() {
    json value = json::object();
    KDTREE_TRY_ASSIGN(Event event, next());  // stream start
    KDTREE_TRY_ASSIGN(event, next());
    if (event->type == YAML_STREAM_END_EVENT) return value;
    KDTREE_TRY_ASSIGN(event, next());
    KDTREE_TRY_ASSIGN(value, node(*event, 0));
    KDTREE_TRY_ASSIGN(event, next());  // document end
    KDTREE_TRY_ASSIGN(event, next());
    if (event->type != YAML_STREAM_END_EVENT) return bad(*event, "more than one document");
    return value;
  }

 private:
  tl::unexpected<Error> bad(const yaml_event_t& at, const std::string& what) const {
    return fail(ExitCode::usage,
                where_ + ": line " + std::to_string(at.start_mark.line + 1) + ": " + what);
  }

  Result<Event> next() {
    Event event(new yaml_event_t{});
    if (yaml_parser_parse(parser_.get(), event.get()) == 0) {
      const char* problem = parser_->problem != nullptr ? parser_->problem : "not YAML";
      return fail(ExitCode::usage, where_ + ": line " +
                                       std::to_string(parser_->problem_mark.line + 1) +
                                       ": not valid YAML: " + problem);
    }
    return event;
  }

  Result<json> node(const yaml_event_t& event, int depth) {
    if (depth > kDeepest) return bad(event, "nested too deeply");
    switch (event.type) {
      case YAML_SCALAR_EVENT:
        return scalar(event);
      case YAML_MAPPING_START_EVENT:
        return mapping(depth);
      case YAML_SEQUENCE_START_EVENT:
        return sequence(depth);
      default:
        return bad(event, "an alias, which is not read here");
    }
  }

  Result<json> mapping(int depth) {
    json value = json::object();
    while (true) {
      KDTREE_TRY_ASSIGN(const Event key, next());
      if (key->type == YAML_MAPPING_END_EVENT) return value;
      if (key->type != YAML_SCALAR_EVENT) return bad(*key, "a key that is no text");
      const std::string name(reinterpret_cast<const char*>(key->data.scalar.value),
                             key->data.scalar.length);
      if (value.contains(name)) return bad(*key, "key \"" + name + "\" is given twice");
      KDTREE_TRY_ASSIGN(const Event member, next());
      KDTREE_TRY_ASSIGN(value[name], node(*member, depth + 1));
    }
  }

  Result<json> sequence(int depth) {
    json value = json::array();
    while (true) {
      KDTREE_TRY_ASSIGN(const Event member, next());
      if (member->type == YAML_SEQUENCE_END_EVENT) return value;
      KDTREE_TRY_ASSIGN(json item, node(*member, depth + 1));
      value.push_back(std::move(item));
    }
  }

  const std::string& where_;
  std::unique_ptr<yaml_parser_t, EndParser> parser_;
};

}  // namespace

Result<json> yaml_to_json(std::string_view text, const std::string& where) {
  return Reader(text, where).document();
}

}  // namespace kdtree
