// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "agent/plan/builder.h"
#include "plan_host.h"

namespace kdtree {
namespace {

using namespace test;

Config cuda_config(const std::string& kernel = "") {
  Config c = config();
  c.kernel.device = KernelDevice::cuda;
  if (!kernel.empty()) c.kernel.archs = {kernel};
  return c;
}

Facts cuda_facts() {
  Facts f = facts();
  f.gpus = {{0, "RTX PRO 6000", "GPU-0", "120", {}}, {1, "RTX PRO 6000", "GPU-1", "120", {}}};
  f.nvcc = NvccFacts{"/usr/local/cuda/bin/nvcc", "/usr/local/cuda", "13.0"};
  return f;
}

TEST(BuildInputs, TakeTheArchitecturesOfTheGpusPresent) {
  const auto inputs = build_inputs(cuda_facts(), cuda_config(), false);
  ASSERT_TRUE(inputs) << inputs.error().what;
  EXPECT_EQ(inputs->archs, std::vector<std::string>{"120"});
}

TEST(BuildInputs, RefusalsSayWhatToDo) {
  struct Case {
    std::function<void(Facts&, Config&)> spoil;
    std::string what, hint;
  };
  for (const Case& each : {
           Case{[](Facts&f, Config&) {
                  f.engine.reset();
                  f.engine_error = "no such file";
                },
                "no such file", "engine.python"},
           Case{[](Facts&f, Config&) { f.engine->version = ""; }, "has no sglang package",
                "engine.python"},
           Case{[](Facts&f, Config&) { f.user_error = "there is no user x"; }, "there is no user x",
                "make that user"},
           Case{[](Facts&f, Config&) {
                  f.engine->known = false;
                  f.engine->differences = {"x.y: changed", "x.z: gone"};
                },
                ": 2 differences", "--accept-engine"},
           Case{[](Facts&f, Config&) { f.engine->torch = ""; }, "has no torch", "engine.python"},
           Case{[](Facts&f, Config&) {
                  f.engine->known = false;
                  f.engine->differences = {"x.y: changed"};
                },
                "x.y: changed", "--accept-engine"},
           Case{[](Facts&f, Config&) { f.engine->known = f.engine->binds = false; }, "does not fit",
                "newer kdtree"},
           Case{[](Facts&f, Config&) {
                  f.nvcc.reset();
                  f.nvcc_searched = {"/a/nvcc", "PATH"};
                },
                "/a/nvcc, PATH", "nvidia-cuda-nvcc into the engine's own Python"},
           Case{[](Facts&f, Config&) { f.nvcc->version = "12.4"; }, "12.8 or newer", "cuda_home"},
           Case{[](Facts&f, Config&) {
                  f.gpus.clear();
                  f.gpu_error = "no driver";
                },
                "no driver", "\"cpu\""},
           Case{[](Facts&, Config&c) { c.kernel.archs = {"90"}; },
                "kernel.archs (90) leaves out GPU 0", "\"120\""},
           Case{[](Facts&f, Config&) {
                  for (auto& g : f.gpus) g.arch = "75";
                },
                "sm_75", "sm_80"},
           Case{[](Facts&f, Config&) { f.free_bytes = 1 << 20; }, "1 MiB free", "free space"},
           Case{[](Facts&f, Config&) { f.source_digest = ""; }, "not in /usr/share/kdtree",
                "install the kdtree package"},
       }) {
    Facts f = cuda_facts();
    Config c = cuda_config();
    each.spoil(f, c);
    const auto inputs = build_inputs(f, c, false);
    ASSERT_FALSE(inputs) << each.what;
    EXPECT_EQ(inputs.error().code, ExitCode::refused);
    EXPECT_NE(inputs.error().what.find(each.what), std::string::npos) << inputs.error().what;
    EXPECT_NE(inputs.error().hint.find(each.hint), std::string::npos) << inputs.error().hint;
  }
}

TEST(BuildInputs, SpaceIsOneLimitForAll) {
  Facts f = facts();
  for (const auto& [device, mib] : {std::pair{KernelDevice::cpu, 64}, {KernelDevice::cuda, 512}}) {
    Config c = config();
    c.kernel.device = device;
    f.free_bytes = static_cast<std::uint64_t>(mib) << 20;
    EXPECT_TRUE(check_space(f, c));
    --f.free_bytes;
    ASSERT_FALSE(check_space(f, c));
    EXPECT_NE(check_space(f, c).error().what.find("needs " + std::to_string(mib)),
              std::string::npos);
  }
  EXPECT_FALSE(build_inputs(
      [&] {
        f.free_bytes = (64ull << 20) - 1;
        return f;
      }(),
      config(), false));
}

TEST(BuildInputs, AcceptanceIsForEnginesThatBindOnly) {
  Facts f = facts();
  f.engine->known = false;
  EXPECT_TRUE(build_inputs(f, config(), true));
  f.state.accepted_engines["f1"] = "r0";
  EXPECT_TRUE(build_inputs(f, config(), false)) << "accepted before";
  f.engine->binds = false;
  EXPECT_FALSE(build_inputs(f, config(), true));
}

TEST(BuildInputs, TheManifestTellsWhatWasAcceptedAndTheDriver) {
  Facts f = cuda_facts();
  f.driver = "580.159.04";
  const auto known = expected_manifest(build_inputs(f, cuda_config(), false).value());
  EXPECT_FALSE(known.engine_accepted);
  EXPECT_EQ(known.driver, "580.159.04");
  EXPECT_EQ(known.engine_fingerprint, "f1");
  f.engine->known = false;
  EXPECT_TRUE(expected_manifest(build_inputs(f, cuda_config(), true).value()).engine_accepted);
  EXPECT_EQ(expected_manifest(build_inputs(f, config(), true).value()).driver, "")
      << "the CPU implementation needs no driver";
}

TEST(ReleaseId, ChangesWithEveryInput) {
  const auto inputs = build_inputs(cuda_facts(), cuda_config(), false).value();
  const auto id = release_id(inputs);
  EXPECT_LE(id.size(), 63u);
  EXPECT_EQ(id, release_id(inputs));
  for (const auto& spoil : std::vector<std::function<void(BuildInputs&)>>{
           [](auto& i) { i.source_digest = "d2"; }, [](auto& i) { i.archs = {"90"}; },
           [](auto& i) { i.nvcc->version = "13.1"; }, [](auto& i) { i.engine.torch = "2.12"; },
           [](auto& i) { i.engine.fingerprint = "f2"; }, [](auto& i) { i.python = "/p"; },
           [](auto& i) { i.driver = "590.44"; }, [](auto& i) { i.device = KernelDevice::cpu; }}) {
    auto other = inputs;
    spoil(other);
    EXPECT_NE(release_id(other), id);
  }
}

// Real cmake on a small project that stands for the kernel's.
class Build : public ::testing::Test {
 protected:
  void SetUp() override {
    folder.write("usr/share/kdtree/kernel/CMakeLists.txt",
                 "cmake_minimum_required(VERSION 3.25)\n"
                 "project(k LANGUAGES NONE)\n"
                 "if(KDTREE_WITH_CUDA)\nmessage(FATAL_ERROR \"error: no CUDA here\")\nendif()\n"
                 "install(FILES a.so DESTINATION lib RENAME libkdtree.so)\n"
                 "install(FILES a.so DESTINATION lib RENAME libkdtree_torch.so)\n"
                 "install(FILES k.py DESTINATION python/kdtree_kernel RENAME __init__.py)\n");
    folder.write("usr/share/kdtree/kernel/a.so", "library");
    folder.write("usr/share/kdtree/kernel/k.py", "x = 1\n");
    folder.write("usr/share/kdtree/sitecustomize/sitecustomize.py", "pass\n");
    folder.write("usr/share/kdtree/sitecustomize/kdtree_patch/__init__.py", "y = 2\n");
    inputs = build_inputs(facts(), config(), false).value();
    inputs.python = "/usr/bin/python3";
    ports.selftest = [this](const fs::path& release) -> Result<SelftestProof> {
      ++selftests;
      EXPECT_TRUE(fs::exists(release / "lib/libkdtree_torch.so"));
      return SelftestProof{"cpu", 7};
    };
  }
  fs::path release() { return folder / "opt/kdtree/releases" / release_id(inputs); }
  std::size_t in_releases() {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& e : fs::directory_iterator(folder / "opt/kdtree/releases"))
      ++count;
    return count;
  }

