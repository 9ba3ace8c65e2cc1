// The exception of a captured step that is called for something else than it was captured for.
#pragma once

#include <string>

#include "reprise/model/errors.h"

namespace reprise::runtime {

// A captured step was called with OnMiss::kRefuse, and its inputs, its state or the numbers that it
// reads on the host are not those of a capture. Nothing was changed. It is an InputError, so a caller
// need not know it; one who can run the step in another way catches it.
class StepMiss final : public InputError {
 public:
  StepMiss(const std::string& difference, bool of_reads)
      : InputError("the step was captured for something else: " + difference),
        of_reads_(of_reads) {}

  // Says whether only numbers differ that the step reads out of tensors: it is another outcome.
  bool of_reads() const { return of_reads_; }

 private:
  bool of_reads_;
};

}  // namespace reprise::runtime
