// A step keeps some values approximately: alternatives of exactness `approximate` encode them after
// their last use in the forward, and decode them before the backward.
#pragma once

#include <optional>
#include <string>

#include "reprise/model/units.h"

namespace reprise::runtime {

// Says what the next runs do with values that a plan encodes. They compute the same forward in all
// three ways.
enum class CodecCheck {
  kNone,     // The backward reads what is decoded.
  kCompare,  // The same, and each decoded value is compared with the one that was encoded.
  kBypass,   // The backward reads the values as they were. So gradients have the bits of the step
             // without codecs.
};

struct ApproximateValue {
  std::string op;           // the id of the op that decodes the value
  std::string alternative;  // "compressed-8"
  Bytes plain, kept;        // bytes of the value, and of what is kept in its place
  // In the last run no element was off by more than `bound`, as the codec states. It is NaN if a
  // number was not finite. `largest` is the largest absolute value of an element.
  double bound = 0, largest = 0;
  std::optional<double> error = {};  // the largest error that was found, if the run compared

  bool operator==(const ApproximateValue&) const = default;
};

}  // namespace reprise::runtime
