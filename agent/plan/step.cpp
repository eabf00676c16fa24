// SPDX-License-Identifier: Apache-2.0
#include "agent/plan/step.h"

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "agent/stats/control_file.h"
#include "agent/util/atomic_file.h"
#include "agent/util/interrupt.h"

namespace kdtree {
namespace {

namespace fs = std::filesystem;
constexpr std::chrono::seconds kQuick{90};

// A test without root can't give files away.
FileImage ownable(FileImage image) {
  if (::geteuid() != 0) {
    image.attributes.uid = ::geteuid();
    image.attributes.gid = ::getegid();
  }
  return image;
}

Status put(const fs::path& path, const std::optional<FileImage>& image) {
  if (!image) {
    KDTREE_TRY(remove_file(path));
    // Our drop-in's folder, if nothing else is in it.
    if (path.parent_path().extension() == ".d") ::rmdir(path.parent_path().c_str());
    return {};
  }
  KDTREE_TRY(make_directories(path.parent_path()));
  KDTREE_TRY(restore_image(path, ownable(*image)));
  KDTREE_TRY_ASSIGN(auto written, read_image(path));
  if (!written || written->bytes != image->bytes ||
      written->symlink_target != image->symlink_target)
    return fail(ExitCode::refused, path.string() + " does not hold what was written to it");
  return {};
}

bool changes_file(const Step& step) {
  return step.kind == StepKind::write_file || step.kind == StepKind::remove_file ||
         step.kind == StepKind::set_symlink;
}

Status remove_tree(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) return tl::make_unexpected(io_error("removing", path, error.value()));
  return sync_directory(path.parent_path());
}

}  // namespace

void StepRunner::say(const std::string& text) const {
  if (ports_.say) ports_.say(text);
}

Status StepRunner::run(const Step& step) {
  if (changes_file(step)) return run_file(step);
  if (step.kind == StepKind::remove_tree) {
    say("removing " + step.path);
    std::error_code error;
    if (!fs::exists(fs::symlink_status(root_(step.path), error))) return {};
    return remove_tree(root_(step.path));
  }
  if (step.kind == StepKind::write_control) {
    say("telling the ranks: mode " + std::string(to_string(step.mode)));
    KDTREE_TRY(make_directories(root_(paths::kRun)));
    KDTREE_TRY_ASSIGN(auto control, write_control(root_, step.mode, step.release));
    generation_ = control.generation;
    return {};
  }
  return ports_.services == nullptr ? Status{} : run_unit(step);
}

Status StepRunner::run_file(const Step& step) {
  say(step.after ? "writing " + step.path : "removing " + step.path);
  return put(root_(step.path), step.after);
}

void StepRunner::drain(const std::string& unit) {
  if (ports_.services == nullptr || ports_.drain_deadline.count() == 0) return;
  const auto before = ports_.services->unit(unit);
  if (!before || !before->is_active() || before->main_pid == 0) return;
  if (before->restarts_after_success()) return;  // it would come up again in the middle of this
  say("letting running requests finish, for at most " +
      std::to_string(std::chrono::ceil<std::chrono::seconds>(ports_.drain_deadline).count()) +
      " s");
  if (!ports_.services->terminate_main(unit)) return;
  const auto until = std::chrono::steady_clock::now() + ports_.drain_deadline;
  while (std::chrono::steady_clock::now() < until && !interrupted()) {
    const auto now = ports_.services->unit(unit);
    if (!now || now->main_pid != before->main_pid) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

Status StepRunner::run_unit(const Step& step) {
  ServiceManager& services = *ports_.services;
  switch (step.kind) {
    case StepKind::daemon_reload:
      return services.daemon_reload(kQuick);
    case StepKind::restart_unit: {
      KDTREE_TRY_ASSIGN(const UnitState unit, services.unit(step.unit));
      if (unit.need_daemon_reload) KDTREE_TRY(services.daemon_reload(kQuick));
      previous_invocation_ = unit.invocation_id;
      generation_ = 0;
      KDTREE_TRY(services.reset_failed(step.unit));
      say("restarting " + step.unit);
      return services.restart(step.unit, ports_.restart_deadline, ports_.tick);
    }
    case StepKind::start_unit:
      say("starting " + step.unit);
      return services.start(step.unit, kQuick, ports_.tick);
    case StepKind::stop_unit:
      say("stopping " + step.unit);
      return services.stop(step.unit, ports_.restart_deadline, ports_.tick);
    case StepKind::enable_unit:
      return services.enable(step.unit);
    case StepKind::disable_unit:
      return services.disable(step.unit);
    default:
      return {};
  }
}

Status StepRunner::undo(const Step& step) {
  if (changes_file(step)) {
    say("putting back " + step.path);
    return put(root_(step.path), step.before);
  }
  if (step.kind == StepKind::write_control) {
    KDTREE_TRY_ASSIGN(auto control, write_control(root_, step.mode_before, step.release_before));
    generation_ = control.generation;
    return {};
  }
  if (ports_.services == nullptr) return {};
  if (step.kind == StepKind::enable_unit) return ports_.services->disable(step.unit);
  if (step.kind == StepKind::disable_unit) return ports_.services->enable(step.unit);
  return {};
}

Status StepRunner::gate(const GateExpectation& expect, bool restarted) {
  if (!ports_.gate || expect.unit.empty()) return {};
  return ports_.gate(
      {expect, restarted, restarted ? previous_invocation_ : std::string(), generation_});
}

Status check_base(const Root& root, const Plan& plan) {
  for (const auto& step : plan.steps) {
    if (!changes_file(step)) continue;
    KDTREE_TRY_ASSIGN(auto now, read_image(root(step.path)));
    const bool same = now.has_value() == step.before.has_value() &&
                      (!now || (now->bytes == step.before->bytes &&
                                now->symlink_target == step.before->symlink_target));
    if (!same)
      return fail(ExitCode::refused, step.path + " has changed since the plan was made",
                  "run the command again");
  }
  return {};
}

}  // namespace kdtree
