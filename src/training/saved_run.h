// This is the saved state of `reprise train --state DIR`: one file in a folder, and whose run it
// is.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "reprise/runtime/saved_state.h"
#include "training/train.h"

namespace reprise::training {

class SavedRun {
 public:
  // Looks for a state in options.state and makes the folder if there is none. If there is a state,
  // it must be that of the same run: the function throws InputError and names the options that
  // differ. If the number of micro-batches was chosen by the program, `options` get that number.
  explicit SavedRun(TrainOptions& options);

  // Returns what the state says, or nothing if training begins.
  const std::optional<runtime::Progress>& found() const { return found_; }
  // Loads the state into model and optimizer, with the random state of the CPU.
  void load(const runtime::StateParts& parts) const;
  // Saves the state after this step, in which the step had so many micro-batches.
  void save(const runtime::StateParts& parts, int64_t step, int64_t micro_batches,
            const Plan* plan) const;

 private:
  const TrainOptions& options_;
  std::filesystem::path file_;
  std::optional<runtime::Progress> found_;
};

}  // namespace reprise::training
