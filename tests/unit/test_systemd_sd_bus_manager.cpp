// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>

#include "agent/systemd/sd_bus_manager.h"

// Jobs whose end is lost, late or bad can't be had from a real systemd on demand: here a peer on a
// private socket plays PID 1 and misbehaves. How the real one behaves is tested in tests/host.
namespace kdtree {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr const char* kJob = "/org/freedesktop/systemd1/job/7";
constexpr const char* kUnitPath = "/org/freedesktop/systemd1/unit/x_2eservice";

// One connection after the other; answers every call by what the test set.
class Peer {
 public:
  std::string job_result = "done";     // of the JobRemoved signal; "" = the signal is never sent
  std::atomic<bool> job_there{false};  // whether the job object answers
  std::string active_state = "active";
  std::string load_state = "loaded";
  std::string refuse;  // D-Bus error name for StartUnit and RestartUnit; "" = accepted
  std::string last_method;
  std::string lost;  // the connection breaks where this method is called, `losses` times
  int losses = 0;
  int reloads = 0;  // that were answered

  Peer() {
    std::string name = "/tmp/kdtree-bus-XXXXXX";
    folder_ = mkdtemp(name.data());
    listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::snprintf(address.sun_path, sizeof address.sun_path, "%s/bus", folder_.c_str());
    if (bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
        listen(listener_, 1) != 0)
      std::abort();
    thread_ = std::thread([this] { serve(); });
  }
  ~Peer() {
    stop_ = true;
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
    unlink((folder_ + "/bus").c_str());
    rmdir(folder_.c_str());
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  std::string address() const { return "unix:path=" + folder_ + "/bus"; }

 private:
  void serve() {
    while (!stop_) {
      const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (client < 0) return;
      serve(client);
    }
  }

  void serve(int client) {
    sd_bus* bus = nullptr;
    sd_id128_t id{};
    id.bytes[0] = 1;
    if (sd_bus_new(&bus) < 0 || sd_bus_set_fd(bus, client, client) < 0 ||
        sd_bus_set_server(bus, 1, id) < 0 || sd_bus_set_anonymous(bus, 1) < 0 ||
        sd_bus_add_filter(bus, nullptr, on_message, this) < 0 || sd_bus_start(bus) < 0)
      std::abort();
    while (!stop_) {
      const int r = sd_bus_process(bus, nullptr);
      if (r < 0) break;
      if (r == 0 && sd_bus_wait(bus, 20'000) < 0) break;
    }
    sd_bus_flush_close_unref(bus);
  }

  static int on_message(sd_bus_message* m, void* self, sd_bus_error*) {
    return static_cast<Peer*>(self)->answer(m);
  }

  int answer(sd_bus_message* m) {
    const char* member = sd_bus_message_get_member(m);
    const std::string method = member ? member : "";
    last_method = method;
    if (method == lost && losses > 0) {
      --losses;
      sd_bus_close(sd_bus_message_get_bus(m));
      return 1;
    }
    if (method == "Reload") ++reloads;
    if (method == "LoadUnit") return sd_bus_reply_method_return(m, "o", kUnitPath);
    if (method == "GetAll") return get_all(m);
    if (method == "Get") {
      if (job_there) return sd_bus_reply_method_return(m, "v", "u", 7u);
      return sd_bus_reply_method_errorf(m, SD_BUS_ERROR_UNKNOWN_OBJECT, "Unknown object");
    }
    if (method == "StartUnit" || method == "RestartUnit" || method == "StopUnit") {
      if (!refuse.empty()) return sd_bus_reply_method_errorf(m, refuse.c_str(), "not\nthis one");
      sd_bus* bus = sd_bus_message_get_bus(m);
      if (!job_result.empty())
        sd_bus_emit_signal(bus, bus::kManagerPath, bus::kManager, "JobRemoved", "uoss", 7u, kJob,
                           "x.service", job_result.c_str());
      return sd_bus_reply_method_return(m, "o", kJob);
    }
    return sd_bus_reply_method_return(m, "");
  }

  int get_all(sd_bus_message* m) {
    const char* interface = nullptr;
    sd_bus_message* reply = nullptr;
    sd_bus_message_read_basic(m, 's', &interface);
    sd_bus_message_new_method_return(m, &reply);
    sd_bus_message_open_container(reply, 'a', "{sv}");
    auto text = [&](const char* name, const std::string& value) {
      sd_bus_message_append(reply, "{sv}", name, "s", value.c_str());
    };
    if (std::string(interface) == bus::kUnit) {
      text("Id", "x.service");
      text("LoadState", load_state);
      text("ActiveState", active_state);
      text("SubState", "running");
      sd_bus_message_append(reply, "{sv}", "InvocationID", "ay", 3, 0xab, 0x01, 0xff);
      sd_bus_message_append(reply, "{sv}", "DropInPaths", "as", 2, "/a.conf", "/b.conf");
      sd_bus_message_append(reply, "{sv}", "NeedDaemonReload", "b", 1);
      sd_bus_message_append(reply, "{sv}", "SomethingNew", "(sa{sv})", "x", 0);
    } else {
      text("Result", active_state == "failed" ? "exit-code" : "success");
      text("Type", "notify");
      sd_bus_message_append(reply, "{sv}", "MainPID", "u", 4711u);
      sd_bus_message_append(reply, "{sv}", "Environment", "as", 2, "A=1=2", "B=");
      sd_bus_message_append(reply, "{sv}", "EnvironmentFiles", "a(sb)", 1, "/etc/default/x", 1);
      sd_bus_message_append(reply, "{sv}", "ExecStartEx", "a(sasasttttuii)", 1, "/usr/bin/python3",
                            3, "python3", "-m", "a b", 1, "no-setuid", uint64_t{1}, uint64_t{2},
                            uint64_t{3}, uint64_t{4}, 5u, 6, 7);
      sd_bus_message_append(reply, "{sv}", "TimeoutStopUSec", "t", UINT64_MAX);
      sd_bus_message_append(reply, "{sv}", "ProtectSystem", "s", "strict");
    }
    sd_bus_message_close_container(reply);
    const int r = sd_bus_send(nullptr, reply, nullptr);
    sd_bus_message_unref(reply);
    return r < 0 ? r : 1;
  }

  std::string folder_;
  int listener_ = -1;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

class SdBusManagerTest : public testing::Test {
 protected:
  void SetUp() override {
    auto connected = manager.connect();
    ASSERT_TRUE(connected) << connected.error().what;
  }
  Peer peer;
  SdBusManager manager{peer.address()};
};

TEST_F(SdBusManagerTest, ReadsAUnitWhole) {
  auto state = manager.unit("x.service");
  ASSERT_TRUE(state) << state.error().what;
  EXPECT_EQ(state->name, "x.service");
  EXPECT_EQ(state->invocation_id, "ab01ff");
  EXPECT_EQ(state->drop_in_paths, (std::vector<std::string>{"/a.conf", "/b.conf"}));
  EXPECT_TRUE(state->need_daemon_reload);
  EXPECT_EQ(state->main_pid, 4711);
  EXPECT_EQ(state->environment,
            (std::vector<std::pair<std::string, std::string>>{{"A", "1=2"}, {"B", ""}}));
  ASSERT_EQ(state->environment_files.size(), 1u);
  EXPECT_TRUE(state->environment_files[0].optional);
  ASSERT_EQ(state->exec_start.size(), 1u);
  EXPECT_EQ(state->exec_start[0].argv, (std::vector<std::string>{"python3", "-m", "a b"}));
  EXPECT_EQ(state->exec_start[0].flags, (std::vector<std::string>{"no-setuid"}));
  EXPECT_EQ(state->timeout_stop_us, UINT64_MAX);
  EXPECT_EQ(state->sandbox.protect_system, "strict");
}

TEST_F(SdBusManagerTest, AJobThatIsDoneIsDone) {
  auto done = manager.restart("x.service", seconds(10), {});
  EXPECT_TRUE(done) << done.error().what;
}

TEST_F(SdBusManagerTest, ATimerIsStartedOnce) {
  EXPECT_TRUE(manager.start_timer({"x", "about x", {"/bin/true", "a b"}}));
  EXPECT_EQ(peer.last_method, "StartTransientUnit");
}

TEST_F(SdBusManagerTest, EveryOtherResultIsAFailureWithTheUnitsOwn) {
  peer.active_state = "failed";
  for (const char* result :
       {"failed", "timeout", "canceled", "dependency", "skipped", "something-new"}) {
    peer.job_result = result;
    auto done = manager.start("x.service", seconds(10), {});
    ASSERT_FALSE(done) << result;
    EXPECT_EQ(done.error().code, ExitCode::rolled_back);
    EXPECT_NE(done.error().what.find(result), std::string::npos);
    EXPECT_NE(done.error().what.find("result exit-code"), std::string::npos);
  }
}

TEST_F(SdBusManagerTest, ALostSignalIsMadeUpForByTheUnitsState) {
  peer.job_result.clear();
  EXPECT_TRUE(manager.restart("x.service", seconds(10), {}));
  peer.active_state = "failed";
  auto failed = manager.restart("x.service", seconds(10), {});
  ASSERT_FALSE(failed);
  EXPECT_NE(failed.error().what.find("ended unseen"), std::string::npos);
  EXPECT_TRUE(manager.stop("x.service", seconds(10), {}));
}

TEST_F(SdBusManagerTest, AJobThatHangsEndsWithTheDeadlineAndTicksMeanwhile) {
  peer.job_result.clear();
  peer.job_there = true;
  int ticks = 0;
  auto late = manager.restart("x.service", milliseconds(2500), [&]() -> Status {
    ++ticks;
    return {};
  });
  ASSERT_FALSE(late);
  EXPECT_NE(late.error().what.find("in time (2 s)"), std::string::npos) << late.error().what;
  EXPECT_GE(ticks, 1);
}

TEST_F(SdBusManagerTest, ATickCanEndTheWaiting) {
  peer.job_result.clear();
  peer.job_there = true;
  auto ended = manager.restart("x.service", seconds(60),
                               []() -> Status { return fail(ExitCode::rolled_back, "enough"); });
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().what, "enough");
}

TEST_F(SdBusManagerTest, ARefusalIsOneLineAndNothingWasDone) {
  peer.refuse = "org.freedesktop.systemd1.NoSuchUnit";
  auto refused = manager.start("x.service", seconds(10), {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ExitCode::refused);
  EXPECT_NE(refused.error().what.find("not this one"), std::string::npos);
  peer.refuse = "org.freedesktop.DBus.Error.AccessDenied";
  EXPECT_EQ(manager.start("x.service", seconds(10), {}).error().hint, "run it as root");
}

TEST_F(SdBusManagerTest, StoppingWhatIsNotThereSucceedsWithoutAJob) {
  peer.load_state = "not-found";
  peer.active_state = "inactive";
  peer.refuse = "org.freedesktop.systemd1.NoSuchUnit";
  EXPECT_TRUE(manager.stop("x.service", seconds(10), {}));
  EXPECT_NE(peer.last_method, "StopUnit");
}

TEST_F(SdBusManagerTest, AReloadThatNobodyAnsweredIsMadeAgain) {
  peer.lost = "Reload";
  peer.losses = 1;
  EXPECT_TRUE(manager.daemon_reload(seconds(10)));
  EXPECT_EQ(peer.reloads, 1);
}

TEST_F(SdBusManagerTest, ASystemdThatClosesAtEachReloadHasReloaded) {
  peer.lost = "Reload";
  peer.losses = 2;
  EXPECT_TRUE(manager.daemon_reload(seconds(10)));
  EXPECT_EQ(peer.losses, 0);
}

TEST_F(SdBusManagerTest, ALostConnectionFailsOneCallAndNotTheNext) {
  peer.lost = "ResetFailedUnit";
  peer.losses = 1;
  auto lost = manager.reset_failed("x.service");
  ASSERT_FALSE(lost);
  EXPECT_EQ(lost.error().code, ExitCode::refused);
  EXPECT_TRUE(manager.reset_failed("x.service"));
  EXPECT_TRUE(manager.restart("x.service", seconds(10), {}));
}

TEST(SdBusManagerAlone, NoPeerIsARefusalWithAHint) {
  SdBusManager manager("unix:path=/does/not/exist");
  auto connected = manager.connect();
  ASSERT_FALSE(connected);
  EXPECT_EQ(connected.error().code, ExitCode::refused);
  EXPECT_NE(connected.error().hint, "");
}

}  // namespace
}  // namespace kdtree
