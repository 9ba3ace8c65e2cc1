// How long work reports progress. No library code prints: it calls what the caller passed.
#pragma once

#include <functional>
#include <string>

namespace reprise {

struct Progress {
  std::string task;      // "plan", "profile", ...
  double fraction = -1;  // done, in 0..1; negative when unknown
  std::string message;   // short, for people

  bool operator==(const Progress&) const = default;
};

// Called from the thread that does the work, at most some tens of times a second. May throw: the work
// stops, nothing is left half done, and the exception reaches the caller.
using Observer = std::function<void(const Progress&)>;

}  // namespace reprise
