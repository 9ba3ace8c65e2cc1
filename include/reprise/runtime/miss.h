// This is the exception of a captured step that is called for something else than it was captured
// for.
#pragma once

#include <string>

#include "reprise/model/errors.h"

namespace reprise::runtime {

// A captured step was called for something else than it was captured for: its inputs, its state, the
// numbers that it reads on the host, what lockstep compares, or the gradients that are there before
// are not those of a capture. Nothing was changed. It is an InputError, so a caller need not know it;
// one who can run the step in another way catches it.
class StepMiss final : public InputError {
 public:
  enum class Kind {
    kState,      // the inputs, or the state that is compared before each run
    kReads,      // only numbers that the step reads out of tensors: it is another outcome
    kFunction,   // the function, which lockstep has run beside the recording
    kGradients,  // gradients that are there before the run: it was captured without, and has to be
  };

  StepMiss(const std::string& difference, Kind kind)
      : InputError("the step was captured for something else: " + difference), kind_(kind) {}

  Kind kind() const { return kind_; }
  bool of_reads() const { return kind_ == Kind::kReads; }
  bool of_function() const { return kind_ == Kind::kFunction; }
  bool of_gradients() const { return kind_ == Kind::kGradients; }

 private:
  Kind kind_;
};

}  // namespace reprise::runtime