  PlanFolder folder;
  BuildInputs inputs;
  BuildPorts ports;
  int selftests = 0;
};

TEST_F(Build, SealsAWholeReleaseAndFindsItAgain) {
  const auto old_umask = ::umask(0077);
  auto built = build_release(folder.root(), inputs, ports);
  ::umask(old_umask);
  ASSERT_TRUE(built) << built.error().what;
  EXPECT_FALSE(built->reused);
  EXPECT_EQ(built->manifest.selftest_device, "cpu");
  EXPECT_EQ(built->manifest.selftest_cases, 7);
  EXPECT_TRUE(built->manifest.files.contains("python/sitecustomize.py"));
  EXPECT_TRUE(built->manifest.files.contains("lib/libkdtree_torch.so"));
  EXPECT_FALSE(built->manifest.files.contains("build.log"));
  const auto manifest = read_manifest(release());
  ASSERT_TRUE(manifest);
  EXPECT_TRUE(verify_release(release(), *manifest));
  EXPECT_NE(folder.read("opt/kdtree/releases/" + release_id(inputs) + "/build.log").find("cmake"),
            std::string::npos);
  EXPECT_EQ(in_releases(), 1u) << "no staging is left";
  EXPECT_EQ(fs::status(release() / "python/kdtree_patch").permissions() & fs::perms::others_all,
            fs::perms::others_read | fs::perms::others_exec);
  EXPECT_EQ(fs::status(release() / "python/sitecustomize.py").permissions() & fs::perms::others_all,
            fs::perms::others_read);

  auto again = build_release(folder.root(), inputs, ports);
  ASSERT_TRUE(again);
  EXPECT_TRUE(again->reused);
  EXPECT_EQ(selftests, 1);
}

TEST_F(Build, DamagedReleaseStaysUntilItsSuccessorHasPassed) {
  ASSERT_TRUE(build_release(folder.root(), inputs, ports));
  folder.write("opt/kdtree/releases/" + release_id(inputs) + "/lib/libkdtree.so", "other");
  const auto selftest = std::exchange(ports.selftest, [](const fs::path&) -> Result<SelftestProof> {
    return fail(ExitCode::refused, "the kernel is wrong");
  });
  ASSERT_FALSE(build_release(folder.root(), inputs, ports));
  EXPECT_EQ(folder.read("opt/kdtree/releases/" + release_id(inputs) + "/lib/libkdtree.so"), "other")
      << "an engine may start from it meanwhile";
  ports.selftest = selftest;
  ASSERT_TRUE(build_release(folder.root(), inputs, ports));
  EXPECT_EQ(in_releases(), 1u);
  EXPECT_TRUE(verify_release(release(), read_manifest(release()).value()));
}

TEST_F(Build, RootRunsNoToolThatOthersCanChange) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  folder.write("venv/bin/python3", "#!/bin/sh\ntouch " + (folder / "ran").string() + "\n");
  fs::permissions(folder / "venv/bin/python3", fs::perms(0777));
  inputs.python = (folder / "venv/bin/python3").string();
  const auto built = build_release(folder.root(), inputs, ports);
  ASSERT_FALSE(built);
  EXPECT_NE(built.error().what.find("can be written by group or others"), std::string::npos)
      << built.error().what;
  EXPECT_FALSE(fs::exists(folder / "ran"));
}

