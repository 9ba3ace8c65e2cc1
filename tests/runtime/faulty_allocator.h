// This CPU allocator fails when a test says so, on the same paths on which the real one fails.
#pragma once

#include <c10/core/Allocator.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <new>
#include <optional>

#include "reprise/model/errors.h"
#include "reprise/runtime/allocator.h"

namespace reprise::runtime::testing {

enum class Fault {
  kBudget,   // a limit refuses the request: BudgetError
  kMachine,  // the machine has no memory left: std::bad_alloc
};

// Stands before the counting allocator for a scope. The k-th request after arm(k) fails. Requests
// of no bytes do not count.
class FaultyAllocator final : public c10::Allocator {
 public:
  FaultyAllocator() {
    install_cpu_allocator();
    inner_ = c10::GetAllocator(c10::kCPU);
    c10::SetAllocator(c10::kCPU, this, /*priority=*/255);
  }
  ~FaultyAllocator() override { c10::SetAllocator(c10::kCPU, inner_, /*priority=*/255); }
  FaultyAllocator(const FaultyAllocator&) = delete;
  FaultyAllocator& operator=(const FaultyAllocator&) = delete;

  void arm(int64_t k, Fault fault) {
    left_ = k;
    fault_ = fault;
    failed_ = false;
  }
  void disarm() { left_ = 0; }
  bool failed() const { return failed_; }

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0 || left_ == 0 || --left_ > 0) return inner_->allocate(bytes);
    failed_ = true;
    if (fault_ == Fault::kBudget) {
      const MemoryLimitGuard nothing(0);
      return inner_->allocate(bytes);
    }
    const MemoryLimitGuard none(std::nullopt);
    return inner_->allocate(size_t{1} << 62);  // no machine has so much
  }
  c10::DeleterFnPtr raw_deleter() const override { return inner_->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t count) const override {
    default_copy_data(to, from, count);
  }

 private:
  c10::Allocator* inner_ = nullptr;
  int64_t left_ = 0;
  Fault fault_ = Fault::kBudget;
  bool failed_ = false;
};

// Calls `attempt` with its first request failing, then its second, and so on, until it succeeds.
// Calls `prepare` before each attempt, and `check` after each failure. The failure must reach the
// caller as it was thrown. With a stride, only every so manyth request fails. Returns the number of
// failures.
template <class Prepare, class Attempt, class Check>
int64_t fail_each_request(Fault fault, int stride, Prepare&& prepare, Attempt&& attempt,
                          Check&& check) {
  FaultyAllocator allocator;
  int64_t failures = 0;
  for (int64_t k = 1;; k += stride) {
    SCOPED_TRACE("request " + std::to_string(k));
    prepare();
    std::string thrown = "nothing";
    allocator.arm(k, fault);
    try {
      attempt();
    } catch (const BudgetError&) {
      thrown = "BudgetError";
    } catch (const std::bad_alloc&) {
      thrown = "bad_alloc";
    } catch (const std::exception& error) {
      thrown = error.what();
    }
    allocator.disarm();
    if (!allocator.failed()) {
      EXPECT_EQ(thrown, "nothing");
      return failures;
    }
    ++failures;
    EXPECT_EQ(thrown, fault == Fault::kBudget ? "BudgetError" : "bad_alloc");
    check();
  }
}

}  // namespace reprise::runtime::testing
