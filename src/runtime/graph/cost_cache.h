// Keeps measured costs in a folder, so that a program which starts again need not measure them again.
//
// An entry is a file KEY.reprise-costs. KEY is a hash of everything that the costs depend on: the
// graph without costs, the kinds of its works, the versions of Reprise and of LibTorch, the
// processor, the threads, the settings by which LibTorch chooses its kernels, and the options of the
// measurement. The first line of the file has the version of this format, KEY and a checksum. A
// profile in JSON follows (docs/formats.md).
#pragma once

#include <functional>
#include <string>

#include "reprise/runtime/capture.h"
#include "runtime/graph/costs.h"
#include "runtime/graph/lower.h"
#include "runtime/rewrite/alternative.h"

namespace reprise::runtime::internal::graph {

class CostCache {
 public:
  // A Question is a step whose costs are looked for.
  struct Question {
    const rewrite::RewrittenStep& step;
    LoweredStep unmeasured;  // the step, lowered with costs of 0
    const Tensors& sample;
  };

  // Looks for costs in CaptureOptions::cache. If that is empty, there are none, and `ask` is not
  // called. Never throws because of what is in the folder: warning() then says what is wrong.
  CostCache(const CaptureOptions& options, const std::function<Question()>& ask);

  bool found() const { return found_; }
  // Returns the costs of all works, those of updates among them.
  const WorkCosts& costs() const { return costs_; }
  // Forgets the costs if the step, lowered with them, is not the one that they were kept for.
  void compare(const LoweredStep& lowered);
  // Writes an entry with the costs in `measured`, the step lowered with its costs. A folder that is
  // missing is made. Entries are written as a whole or not at all, so that programs may share a
  // folder. A failure becomes a warning.
  void store(const LoweredStep& measured, const WorkCosts& costs);

  // Says what was wrong with the folder or with the entry, in one line; empty if nothing was.
  const std::string& warning() const { return warning_; }

 private:
  void load(const Question& question);
  void reject(const std::string& reason);

  std::string path_, key_;
  bool found_ = false;
  Graph graph_;  // what was found
  WorkCosts costs_;
  std::string warning_;
};

}  // namespace reprise::runtime::internal::graph