TEST_F(Build, AnotherUserBuildsAndRootOwnsTheRelease) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  fs::permissions(folder / "", fs::perms(0755));
  ports.build_as = run_as("1", "").value();
  folder.write("usr/share/kdtree/kernel/CMakeLists.txt",
               folder.read("usr/share/kdtree/kernel/CMakeLists.txt") +
                   "execute_process(COMMAND id -u OUTPUT_VARIABLE who)\n"
                   "message(STATUS \"built by ${who}\")\n");
  auto built = build_release(folder.root(), inputs, ports);
  ASSERT_TRUE(built) << built.error().what;
  EXPECT_NE(
      folder.read("opt/kdtree/releases/" + release_id(inputs) + "/build.log").find("built by 1\n"),
      std::string::npos);
  for (const auto& entry : fs::recursive_directory_iterator(release())) {
    struct stat about {};
    ASSERT_EQ(::lstat(entry.path().c_str(), &about), 0);
    EXPECT_EQ(about.st_uid, 0u) << entry.path();
    EXPECT_EQ(about.st_mode & 022, 0u) << entry.path();
  }
}

TEST_F(Build, DamagedReleaseIsMadeAgain) {
  ASSERT_TRUE(build_release(folder.root(), inputs, ports));
  folder.write("opt/kdtree/releases/" + release_id(inputs) + "/lib/libkdtree.so", "other");
  auto built = build_release(folder.root(), inputs, ports);
  ASSERT_TRUE(built);
  EXPECT_FALSE(built->reused);
  EXPECT_TRUE(verify_release(release(), built->manifest));
}

