// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "agent/gate/socket_owner.h"
#include "tests/unit/gate_host.h"

namespace kdtree {
namespace {

TEST(LoopbackPort, OnlyOfThisMachine) {
  EXPECT_EQ(loopback_port("http://127.0.0.1:30000/health"), 30000);
  EXPECT_EQ(loopback_port("http://localhost:8000"), 8000);
  EXPECT_EQ(loopback_port("http://[::1]:30000/health"), 30000);
  EXPECT_EQ(loopback_port("http://127.0.0.1/health"), 80);
  EXPECT_EQ(loopback_port("https://127.0.0.1/health"), 443);
  for (const char* url :
       {"http://10.0.0.1:30000/health", "http://example.org/", "127.0.0.1:80",
        "http://127.0.0.1:0/", "http://127.0.0.1:99999/", "http://127.0.0.1:3x/", ""})
    EXPECT_FALSE(loopback_port(url)) << url;
}

// A host whose port 30000 (0x7530) is socket 555, in /proc/net/tcp as Linux writes it.
class SocketOwner : public testing::Test {
 protected:
  SocketOwner() {
    folder.write("proc/net/tcp",
                 "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   "
                 "uid  timeout inode\n"
                 "   0: 0100007F:7530 00000000:0000 0A 00000000:00000000 00:00000000 00000000     "
                 "0        0 555 1 0 100\n"
                 "   1: 0100007F:7530 0100007F:9999 01 00000000:00000000 00:00000000 00000000     "
                 "0        0 777 1 0 100\n");
    folder.write("sys/fs/cgroup/system.slice/x.service/cgroup.procs", "41\n");
    folder.write("sys/fs/cgroup/system.slice/x.service/inner/cgroup.procs", "42\n");
    folder.write("proc/41/comm", "launcher\n");
    folder.write("proc/42/comm", "worker\n");
    folder.write("proc/50/comm", "nginx\n");
    for (const char* pid : {"41", "42", "50"})
      std::filesystem::create_directories(folder / ("proc/" + std::string(pid) + "/fd"));
  }
  void open_socket(const std::string& pid, const std::string& inode) {
    std::filesystem::create_symlink("socket:[" + inode + "]", folder / ("proc/" + pid + "/fd/5"));
  }
  ListenerAnswer find(int port = 30000) {
    return find_listener(folder.root(), port, "/system.slice/x.service");
  }
  test::Folder folder;
};

TEST_F(SocketOwner, AProcessOfTheUnitOrBelowIsOurs) {
  open_socket("42", "555");
  EXPECT_EQ(find().listener, Listener::ours);
}

TEST_F(SocketOwner, AConnectionIsNotAListener) {
  open_socket("42", "777");
  EXPECT_EQ(find().listener, Listener::foreign);
}

TEST_F(SocketOwner, AForeignListenerIsNamed) {
  open_socket("50", "555");
  const auto answer = find();
  EXPECT_EQ(answer.listener, Listener::foreign);
  EXPECT_EQ(answer.detail, "nginx (pid 50)");
}

TEST_F(SocketOwner, NobodyListens) { EXPECT_EQ(find(30001).listener, Listener::nobody); }

TEST_F(SocketOwner, WhatCannotBeToldIsSaidToBeUnknown) {
  std::filesystem::remove_all(folder / "sys");
  EXPECT_EQ(find().listener, Listener::unknown);
  std::filesystem::remove(folder / "proc/net/tcp");
  EXPECT_EQ(find().listener, Listener::unknown);
}

TEST(SocketOwnerOfThisHost, FindsOurOwnListener) {
  test::HealthServer server;
  const auto answer = find_listener(Root(), server.port(), "/no/such/group");
  // There is a listener; whose it is can't be told without a control group.
  EXPECT_EQ(answer.listener, Listener::unknown);
}

}  // namespace
}  // namespace kdtree
