#include "runtime/graph/outcome.h"

#include <algorithm>
#include <utility>

#include "runtime/graph/words.h"

namespace reprise::runtime::internal::graph {

std::string Outcome::difference(const Circumstances& now) const {
  std::string text = captured->circumstances.difference(now);
  return text.empty() ? captured->residents.difference() : text;
}

bool may_follow(const Outcome& other, const Outcome& tried, const ReadMiss& miss) {
  const auto read = static_cast<std::ptrdiff_t>(miss.read());
  return std::ssize(other.reads) > read && std::ssize(tried.reads) > read &&
         std::equal(other.reads.begin(), other.reads.begin() + read, tried.reads.begin()) &&
         other.reads[miss.read()].expected == miss.found();
}

void Outcomes::reset(Outcome only) {
  all_.clear();
  all_.push_back(std::move(only));
}

void Outcomes::bring(int64_t number) {
  const auto found = std::find_if(all_.begin(), all_.end(),
                                  [&](const Outcome& one) { return one.number == number; });
  std::rotate(all_.begin(), found, found + 1);
}

void Outcomes::add(Outcome outcome, int most, bool beside) {
  if (!beside) {
    std::erase_if(all_, [&](const Outcome& other) { return other.reads == outcome.reads; });
  }
  all_.insert(all_.begin(), std::move(outcome));
  if (all_.size() > static_cast<size_t>(std::max(1, most))) all_.pop_back();
}

bool Outcomes::bring(const ReadMiss& miss, const Circumstances& now,
                     const std::set<int64_t>& tried) {
  const auto found = std::find_if(all_.begin() + 1, all_.end(), [&](const Outcome& other) {
    return !tried.contains(other.number) && may_follow(other, all_.front(), miss) &&
           other.difference(now).empty();
  });
  if (found == all_.end()) return false;
  std::rotate(all_.begin(), found, found + 1);
  return true;
}

void Outcomes::drop_other_plans() {
  for (size_t o = 1; o < all_.size(); ++o) {
    all_[o].plan.reset();
    all_[o].program.reset();
    all_[o].placements = 0;
    all_[o].memory = {};
  }
}

}  // namespace reprise::runtime::internal::graph
