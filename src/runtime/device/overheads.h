// This header notes what a step costs beside the training itself.
#pragma once

#include <deque>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "reprise/plan/plan.h"
#include "reprise/runtime/overhead.h"
#include "runtime/device/stopwatch.h"

namespace reprise::runtime::internal::device {

// Returns what a search found, in words.
std::string found_text(const PlanResult& result);

class Overheads {
 public:
  // Does the work and notes it. `describe` makes a text of its result. An exception is noted, too.
  template <class Work, class Describe>
  auto note(std::string work, std::string why, Work&& do_it, Describe&& describe) {
    const Nanos begin = wall_clock();
    Overhead made{.work = std::move(work), .why = std::move(why)};
    try {
      auto result = do_it();
      made.found = describe(result);
      add(std::move(made), begin);
      return result;
    } catch (const std::exception& error) {
      made.found = error.what();
      add(std::move(made), begin);
      throw;
    }
  }

  // The last ones, in their order. Those before are only counted.
  std::vector<Overhead> last() const { return {last_.begin(), last_.end()}; }
  int64_t count() const { return count_; }

 private:
  static constexpr size_t kKept = 32;

  void add(Overhead made, Nanos begin) {
    made.time = wall_clock() - begin;
    last_.push_back(std::move(made));
    if (last_.size() > kKept) last_.pop_front();
    ++count_;
  }

  std::deque<Overhead> last_;
  int64_t count_ = 0;
};

}  // namespace reprise::runtime::internal::device
