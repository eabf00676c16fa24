// SPDX-License-Identifier: Apache-2.0
#include "agent/plan/builder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <thread>

#include "agent/util/atomic_file.h"
#include "agent/util/clock.h"
#include "agent/util/sha256.h"
#include "agent/util/subprocess.h"
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

// One build: its folders, its log.
class Build {
 public:
  Build(const Root& root, const BuildInputs& inputs, const BuildPorts& ports)
      : root_(root),
        inputs_(inputs),
        ports_(ports),
        id_(release_id(inputs)),
        staging_(root(paths::kReleases) / (".staging-" + id_)),
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
    KDTREE_TRY(make_directories(release_));
    log_ = UniqueFd(::open((release_ / "build.log").c_str(),
                           O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kLogMode));
    if (!log_) return tl::make_unexpected(io_error("creating", release_ / "build.log", errno));
    KDTREE_TRY(build_kernel());
    KDTREE_TRY(copy_python());
    KDTREE_TRY(compile_python());
    KDTREE_TRY(set_modes());
    progress("selftest", "comparing the kernel with its fp64 reference");
    KDTREE_TRY_ASSIGN(auto proof, ports_.selftest(release_));
    return seal(proof);
  }

  void progress(const std::string& stage, const std::string& line) const {
    if (ports_.progress) ports_.progress(stage, line);
  }

  Status tool(const std::string& stage, std::vector<std::string> argv) {
    Command command;
    command.argv = std::move(argv);
    command.directory = "/";
    command.deadline = ports_.deadline;
    command.environment["LC_ALL"] = "C";
    std::string log = "$";
    for (const auto& word : command.argv) log += " " + word;
    KDTREE_TRY(add_to_log(log));
    std::string last_error;
    bool full = false;
    command.on_line = [&](std::string_view line) {
      logged_ = logged_ && add_to_log(std::string(line)).has_value();
      if (line.find("rror") != std::string_view::npos) last_error = line;
      if (line.find("No space left on device") != std::string_view::npos) full = true;
      progress(stage, std::string(line));
    };
    KDTREE_TRY_ASSIGN(const auto outcome, run_command(command));
    if (outcome.ok() && logged_) return {};
    if (full || outcome.ok())
      return fail(ExitCode::refused, "no space left to build the kernel (" + stage + ")",
                  "free space on the filesystem of " + std::string(paths::kReleases));
    const std::string why = last_error.empty() ? outcome.last_line() : last_error;
    return fail(ExitCode::refused, "building the kernel failed (" + stage + "): " + why,
                "the whole log is " + failed_log().string());
  }

  Status add_to_log(const std::string& line) {
    const std::string text = line + "\n";
    if (::write(log_.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()))
      return {};
    return tl::make_unexpected(io_error("writing", release_ / "build.log", errno));
  }

  Status build_kernel() {
    const std::string build = (staging_ / "build").string();
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
    KDTREE_TRY(tool("install", {"cmake", "--install", build, "--prefix", release_.string()}));
    for (const char* needed :
         {"lib/libkdtree.so", "lib/libkdtree_torch.so", "python/kdtree_kernel"})
      if (!fs::exists(release_ / needed))
        return fail(ExitCode::refused, std::string("the build made no ") + needed,
                    "the whole log is " + failed_log().string());
    return {};
  }

  Status copy_python() {
    std::error_code error;
    fs::copy(root_(paths::kShare) / "sitecustomize", release_ / "python",
             fs::copy_options::recursive | fs::copy_options::overwrite_existing, error);
    if (error)
      return tl::make_unexpected(io_error("copying to", release_ / "python", error.value()));
    return {};
  }

  // Bytecode is part of the release: a worker's start is cheap, and an engine run by root writes
  // none beside it.
  Status compile_python() {
    progress("install", "compiling Python");
    return tool("bytecode",
                {inputs_.python, "-I", "-S", "-m", "compileall", "-q", "--invalidation-mode",
                 "unchecked-hash", "-s", release_.string(), "-p",
                 (fs::path(paths::kReleases) / id_).string(), (release_ / "python").string()});
  }

  // Whatever the umask: root writes, the engine's user reads.
  Status set_modes() {
    std::error_code error;
    fs::recursive_directory_iterator at(release_, error);
    for (; !error && at != fs::recursive_directory_iterator(); at.increment(error)) {
      const auto status = at->symlink_status(error);
      const bool is_library = at->path().extension() == ".so";
      const mode_t mode = fs::is_directory(status) || is_library ? 0755 : 0644;
      if (::chmod(at->path().c_str(), mode) != 0)
        return tl::make_unexpected(io_error("setting the mode of", at->path(), errno));
    }
    if (error) return tl::make_unexpected(io_error("walking", release_, error.value()));
    return {};
  }

  Result<Manifest> seal(const SelftestProof& proof) {
    progress("install", "sealing the release");
    log_.reset();
    Manifest manifest = expected_manifest(inputs_);
    manifest.created = utc_now();
    manifest.selftest_device = proof.device;
    manifest.selftest_cases = proof.cases;
    KDTREE_TRY_ASSIGN(manifest.files, sha256_tree(release_));
    manifest.files.erase("build.log");
    KDTREE_TRY(
        write_file_atomic(release_ / "manifest.json", to_json(manifest).dump(2) + "\n", 0644));
    KDTREE_TRY(sync_tree(release_));
    KDTREE_TRY(move_durably(release_, root_(paths::kReleases) / id_));
    return manifest;
  }

  fs::path failed_log() const { return root_(paths::kState) / "build-failed.log"; }

  Status keep_log() {
    log_.reset();
    KDTREE_TRY_ASSIGN(const auto text, read_file(release_ / "build.log"));
    KDTREE_TRY(make_directories(root_(paths::kState)));
    return write_file_atomic(failed_log(), text, kLogMode);
  }

  const Root& root_;
  const BuildInputs& inputs_;
  const BuildPorts& ports_;
  const std::string id_;
  const fs::path staging_, release_;
  UniqueFd log_;
  bool logged_ = true;
};

// A folder that is there and not whole: out of the way, so that the same id can be made again.
Status put_aside(const fs::path& release) {
  const fs::path aside = release.parent_path() / (".damaged-" + release.filename().string());
  KDTREE_TRY(delete_tree(aside));
  return move_durably(release, aside);
}

}  // namespace

Result<BuiltRelease> build_release(const Root& root, const BuildInputs& inputs,
                                   const BuildPorts& ports) {
  const fs::path release = root(paths::kReleases) / release_id(inputs);
  std::error_code error;
  if (fs::exists(fs::symlink_status(release, error))) {
    auto manifest = read_manifest(release);
    if (manifest && verify_release(release, *manifest))
      return BuiltRelease{std::move(*manifest), true};
    KDTREE_TRY(put_aside(release));
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
