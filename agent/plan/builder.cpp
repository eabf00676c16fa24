// SPDX-License-Identifier: Apache-2.0
#include "agent/plan/builder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <nlohmann/json.hpp>
#include <thread>

#include "agent/util/atomic_file.h"
#include "agent/util/clock.h"
#include "agent/util/sha256.h"
#include "agent/util/subprocess.h"
#include "agent/util/take_tree.h"
#include "agent/util/trusted_path.h"
#include "agent/util/unique_fd.h"

namespace kdtree {
namespace {

namespace fs = std::filesystem;

constexpr mode_t kLogMode = 0644;

Status delete_tree(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) return tl::make_unexpected(io_error("removing", path, error.value()));
  return {};
}

// Of a tool's output: what names the cause. The first error is it; those after it follow from it.
class ErrorLine {
 public:
  void see(const std::string& line) {
    const std::size_t from = line.find_first_not_of(" \t");
    if (from == std::string::npos) return;
    if (!first_.empty() && first_.ends_with(':')) first_ += " " + line.substr(from);
    const auto has = [&](const char* mark) { return line.find(mark) != std::string::npos; };
    if (first_.empty() &&
        (has("error:") || has("Error:") || has("error   :") || has("CMake Error")))
      first_ = line.substr(from);
    if (has("rror")) last_ = line.substr(from);
  }
  const std::string& text() const { return first_.empty() ? last_ : first_; }  // "" = none

 private:
  std::string first_, last_;
};

// One build: its folders, its log.
class Build {
 public:
  Build(const Root& root, const BuildInputs& inputs, const BuildPorts& ports)
      : root_(root),
        inputs_(inputs),
        ports_(ports),
        id_(release_id(inputs)),
        staging_(root(paths::kReleases) / (".staging-" + id_)),
        work_(staging_ / "work"),
        release_(staging_ / "release") {}

  Result<Manifest> run() {
    KDTREE_TRY(make_directories(root_(paths::kReleases)));
    KDTREE_TRY(delete_tree(staging_));
    auto built = make();
    if (!built && !keep_log() &&
        built.error().hint.find(failed_log().string()) != std::string::npos)
      built = fail(built.error().code, built.error().what,
                   "its log could not be kept: free space and try again");
    std::ignore = delete_tree(staging_);
    return built;
  }

 private:
  Result<Manifest> make() {
    KDTREE_TRY(make_directories(staging_));
    log_ = UniqueFd(
        ::open(log_path().c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kLogMode));
    if (!log_) return tl::make_unexpected(io_error("creating", log_path(), errno));
    KDTREE_TRY(check_tools());
    KDTREE_TRY(make_work_folder());
    KDTREE_TRY(build_kernel());
    KDTREE_TRY(add_python());
    KDTREE_TRY(take_tree(work_ / "out", release_));
    progress("selftest", "comparing the kernel with its fp64 reference");
    KDTREE_TRY_ASSIGN(auto proof, ports_.selftest(release_));
    return seal(proof);
  }

  void progress(const std::string& stage, const std::string& line) const {
    if (ports_.progress) ports_.progress(stage, line);
  }
  fs::path log_path() const { return staging_ / "build.log"; }

  // What root runs, nobody else may be able to change.
  Status check_tools() const {
    if (ports_.build_as || ::geteuid() != 0) return {};
    std::vector<std::string> tools = {inputs_.python};
    for (const char* name : {"cmake", "ninja", "make", "c++", "cc"})
      if (auto found = find_program(name); !found.empty()) tools.push_back(std::move(found));
    if (inputs_.nvcc && ::access(inputs_.nvcc->path.c_str(), F_OK) == 0)
      tools.push_back(inputs_.nvcc->path);
    for (const auto& tool : tools)
      if (auto safe = check_only_root_replaces(tool); !safe)
        return prefixed("root would run it to build the kernel", std::move(safe).error());
    return {};
  }

  Status make_work_folder() {
    KDTREE_TRY(make_directories(work_, 0700));
    if (ports_.build_as && ::chown(work_.c_str(), ports_.build_as->uid, ports_.build_as->gid) != 0)
      return tl::make_unexpected(io_error("setting the owner of", work_, errno));
    return {};
  }

  Status tool(const std::string& stage, std::vector<std::string> argv) {
    Command command;
    if (ports_.build_as) command.argv = ports_.build_as->prefix();
    command.argv.insert(command.argv.end(), std::make_move_iterator(argv.begin()),
                        std::make_move_iterator(argv.end()));
    command.directory = work_;
    command.environment["HOME"] = command.environment["TMPDIR"] = work_.string();
    command.deadline = ports_.deadline;
    command.environment["LC_ALL"] = "C";
    std::string log = "$";
    for (const auto& word : command.argv) log += " " + word;
    KDTREE_TRY(add_to_log(log));
    ErrorLine error;
    bool full = false;
    command.on_line = [&](std::string_view line) {
      if (line.starts_with("See also \"" + staging_.string())) return;  // is gone when this is read
      logged_ = logged_ && add_to_log(std::string(line)).has_value();
      error.see(std::string(line));
      if (line.find("No space left on device") != std::string_view::npos) full = true;
      progress(stage, std::string(line));
    };
    KDTREE_TRY_ASSIGN(const auto outcome, run_command(command));
    if (outcome.ok() && logged_) return {};
    if (full || outcome.ok())
      return fail(ExitCode::refused, "no space left to build the kernel (" + stage + ")",
                  "free space on the filesystem of " + std::string(paths::kReleases));
    const std::string why = error.text().empty() ? outcome.last_line() : error.text();
    return fail(ExitCode::refused, "building the kernel failed (" + stage + "): " + why,
                "the whole log is " + failed_log().string());
  }

