// Runs a test in several processes that form a group.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "reprise/runtime/process_group.h"

namespace reprise::runtime::testing {

// Returns a port that nobody listens on.
inline int free_port() {
  const int one = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const general = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(bind(one, general, length), 0);
  EXPECT_EQ(getsockname(one, general, &length), 0);
  close(one);
  return ntohs(address.sin_port);
}

inline constexpr int kNoGloo = 77;  // the exit status of a child that cannot make a group

// Runs `test` in `size` children of this process, each with a group of all of them. What fails in a
// child fails here. Skips the test if Reprise was built without Gloo.
inline void run_ranks(int size, const std::function<void(const ProcessGroup& group)>& test) {
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", std::to_string(free_port()).c_str(), 1);
  setenv("WORLD_SIZE", std::to_string(size).c_str(), 1);
  setenv("GLOO_SOCKET_IFNAME", "lo", 1);
  std::fflush(nullptr);
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child > 0) {
      children.push_back(child);
      continue;
    }
    setenv("RANK", std::to_string(rank).c_str(), 1);
    try {
      const ProcessGroup group = gloo_from_environment(std::chrono::seconds(20));
      test(group);
    } catch (const std::exception& error) {
      if (std::string(error.what()).find("without Gloo") != std::string::npos) _exit(kNoGloo);
      ADD_FAILURE() << "rank " << rank << ": " << error.what();
    }
    std::fflush(nullptr);
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  bool skipped = false;
  for (size_t rank = 0; rank < children.size(); ++rank) {
    int status = 0;
    EXPECT_EQ(waitpid(children[rank], &status, 0), children[rank]);
    skipped = skipped || (WIFEXITED(status) && WEXITSTATUS(status) == kNoGloo);
    EXPECT_TRUE(status == 0 || skipped) << "rank " << rank << " ended with status " << status;
  }
  unsetenv("WORLD_SIZE");
  if (skipped) GTEST_SKIP() << "Reprise was built without Gloo";
}

}  // namespace reprise::runtime::testing
