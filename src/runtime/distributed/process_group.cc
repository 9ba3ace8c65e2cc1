#include "reprise/runtime/process_group.h"

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <thread>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

#include "reprise/model/errors.h"
#include "reprise/runtime/peer_error.h"
#include "runtime/distributed/gloo_backend.h"
#include "runtime/distributed/ranks.h"

namespace reprise::runtime {

using internal::distributed::first_line;

struct ProcessGroup::State {
  std::string name;
  c10::intrusive_ptr<c10d::ProcessGroup> group;  // The registry does not hold it.

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    if (!group) return;
    c10d::unregister_process_group(name);
    try {
      leave();
    } catch (...) {  // The process that serves the store has ended.
    }
  }

 private:
  // Says that this rank has ended. The store of rank 0 ends with it, so rank 0 lets the others read
  // first why it ends. It does not wait for long, because a process that was killed says nothing.
  void leave() const {
    constexpr std::chrono::milliseconds kMost(3000), kPause(5);
    const auto store = group->getStore();
    const auto key = [](int rank) { return fmt::format("left/{}", rank); };
    store->set(key(group->getRank()), std::vector<uint8_t>{1});
    const auto end = std::chrono::steady_clock::now() + kMost;
    for (int rank = 1; group->getRank() == 0 && rank < group->getSize(); ++rank) {
      while (!store->check({key(rank)}) && std::chrono::steady_clock::now() < end) {
        std::this_thread::sleep_for(kPause);
      }
    }
  }
};

namespace {

using Milliseconds = std::chrono::milliseconds;

constexpr const char* kGroup = "reprise";

std::string text_of(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Returns the whole number in a variable of the environment.
int number_of(const char* name, int least) {
  const std::string text = text_of(name);
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size() && number >= least) return number;
  throw InputError(fmt::format(
      "{} in the environment is {}, and a number from {} on is expected: start the program by "
      "torchrun, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for each process",
      name, text.empty() ? "missing" : '"' + text + '"', least));
}

// Returns the store in which ranks find each other. torchrun serves one itself; else rank 0 does.
c10::intrusive_ptr<c10d::Store> store_of(int rank, int size, Milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(number_of("MASTER_PORT", 1));
  options.isServer = rank == 0 && text_of("TORCHELASTIC_USE_AGENT_STORE") != "True";
  options.numWorkers = size;
  options.waitWorkers = false;
  options.timeout = timeout;
  const std::string address = text_of("MASTER_ADDR");
  if (address.empty()) throw InputError("MASTER_ADDR is missing in the environment: see torchrun");
  // A program that torchrun starts again finds what it has left in the store.
  const std::string restarts = text_of("TORCHELASTIC_RESTART_COUNT");
  return c10::make_intrusive<c10d::PrefixStore>(
      "reprise/" + (restarts.empty() ? "0" : restarts),
      c10::make_intrusive<c10d::TCPStore>(address, options));
}

// Waits for a collective operation.
void finish(const c10::intrusive_ptr<c10d::Work>& work, const char* what) {
  try {
    work->wait();
  } catch (const std::exception& error) {
    throw PeerError(fmt::format("{} failed, perhaps because another process has ended: {}", what,
                                first_line(error)));
  }
}

}  // namespace

ProcessGroup::ProcessGroup(std::unique_ptr<State> state) : state_(std::move(state)) {}
ProcessGroup::~ProcessGroup() = default;
ProcessGroup::ProcessGroup(ProcessGroup&&) noexcept = default;
ProcessGroup& ProcessGroup::operator=(ProcessGroup&&) noexcept = default;

const std::string& ProcessGroup::name() const { return state_->name; }
int ProcessGroup::rank() const { return state_->group->getRank(); }
int ProcessGroup::size() const { return state_->group->getSize(); }

double ProcessGroup::average(double number) const {
  // The backend may hold the tensor a little longer than the operation takes. So its memory is not of
  // the allocator, which would count it in the step that follows.
  const auto sum = std::make_shared<double>(number);
  const auto release = [sum](void*) {};
  std::vector<at::Tensor> list{at::from_blob(sum.get(), {1}, release, at::kDouble)};
  finish(state_->group->allreduce(list), "an average over all ranks");
  return *sum / size();
}

void ProcessGroup::barrier() const { finish(state_->group->barrier(), "the wait for all ranks"); }

bool has_ranks() { return !text_of("WORLD_SIZE").empty() && number_of("WORLD_SIZE", 1) > 1; }

ProcessGroup gloo_from_environment(Milliseconds timeout) {
  const int rank = number_of("RANK", 0), size = number_of("WORLD_SIZE", 1);
  if (rank >= size) {
    throw InputError(fmt::format("RANK is {} and WORLD_SIZE {}: ranks count from 0", rank, size));
  }
  auto state = std::make_unique<ProcessGroup::State>();
  state->name = kGroup;
  try {
    const auto store = store_of(rank, size, timeout);
    auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
    group->setBackend(c10::kCPU, c10d::ProcessGroup::GLOO,
                      internal::distributed::gloo_backend(store, rank, size, timeout));
    group->setDefaultBackend(c10d::ProcessGroup::GLOO);
    group->setGroupName(state->name);
    c10d::register_process_group(state->name, group);
    state->group = std::move(group);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw InputError(fmt::format("rank {} does not find the other {} at {}:{}: {}", rank, size - 1,
                                 text_of("MASTER_ADDR"), text_of("MASTER_PORT"),
                                 first_line(error)));
  }
  return ProcessGroup(std::move(state));
}

}  // namespace reprise::runtime