  Status add_to_log(const std::string& line) {
    const std::string text = line + "\n";
    if (::write(log_.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()))
      return {};
    return tl::make_unexpected(io_error("writing", log_path(), errno));
  }

  Status build_kernel() {
    const std::string build = (work_ / "build").string();
    const fs::path out = work_ / "out";
    std::vector<std::string> configure = {"cmake",
                                          "-S",
                                          (root_(paths::kShare) / "kernel").string(),
                                          "-B",
                                          build,
                                          "-DCMAKE_BUILD_TYPE=Release",
                                          "-DKDTREE_PYTHON=" + inputs_.python};
    if (!find_program("ninja").empty()) configure.insert(configure.end(), {"-G", "Ninja"});
    if (inputs_.device == KernelDevice::cuda) {
      std::string archs;
      for (const auto& arch : inputs_.archs) archs += (archs.empty() ? "" : ";") + arch;
      configure.insert(configure.end(), {"-DKDTREE_WITH_CUDA=ON", "-DKDTREE_CUDA_ARCHS=" + archs,
                                         "-DKDTREE_CUDA_HOME=" + inputs_.nvcc->cuda_home});
    } else {
      configure.emplace_back("-DKDTREE_WITH_CUDA=OFF");
    }
    const unsigned jobs = std::clamp(std::thread::hardware_concurrency(), 1u, 8u);
    KDTREE_TRY(tool("configure", std::move(configure)));
    KDTREE_TRY(tool("compile", {"cmake", "--build", build, "--parallel", std::to_string(jobs)}));
    KDTREE_TRY(tool("install", {"cmake", "--install", build, "--prefix", out.string()}));
    for (const char* needed :
         {"lib/libkdtree.so", "lib/libkdtree_torch.so", "python/kdtree_kernel"})
      if (std::error_code error; !fs::exists(fs::symlink_status(out / needed, error)))
        return fail(ExitCode::refused, std::string("the build made no ") + needed,
                    "the whole log is " + failed_log().string());
    return {};
  }

  // Bytecode is part of the release: a worker's start is cheap, and an engine run by root writes
  // none beside it.
  Status add_python() {
    const std::string out = (work_ / "out").string();
    const std::string python = (work_ / "out/python").string();
    KDTREE_TRY(tool("patch", {"cmake", "-E", "copy_directory",
                              (root_(paths::kShare) / "sitecustomize").string(), python}));
    progress("install", "compiling Python");
    return tool("bytecode", {inputs_.python, "-I", "-S", "-m", "compileall", "-q",
                             "--invalidation-mode", "unchecked-hash", "-s", out, "-p",
                             (fs::path(paths::kReleases) / id_).string(), python});
  }

  Result<Manifest> seal(const SelftestProof& proof) {
    progress("install", "sealing the release");
    log_.reset();
    Manifest manifest = expected_manifest(inputs_);
    manifest.created = utc_now();
    manifest.selftest_device = proof.device;
    manifest.selftest_cases = proof.cases;
    manifest.proven_kv = proof.proven_kv;
    KDTREE_TRY_ASSIGN(manifest.files, sha256_tree(release_));
    KDTREE_TRY(
        write_file_atomic(release_ / "manifest.json", to_json(manifest).dump(2) + "\n", 0644));
    if (::rename(log_path().c_str(), (release_ / "build.log").c_str()) != 0)
      return tl::make_unexpected(io_error("moving", log_path(), errno));
    KDTREE_TRY(sync_tree(release_));
    KDTREE_TRY(exchange_durably(release_, root_(paths::kReleases) / id_));
    return manifest;
  }

  fs::path failed_log() const { return root_(paths::kState) / "build-failed.log"; }

  Status keep_log() {
    log_.reset();
    KDTREE_TRY_ASSIGN(const auto text, read_file(log_path()));
    KDTREE_TRY(make_directories(root_(paths::kState)));
    return write_file_atomic(failed_log(), text, kLogMode);
  }

  const Root& root_;
  const BuildInputs& inputs_;
  const BuildPorts& ports_;
  const std::string id_;
  const fs::path staging_, work_, release_;
  UniqueFd log_;
  bool logged_ = true;
};

}  // namespace

Result<BuiltRelease> build_release(const Root& root, const BuildInputs& inputs,
                                   const BuildPorts& ports) {
  const fs::path release = root(paths::kReleases) / release_id(inputs);
  std::error_code error;
  if (fs::exists(fs::symlink_status(release, error))) {
    auto manifest = read_manifest(release);
    if (manifest && verify_release(release, *manifest))
      return BuiltRelease{std::move(*manifest), true};
  }
  KDTREE_TRY_ASSIGN(auto manifest, Build(root, inputs, ports).run());
  return BuiltRelease{std::move(manifest), false};
}

Result<std::vector<std::string>> prune_releases(const Root& root, std::size_t keep,
                                                const std::vector<std::string>& needed) {
  std::vector<std::pair<std::string, std::string>> releases;  // created, id
  std::error_code error;
  for (fs::directory_iterator it(root(paths::kReleases), error), end; !error && it != end;
       it.increment(error))
    if (auto manifest = read_manifest(it->path()))
      releases.emplace_back(manifest->created, manifest->release);
  std::sort(releases.begin(), releases.end());
  std::vector<std::string> removed;
  for (std::size_t i = 0; i + keep < releases.size(); ++i) {
    const std::string& id = releases[i].second;
    if (std::find(needed.begin(), needed.end(), id) != needed.end()) continue;
    KDTREE_TRY(delete_tree(root(paths::kReleases) / id));
    removed.push_back(id);
  }
  return removed;
}

}  // namespace kdtree
