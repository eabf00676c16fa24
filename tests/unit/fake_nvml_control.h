// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

// A test's hold on the fake NVML: what it shows from now on (format: tests/fake_nvml/README.md).
class FakeNvml {
 public:
  FakeNvml() {
    char name[] = "/tmp/kdtree-fake-nvml-XXXXXX";
    folder_ = ::mkdtemp(name);
    show(nlohmann::json::object());
    ::setenv("KDTREE_FAKE_NVML", file().c_str(), 1);
  }
  ~FakeNvml() { std::filesystem::remove_all(folder_); }
  FakeNvml(const FakeNvml&) = delete;
  FakeNvml& operator=(const FakeNvml&) = delete;

  void show(const nlohmann::json& instructions) {
    const std::string fresh = file() + ".new";
    std::ofstream(fresh) << instructions.dump();
    std::filesystem::rename(fresh, file());
  }
  static const char* library() { return KDTREE_FAKE_NVML_LIBRARY; }

 private:
  std::string file() const { return folder_ + "/nvml.json"; }
  std::string folder_;
};
