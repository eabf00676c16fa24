// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/collect_facts.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "agent/cli/deployed.h"
#include "agent/cli/engine_python.h"
#include "agent/cli/hand_made.h"
#include "agent/nvml/list_gpus.h"
#include "agent/plan/builder.h"
#include "agent/plan/plan.h"
#include "agent/unitfile/environment.h"
#include "agent/util/sha256.h"
#include "agent/util/subprocess.h"
#include "agent/util/trusted_path.h"

namespace kdtree {
namespace {

namespace fs = std::filesystem;

constexpr const char* kAgentUnit = "kdtree-agent.service";

Result<TextFile> read_text(const Root& root, const std::string& path) {
  // systemd follows links of unit files; so do we, and then read the file itself.
  std::error_code error;
  auto real = fs::canonical(root(path), error);
  auto bytes = read_file(error ? root(path) : real);
  if (!bytes) return tl::make_unexpected(bytes.error());
  return TextFile{path, std::move(*bytes)};
}

Result<EngineUnitFacts> collect_unit(const Root& root, ServiceManager& services,
                                     const Config& config, FactsDepth depth) {
  EngineUnitFacts facts;
  KDTREE_TRY_ASSIGN(facts.state, services.unit(config.engine.unit));
  if (!facts.state.exists() && !config.engine.whole_unit() && depth != FactsDepth::removing)
    return fail(ExitCode::refused, "there is no unit " + config.engine.unit + " on this host",
                "name an existing one as engine.unit in " + std::string(paths::kConfig) +
                    ", or give engine.command and kdtree writes it");
  std::vector<std::string> files;
  if (!facts.state.fragment_path.empty()) files.push_back(facts.state.fragment_path);
  files.insert(files.end(), facts.state.drop_in_paths.begin(), facts.state.drop_in_paths.end());
  for (const auto& path : files) {
    KDTREE_TRY_ASSIGN(auto file, read_text(root, path));
    facts.files.push_back(std::move(file));
  }
  for (const auto& named : facts.state.environment_files) {
    for (const auto& path : environment_file_paths(root, named.path)) {
      KDTREE_TRY_ASSIGN(auto file, read_text(root, path));
      facts.environment_files.push_back(std::move(file));
    }
  }
  KDTREE_TRY_ASSIGN(auto variables, services.manager_environment());
  facts.manager_environment.insert(variables.begin(), variables.end());
  return facts;
}

// Of the sources that a release is built from; "" where they aren't installed.
std::string source_digest(const Root& root) {
  std::map<std::string, std::string> digests;
  for (const char* part : {"kernel", "sitecustomize"}) {
    auto tree = sha256_tree(root(fs::path(paths::kShare) / part));
    if (!tree || tree->empty()) return {};
    for (const auto& [path, digest] : *tree) digests[std::string(part) + "/" + path] = digest;
  }
  return sha256_of_tree(digests);
}

// What `path --version` says, run as the engine's user or, where that is root, only if nobody else
// can change it. Errors: why it was not asked.
Result<std::string> nvcc_version(const std::string& path, const std::optional<RunAs>& user) {
  Command command;
  if (user)
    command.argv = user->prefix();
  else if (geteuid() == 0)
    KDTREE_TRY(check_only_root_replaces(path));
  command.argv.insert(command.argv.end(), {path, "--version"});
  command.deadline = std::chrono::seconds(10);
  auto outcome = run_command(command);
  if (!outcome || !outcome->ok()) return std::string();
  constexpr std::string_view kMark = "release ";
  auto at = outcome->output.find(kMark);
  if (at == std::string::npos) return std::string();
  at += kMark.size();
  return outcome->output.substr(at, outcome->output.find_first_not_of("0123456789.", at) - at);
}

Status collect_for_building(Context& context, const Config& config, Facts& facts) {
  look_at_ground(context, config, facts);
  auto user = engine_user(config, facts.unit.state);
  if (!user) facts.user_error = user.error().what;
  auto nvcc =
      find_nvcc(config, facts.engine ? facts.engine->site : "", user ? *user : std::nullopt);
  facts.nvcc = std::move(nvcc.found);
  facts.nvcc_searched = std::move(nvcc.searched);
  facts.hand_made =
      find_hand_made(context.root, facts.unit, facts.engine ? facts.engine->site : "");
  facts.source_digest = source_digest(context.root);
  KDTREE_TRY_ASSIGN(facts.free_bytes, free_bytes(context.root(paths::kReleases)));
  return {};
}

}  // namespace

void look_at_ground(Context& context, const Config& config, Facts& facts) {
  auto engine = probe_engine(config, facts.unit.state,
                             context.root(fs::path(paths::kShare) / "sitecustomize"));
  if (engine)
    facts.engine = std::move(*engine);
  else
    facts.engine_error = engine.error().what;
  auto gpus = list_gpus();
  if (!gpus) {
    facts.gpu_error = gpus.error().what;
    return;
  }
  facts.gpus = std::move(gpus->gpus);
  facts.driver = std::move(gpus->driver);
}

NvccSearch find_nvcc(const Config& config, const std::string& site,
                     const std::optional<RunAs>& user) {
  NvccSearch search;
  std::vector<std::pair<std::string, fs::path>> places;
  if (!config.kernel.cuda_home.empty())
    places.emplace_back("kernel.cuda_home", fs::path(config.kernel.cuda_home) / "bin/nvcc");
  if (const char* home = std::getenv("CUDA_HOME"); home && *home)
    places.emplace_back("CUDA_HOME", fs::path(home) / "bin/nvcc");
  if (auto in_path = find_program("nvcc"); !in_path.empty()) places.emplace_back("PATH", in_path);
  places.emplace_back("", "/usr/local/cuda/bin/nvcc");
  if (!site.empty()) {
    std::error_code error;
    for (fs::directory_iterator it(fs::path(site) / "nvidia", error), end; !error && it != end;
         it.increment(error))
      if (it->path().filename().string().starts_with("cu") && fs::exists(it->path() / "bin/nvcc"))
        places.emplace_back("the engine's Python", it->path() / "bin/nvcc");
  }
  bool settled = false;
  for (const auto& [why, path] : places) {
    search.searched.push_back(path.string() + (why.empty() ? "" : " (" + why + ")"));
    if (settled || access(path.c_str(), X_OK) != 0) continue;
    std::error_code error;
    auto real = fs::canonical(path, error);
    auto version = nvcc_version(path.string(), user);
    if (!version) search.searched.back() += ", not run: " + version.error().what;
    if (error || !version || version->empty()) continue;
    settled = why == "kernel.cuda_home" || nvcc_is_new_enough(*version);
    if (settled || !search.found)
      search.found = NvccFacts{path.string(), real.parent_path().parent_path().string(), *version};
  }
  return search;
}

Result<Facts> collect_facts(Context& context, const Config& config, FactsDepth depth) {
  Facts facts;
  facts.root = !context.root.is_host() || geteuid() == 0;
  KDTREE_TRY_ASSIGN(auto services, context.services());
  KDTREE_TRY_ASSIGN(facts.unit, collect_unit(context.root, *services, config, depth));
  KDTREE_TRY_ASSIGN(facts.state, read_state(context.root));
  if (!facts.state.current.none())
    if (auto manifest = read_manifest(release_folder(context.root, facts.state.current.release)))
      facts.release = std::move(*manifest);
  // One that can't be read says nothing, and each change that needs it writes it anew.
  if (auto control = read_control(context.root)) facts.control = std::move(*control);
  KDTREE_TRY_ASSIGN(auto agent, services->unit(kAgentUnit));
  if (agent.exists() && !agent.fragment_path.empty())
    if (auto file = read_text(context.root, agent.fragment_path))
      facts.agent_unit = std::move(*file);
  for (const char* tree : {"/opt/kdtree", paths::kStats})
    if (std::error_code error; fs::exists(context.root(tree), error))
      facts.trees.emplace_back(tree);
  if (depth == FactsDepth::building) KDTREE_TRY(collect_for_building(context, config, facts));
  for (const auto& path : planned_paths(config)) {
    KDTREE_TRY_ASSIGN(facts.files[path], read_image(context.root(path)));
  }
  return facts;
}

}  // namespace kdtree
