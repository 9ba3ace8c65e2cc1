#include "training/choose_mode.h"

#include "reprise/plan/registry.h"
#include "reprise/runtime/capture.h"

namespace reprise::training {

namespace {

bool needs_graph_mode(const TrainOptions& options) {
  return options.consume_gradients || options.micro_batches != 1 || !options.parts_from.empty() ||
         options.alternatives != runtime::AlternativeOptions{} || options.group != nullptr;
}

std::string why_chain(const TrainOptions& options) {
  if (!options.planner.empty() && find_planner(options.planner).plan_graph == nullptr) {
    return "the planner " + options.planner + " plans chains";
  }
  if (!options.check) {
    return "without the check no step takes plain training's memory, which a capture needs";
  }
  return {};
}

}  // namespace

std::string choose_mode(TrainOptions& options) {
  if (options.mode != TrainMode::kAuto) return {};
  if (needs_graph_mode(options)) {
    options.mode = TrainMode::kGraph;
    return {};
  }
  std::string reason = why_chain(options);
  if (!reason.empty()) options.mode = TrainMode::kChain;
  return reason;
}

}  // namespace reprise::training
