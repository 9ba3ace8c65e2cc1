// This is the exception of a step that another process of its group has stopped.
#pragma once

#include "reprise/model/errors.h"

namespace reprise::runtime {

// Another rank of the process group has failed, has ended, or does not answer within the timeout of
// the group. The message names the rank and what was waited for. The captured step cannot be used any
// more: all ranks make a new group, load model and optimizer, and capture the step again.
class PeerError : public Error {
 public:
  using Error::Error;
};

}  // namespace reprise::runtime
