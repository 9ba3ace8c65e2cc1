// Work that takes long reports its progress to an observer. No library code prints; it calls the
// function that the caller passed.
#pragma once

#include <functional>
#include <string>

namespace reprise {

struct Progress {
  std::string task;      // "plan", "profile", ...
  double fraction = -1;  // the part that is done, in 0..1; negative when unknown
  std::string message;   // a short text for people

  bool operator==(const Progress&) const = default;
};

// The thread that does the work calls the observer, at most some tens of times a second. An
// observer may throw: then the work stops, nothing is left half done, and the exception reaches the
// caller.
using Observer = std::function<void(const Progress&)>;

}  // namespace reprise
