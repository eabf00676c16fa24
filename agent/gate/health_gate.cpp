// SPDX-License-Identifier: Apache-2.0
#include "agent/gate/health_gate.h"

#include <algorithm>
#include <optional>
#include <thread>

#include "agent/gate/more_checks.h"
#include "agent/gate/ranks.h"
#include "agent/gate/socket_owner.h"
#include "agent/gate/stage.h"
#include "agent/gate/unit_journal.h"
#include "agent/util/http_get.h"
#include "agent/util/interrupt.h"

namespace kdtree {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kPoll{200};
constexpr milliseconds kUnitEvery{500};
constexpr milliseconds kHealthEvery{1'000};
constexpr milliseconds kHealthDeadline{5'000};
// An engine that answers its health check has loaded everything: ranks that are silent after this
// long stay silent.
constexpr seconds kSilentAfterHealthy{60};
constexpr std::size_t kLinesReadAtEnd = 60;

std::string seconds_text(milliseconds span) {
  return std::to_string(duration_cast<seconds>(span).count()) + " s";
}

// Of a dead engine's last lines: the last that names an error, and the very last one.
std::string telling_lines(const std::vector<std::string>& lines) {
  if (lines.empty()) return {};
  auto names_error = [](const std::string& line) {
    for (const char* mark : {"Error", "error:", "Exception", "out of memory", "Fatal", "Killed"})
      if (line.find(mark) != line.npos) return true;
    return false;
  };
  auto error = std::find_if(lines.rbegin(), lines.rend(), names_error);
  if (error == lines.rend() || *error == lines.back()) return lines.back();
  return *error + " | " + lines.back();
}

class Gate {
 public:
  Gate(const Root& root, ServiceManager& services, const GateWish& wish,
       const GateProgressFn& progress)
      : root_(root),
        services_(services),
        wish_(wish),
        progress_(progress),
        started_(Clock::now()) {}

  Result<GateReport> run();

 private:
  // Each returns what is still missing ("" = nothing), or the error that ends the gate.
  Result<std::string> check_unit();
  std::string check_health();
  Result<std::string> check_ranks();
  std::string check_rank(const RankView& view) const;
  Result<std::string> check_more();

  Status crashed(const std::string& how) const;
  void learn_stage();
  void note(const std::string& text);
  void report(const std::string& stage, const std::string& missing);
  milliseconds elapsed() const { return duration_cast<milliseconds>(Clock::now() - started_); }

  const Root& root_;
  ServiceManager& services_;
  const GateWish& wish_;
  const GateProgressFn& progress_;
  const Clock::time_point started_;

  UnitState unit_;
  std::string pinned_invocation_;  // the start that is being judged
  std::uint32_t pinned_restarts_ = 0;
  std::optional<UnitJournal> journal_;
  Stage stage_ = Stage::starting;
  std::optional<Clock::time_point> unit_read_, health_read_, healthy_since_;
  std::string unit_missing_;
  std::string health_missing_ = "no answer yet";
  int ranks_right_ = 0;
  std::optional<Clock::time_point> more_asked_;
  std::string more_missing_;
  bool more_passed_ = false;
  std::vector<std::string> notes_;
};

Status Gate::crashed(const std::string& how) const {
  std::string what = wish_.unit + " " + how;
  if (!unit_.result.empty() && unit_.result != "success") {
    what += " (" + unit_.result;
    if (unit_.exec_main_status != 0)
      what += std::string(unit_.result == "exit-code" ? ", status " : ", ") +
              std::to_string(unit_.exec_main_status);
    what += ")";
  }
  what += " after " + seconds_text(elapsed());
  const auto& invocation = pinned_invocation_.empty() ? unit_.invocation_id : pinned_invocation_;
  const std::string last =
      telling_lines(UnitJournal::last_lines(root_, invocation, kLinesReadAtEnd));
  if (!last.empty()) what += ": " + last;
  return fail(ExitCode::rolled_back, what, "journalctl -u " + wish_.unit);
}

Result<std::string> Gate::check_unit() {
  if (unit_read_ && Clock::now() - *unit_read_ < kUnitEvery) return unit_missing_;
  unit_read_ = Clock::now();
  KDTREE_TRY_ASSIGN(unit_, services_.unit(wish_.unit));
  const bool is_new =
      !unit_.invocation_id.empty() && unit_.invocation_id != wish_.previous_invocation;
  if (pinned_invocation_.empty() && is_new) {
    pinned_invocation_ = unit_.invocation_id;
    pinned_restarts_ = wish_.previous_invocation.empty() ? unit_.restarts : 0;
    if (auto journal = UnitJournal::open(root_, pinned_invocation_))
      journal_ = std::move(*journal);
    else
      note("start-up stages are not shown: " + journal.error().what);
  }
  if (unit_.sub_state == "auto-restart") KDTREE_TRY(crashed("crashed"));
  if (unit_.has_ended()) KDTREE_TRY(crashed(unit_.active_state == "failed" ? "failed" : "ended"));
  if (!pinned_invocation_.empty() &&
      (unit_.invocation_id != pinned_invocation_ || unit_.restarts > pinned_restarts_))
    KDTREE_TRY(crashed("crashed and was started again by systemd"));
  unit_missing_ = pinned_invocation_.empty() ? "the unit has not been started anew"
                  : !unit_.is_active()       ? "the unit is " + unit_.active_state
                                             : "";
  return unit_missing_;
}

std::string Gate::check_health() {
  if (health_read_ && Clock::now() - *health_read_ < kHealthEvery) return health_missing_;
  auto answer = http_get(wish_.health_url, kHealthDeadline);
  health_read_ = Clock::now();
  if (!answer)
    health_missing_ = "no answer from " + wish_.health_url;
  else if (answer->status != 200)
    health_missing_ = wish_.health_url + " answers " + std::to_string(answer->status);
  else
    health_missing_.clear();
  if (health_missing_.empty()) {
    auto port = loopback_port(wish_.health_url);
    if (!port) {
      note("not checked that the unit itself answers: " + wish_.health_url +
           " is not on the loopback");
    } else {
      auto owner = find_listener(root_, *port, unit_.control_group);
      if (owner.listener == Listener::foreign)
        health_missing_ = wish_.health_url + " is answered by " + owner.detail +
                          ", which is not part of " + wish_.unit;
      else if (owner.listener != Listener::ours)
        note("not checked that the unit itself answers: " +
             (owner.detail.empty() ? "its listening socket was not found" : owner.detail));
    }
  }
  if (!health_missing_.empty())
    healthy_since_.reset();
  else if (!healthy_since_)
    healthy_since_ = Clock::now();
  return health_missing_;
}

std::string Gate::check_rank(const RankView& view) const {
  const std::string who = "rank " + std::to_string(view.rank) + ": ";
  if (!view.stats) return who + view.missing;
  const RankStats& stats = *view.stats;
  if (stats.patch_state != PatchState::active)
    return who + std::string(patch_state_name(stats.patch_state)) +
           (stats.reason.empty() ? "" : ", " + stats.reason);
  if (stats.release_id != wish_.release_id)
    return who + "reports release " + (stats.release_id.empty() ? "unknown" : stats.release_id);
  if (stats.control_generation < wish_.generation) return who + "has not seen the new control file";
  if (stats.mode != wish_.mode) return who + "is in mode " + std::string(to_string(stats.mode));
  return {};
}

Result<std::string> Gate::check_ranks() {
  if (wish_.ranks == 0) return std::string();
  KDTREE_TRY_ASSIGN(auto set, read_ranks(root_, wish_.ranks));
  std::string missing;
  ranks_right_ = 0;
  for (const auto& view : set.ranks) {
    auto lacks = check_rank(view);
    if (lacks.empty())
      ++ranks_right_;
    else if (missing.empty())
      missing = lacks;
    if (view.stats && view.stats->release_id == wish_.release_id &&
        view.stats->patch_state == PatchState::refused)
      return fail(ExitCode::rolled_back, lacks);
  }
  if (missing.empty() && !set.conflicts.empty()) missing = set.conflicts.front();
  if (missing.empty() || !healthy_since_) return missing;
  for (const auto& other : set.others)
    if (other.patch_state == PatchState::refused && other.release_id == wish_.release_id)
      return fail(ExitCode::rolled_back, missing + "; process " + std::to_string(other.pid) +
                                             " refused the patch: " + other.reason);
  if (Clock::now() - *healthy_since_ > kSilentAfterHealthy)
    return fail(ExitCode::rolled_back,
                "the engine is healthy, but after " + seconds_text(kSilentAfterHealthy) +
                    " still " + missing,
                "kdtreectl doctor looks for what keeps the patch out of the engine");
  return missing;
}

// Once all else holds; what has passed is not asked again.
Result<std::string> Gate::check_more() {
  if (more_passed_ || wish_.ranks == 0) return std::string();
  if (more_asked_ && Clock::now() - *more_asked_ < kHealthEvery) return more_missing_;
  more_missing_.clear();
  if (wish_.gpu_free_bytes > 0) {
    KDTREE_TRY_ASSIGN(const auto set, read_ranks(root_, wish_.ranks));
    KDTREE_TRY_ASSIGN(more_missing_, check_headroom(wish_.gpus(), set, wish_.gpu_free_bytes));
  }
  if (more_missing_.empty() && wish_.golden) {
    KDTREE_TRY_ASSIGN(more_missing_, ask_golden(*wish_.golden));
  }
  more_asked_ = Clock::now();
  more_passed_ = more_missing_.empty();
  return more_missing_;
}

void Gate::learn_stage() {
  if (!journal_) return;
  for (const auto& line : journal_->read_new()) {
    auto stage = stage_of_line(line);
    if (stage && (*stage > stage_ || (*stage == Stage::capture && stage_ == Stage::warm_up)))
      stage_ = *stage;
  }
}

void Gate::note(const std::string& text) {
  if (std::ranges::find(notes_, text) == notes_.end()) notes_.push_back(text);
}

void Gate::report(const std::string& stage, const std::string& missing) {
  if (!progress_) return;
  progress_({stage, missing, elapsed(), std::max(milliseconds(0), wish_.deadline - elapsed())});
}

Result<GateReport> Gate::run() {
  std::optional<Clock::time_point> all_right_since;
  std::string missing, last_missing;
  while (true) {
    if (interrupted())
      return fail(ExitCode::rolled_back, "interrupted while waiting for " + wish_.unit);
    KDTREE_TRY_ASSIGN(missing, check_unit());
    learn_stage();
    std::string stage(stage_name(stage_));
    if (missing.empty()) {
      missing = check_health();
      KDTREE_TRY_ASSIGN(auto ranks_missing, check_ranks());
      if (missing.empty() && !ranks_missing.empty()) {
        stage = "ranks " + std::to_string(ranks_right_) + "/" + std::to_string(wish_.ranks);
        missing = ranks_missing;
      }
      if (missing.empty()) {
        KDTREE_TRY_ASSIGN(missing, check_more());
      }
    }
    if (missing.empty()) {
      if (!all_right_since) all_right_since = Clock::now();
      const auto held = duration_cast<milliseconds>(Clock::now() - *all_right_since);
      if (held >= wish_.stable) break;
      report("stable", seconds_text(held) + " of " + seconds_text(wish_.stable));
    } else {
      all_right_since.reset();
      last_missing = missing;
      report(stage, missing);
    }
    if (elapsed() >= wish_.deadline)
      return fail(ExitCode::rolled_back,
                  wish_.unit + " was not healthy after " + seconds_text(wish_.deadline) + ": " +
                      (last_missing.empty() ? "it did not stay so for " + seconds_text(wish_.stable)
                                            : last_missing) +
                      (stage_ == Stage::starting
                           ? ""
                           : " (last stage: " + std::string(stage_name(stage_)) + ")"));
    std::this_thread::sleep_for(kPoll);
  }
  KDTREE_TRY_ASSIGN(unit_, services_.unit(wish_.unit));
  return GateReport{unit_, elapsed(), notes_};
}

}  // namespace

Result<GateReport> wait_until_healthy(const Root& root, ServiceManager& services,
                                      const GateWish& wish, const GateProgressFn& progress) {
  return Gate(root, services, wish, progress).run();
}

}  // namespace kdtree
