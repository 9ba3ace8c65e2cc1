// This is a process group from the environment, for programs without Python.
//
//   if (rt::has_ranks()) {
//     const rt::ProcessGroup group = rt::gloo_from_environment();
//     auto step = rt::capture(function, sample, {.modules = {model.ptr()}, .group = group.name()});
//   }
//
//   torchrun --no-python --nproc-per-node 2 ./program
//
// Problem: CaptureOptions::group is the name of a group in c10d's registry, where
// torch.distributed.init_process_group() puts its groups. A C++ program has nobody who does so.
//
// Guarantees: the group is of the same class as the one that Python makes for "gloo", and it finds
// the other ranks in the same way. Every wait is bounded by the timeout.
//
// Not handled: devices other than the CPU, and several groups with different ranks.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

namespace reprise::runtime {

// A ProcessGroup is in c10d's registry while it lives. Steps that were captured for it end before.
// At its end rank 0 waits for the other ranks, up to 3 seconds: it may serve the store in which they
// read why it ends.
class ProcessGroup {
 public:
  ~ProcessGroup();
  ProcessGroup(ProcessGroup&&) noexcept;
  ProcessGroup& operator=(ProcessGroup&&) noexcept;

  const std::string& name() const;
  int rank() const;
  int size() const;

  // Returns the average of the numbers that all ranks give. All ranks call these functions together.
  // They throw PeerError if another rank is gone or does not come within the timeout.
  double average(double number) const;
  void barrier() const;

 private:
  struct State;
  explicit ProcessGroup(std::unique_ptr<State> state);
  friend ProcessGroup gloo_from_environment(std::chrono::milliseconds timeout);

  std::unique_ptr<State> state_;
};

// Says whether torchrun, or a program like it, has started this process as one of several:
// WORLD_SIZE is in the environment and above 1.
bool has_ranks();

// Joins the processes of RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as the method env:// of
// PyTorch does, with Gloo. GLOO_SOCKET_IFNAME names the network interface. All ranks call it. Throws
// InputError if a variable is missing or is no number, if the ranks do not find each other, or if
// Reprise was built without Gloo (docs/several_processes.md).
ProcessGroup gloo_from_environment(std::chrono::milliseconds timeout = std::chrono::minutes(30));

// Lets the other ranks of a group hear that this one has failed before it could begin with a step
// that all of them begin with now. Throws InputError if there is no such group.
void tell_failure(const std::string& group, const std::string& reason);

// Calls `look` about ten times a second while a rank waits for others, in the thread that waits. An
// exception of `look` ends the wait: so a program obeys signals. An empty function ends the calls.
// It is not thread-safe.
void look_while_waiting(std::function<void()> look);

}  // namespace reprise::runtime