TEST_F(Build, FailedCompileLeavesNothingButItsLog) {
  inputs.device = KernelDevice::cuda;
  inputs.nvcc = NvccFacts{"/n/bin/nvcc", "/n", "13.0"};
  inputs.archs = {"90", "120"};
  const auto built = build_release(folder.root(), inputs, ports);
  ASSERT_FALSE(built);
  EXPECT_EQ(built.error().code, ExitCode::refused);
  EXPECT_NE(built.error().what.find("(configure): CMake Error at CMakeLists.txt:4 (message): "
                                    "error: no CUDA here"),
            std::string::npos)
      << built.error().what;
  EXPECT_NE(built.error().hint.find("build-failed.log"), std::string::npos);
  const auto log = folder.read("var/lib/kdtree/build-failed.log");
  EXPECT_NE(log.find("no CUDA here"), std::string::npos);
  EXPECT_EQ(log.find("See also"), std::string::npos) << "that folder is gone: " << log;
  EXPECT_NE(log.find("-DKDTREE_CUDA_ARCHS=90;120"), std::string::npos);
  EXPECT_EQ(in_releases(), 0u);
}

TEST_F(Build, FailedSelftestLeavesNoRelease) {
  ports.selftest = [](const fs::path&) -> Result<SelftestProof> {
    return fail(ExitCode::refused, "the kernel is wrong");
  };
  const auto built = build_release(folder.root(), inputs, ports);
  ASSERT_FALSE(built);
  EXPECT_EQ(built.error().what, "the kernel is wrong");
  EXPECT_EQ(in_releases(), 0u);
}

TEST_F(Build, BuildThatMakesNoLibraryIsAnError) {
  folder.write("usr/share/kdtree/kernel/CMakeLists.txt",
               "cmake_minimum_required(VERSION 3.25)\nproject(k LANGUAGES NONE)\n");
  const auto built = build_release(folder.root(), inputs, ports);
  ASSERT_FALSE(built);
  EXPECT_NE(built.error().what.find("made no lib/libkdtree.so"), std::string::npos);
}

TEST(Prune, KeepsTheNewestAndTheNeeded) {
  PlanFolder folder;
  for (int i = 0; i < 6; ++i) {
    Manifest m = manifest("r" + std::to_string(i));
    m.created = "2026-01-0" + std::to_string(i + 1) + "T00:00:00Z";
    folder.write("opt/kdtree/releases/" + m.release + "/manifest.json", to_json(m).dump());
  }
  folder.write("opt/kdtree/releases/not-ours/x", "x");
  const auto removed = prune_releases(folder.root(), 2, {"r1"});
  ASSERT_TRUE(removed);
  EXPECT_EQ(*removed, (std::vector<std::string>{"r0", "r2", "r3"}));
  EXPECT_TRUE(fs::exists(folder / "opt/kdtree/releases/r1"));
  EXPECT_TRUE(fs::exists(folder / "opt/kdtree/releases/not-ours/x"));
}

}  // namespace
}  // namespace kdtree
