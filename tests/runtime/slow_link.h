// A group of one rank whose link is slow, for tests and benchmarks. A sum over one rank is what the
// rank has, and takes the time that a link of this latency and bandwidth would take.
#pragma once

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace reprise::testing {

using SlowClock = std::chrono::steady_clock;

// A Later is work that ends at a point in time.
class Later final : public c10d::Work {
 public:
  explicit Later(SlowClock::time_point end)
      : future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors())),
        thread_([future = future_, end] {
          std::this_thread::sleep_until(end);
          future->markCompleted(c10::IValue(std::vector<at::Tensor>()));
        }) {}
  ~Later() override { thread_.join(); }
  bool isCompleted() override { return future_->completed(); }
  bool wait(std::chrono::milliseconds) override {
    future_->wait();
    return true;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::thread thread_;
};

// The link carries one sum after the other.
class SlowLink final : public c10d::Backend {
 public:
  SlowLink(std::chrono::nanoseconds latency, double bytes_per_second)
      : Backend(0, 1), latency_(latency), bytes_per_second_(bytes_per_second) {}
  const std::string getBackendName() const override { return "slow"; }
  c10::intrusive_ptr<Options> getBackendOptions() override {
    return c10::make_intrusive<Options>("slow", std::chrono::milliseconds(5000));
  }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions&) override {
    return carry(tensors);
  }
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& /*tensors*/,
                                           const c10d::BroadcastOptions&) override {
    return c10::make_intrusive<Later>(SlowClock::now());
  }

 private:
  c10::intrusive_ptr<c10d::Work> carry(const std::vector<at::Tensor>& tensors) {
    const auto bytes = static_cast<double>(tensors.at(0).nbytes());
    const auto time =
        latency_ + std::chrono::nanoseconds(static_cast<int64_t>(bytes * 1e9 / bytes_per_second_));
    free_ = std::max(free_, SlowClock::now()) + time;
    return c10::make_intrusive<Later>(free_);
  }

  std::chrono::nanoseconds latency_;
  double bytes_per_second_;
  SlowClock::time_point free_;
};

// The group is in the registry while the scope lives.
class SlowGroup {
 public:
  SlowGroup(const std::string& name, std::chrono::nanoseconds latency, double bytes_per_second)
      : name_(name) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    group_ = c10::make_intrusive<c10d::ProcessGroup>(store, 0, 1);
    group_->setBackend(c10::kCPU, c10d::ProcessGroup::CUSTOM,
                       c10::make_intrusive<SlowLink>(latency, bytes_per_second));
    group_->setDefaultBackend(c10d::ProcessGroup::CUSTOM);
    c10d::register_process_group(name, group_);
  }
  ~SlowGroup() { c10d::unregister_process_group(name_); }
  SlowGroup(const SlowGroup&) = delete;
  SlowGroup& operator=(const SlowGroup&) = delete;

 private:
  std::string name_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
};

}  // namespace reprise::testing
