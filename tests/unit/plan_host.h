// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "agent/plan/plan.h"
#include "agent/systemd/service_manager.h"
#include "agent/util/root.h"

// What the tests of plans and transactions need: a folder as root, a configuration, facts of a host
// with an engine's unit, and a service manager that writes down what it is asked.
namespace kdtree::test {

namespace fs = std::filesystem;

class PlanFolder {
 public:
  PlanFolder() {
    std::string name = (fs::temp_directory_path() / "kdtree-plan-XXXXXX").string();
    path_ = mkdtemp(name.data());
    write("proc/sys/kernel/random/boot_id", "boot-1\n");
  }
  ~PlanFolder() { fs::remove_all(path_); }
  PlanFolder(const PlanFolder&) = delete;
  PlanFolder& operator=(const PlanFolder&) = delete;

  Root root() const { return Root(path_); }
  fs::path operator/(const std::string& relative) const { return path_ / relative; }
  void write(const std::string& relative, const std::string& text) const {
    fs::create_directories((path_ / relative).parent_path());
    std::ofstream(path_ / relative, std::ios::binary | std::ios::trunc) << text;
  }
  std::string read(const std::string& relative) const {
    std::ifstream file(path_ / relative, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }
  // Path and content (or link target) of everything in it but the journal, history and audit log.
  std::map<std::string, std::string> contents() const {
    std::map<std::string, std::string> all;
    for (const auto& entry : fs::recursive_directory_iterator(path_)) {
      const auto name = entry.path().lexically_relative(path_).string();
      if (name.starts_with("var/lib/kdtree")) continue;
      if (entry.is_symlink())
        all[name] = "-> " + fs::read_symlink(entry.path()).string();
      else if (entry.is_regular_file())
        all[name] = read(name);
    }
    return all;
  }

 private:
  fs::path path_;
};

class RecordingManager : public ServiceManager {
 public:
  std::vector<std::string> calls;
  UnitState state;                                         // what unit() says of every unit
  std::function<Status(const std::string& call)> on_call;  // may fail a call

  Result<UnitState> unit(const std::string&) override { return state; }
  Status daemon_reload(std::chrono::milliseconds) override { return note("reload"); }
  Status start(const std::string& name, std::chrono::milliseconds, const JobTick&) override {
    return note("start " + name);
  }
  Status stop(const std::string& name, std::chrono::milliseconds, const JobTick&) override {
    return note("stop " + name);
  }
  Status restart(const std::string& name, std::chrono::milliseconds, const JobTick&) override {
    state.invocation_id += "x";
    return note("restart " + name);
  }
  Status reset_failed(const std::string&) override { return {}; }
  Status terminate_main(const std::string& name) override {
    auto done = note("terminate " + name);
    state.main_pid = 0;
    return done;
  }
  Status enable(const std::string& name) override { return note("enable " + name); }
  Status disable(const std::string& name) override { return note("disable " + name); }

 private:
  Status note(const std::string& call) {
    calls.push_back(call);
    return on_call ? on_call(call) : Status{};
  }
};

inline Config config(const std::string& more = "") {
  auto parsed =
      parse_config(R"({"engine": {"unit": "engine.service", "python": "/opt/e/bin/python3",
      "health_url": "http://127.0.0.1:30000/health", "ranks": 2}, "kernel": {"device": "cpu"})" +
                       more + "}",
                   "test");
  if (!parsed) throw std::runtime_error(parsed.error().what);
  return *parsed;
}

inline constexpr const char* kFragment = "/etc/systemd/system/engine.service";
inline constexpr const char* kDropIn = "/etc/systemd/system/engine.service.d/60-kdtree.conf";

inline Manifest manifest(const std::string& release) {
  Manifest m;
  m.release = release;
  m.device = "cpu";
  m.torch = "2.11.0+cu130";
  m.engine = "sglang";
  m.engine_version = "0.5.17";
  m.engine_fingerprint = "f1";
  m.python_version = "3.11.2";
  m.selftest_device = "cpu";
  return m;
}

inline Facts facts(
    const std::string& exec_start =
        "/opt/e/bin/python3 -m sglang.launch_server --tp 2 --mem-fraction-static 0.94") {
  Facts f;
  f.root = true;
  f.unit.state.name = "engine.service";
  f.unit.state.load_state = "loaded";
  f.unit.state.active_state = "active";
  f.unit.state.fragment_path = kFragment;
  f.unit.files = {{kFragment, "[Service]\nExecStart=" + exec_start + "\nEnvironment=HOME=/srv\n"}};
  f.engine = EngineFacts{"sglang", "0.5.17", "f1", true, true, {}, "2.11.0+cu130", "3.11.2", "/s"};
  f.release = manifest("r1");
  f.free_bytes = 1ull << 40;
  f.source_digest = "d1";
  return f;
}

// As facts(), of a host where `text` is our drop-in and `state` what was deployed.
inline Facts deployed_facts(const Deployed& state, const std::string& text) {
  Facts f = facts();
  f.state.current = state;
  f.state.good = state;
  f.release = manifest(state.release);
  f.unit.files.push_back({kDropIn, text});
  f.files[kDropIn] = FileImage{text, {0644, 0, 0}, {}};
  f.files[paths::kCurrent] = FileImage{{}, {}, std::string(paths::kReleases) + "/" + state.release};
  return f;
}

inline Wish wish(Verb verb, const std::string& release, Mode mode) {
  Wish w;
  w.verb = verb;
  w.target = {release, mode, false};
  return w;
}

inline const Step* find_step(const Plan& plan, StepKind kind, const std::string& what = "") {
  for (const auto& step : plan.steps)
    if (step.kind == kind && (what.empty() || step.path == what || step.unit == what)) return &step;
  return nullptr;
}

}  // namespace kdtree::test
