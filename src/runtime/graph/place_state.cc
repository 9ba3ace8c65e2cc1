// Decides where the optimizer's state and the parameters of a captured step lie between its runs.
#include <utility>

#include "reprise/model/errors.h"
#include "runtime/graph/step_state.h"
#include "runtime/transfer/choose.h"

namespace reprise::runtime::internal::graph {

namespace {

bool is_far(const StepPlanOptions& wanted) {
  return wanted.offload_optimizer || wanted.offload_parameters;
}

}  // namespace

void StepState::require_far(const StepPlanOptions& wanted) const {
  if (!is_far(wanted)) return;
  const std::string name = wanted.offload_optimizer ? "offload_optimizer" : "offload_parameters";
  if (wanted.offload_optimizer && !options.optimizer) {
    throw InputError(
        "offload_optimizer moves the state of an optimizer inside the step, and the step has none: "
        "capture it with its optimizer, or leave offload_optimizer out");
  }
  if (wanted.offload.to.empty() || transfer::is_auto(wanted.offload)) {
    const char* why = wanted.offload.to.empty()
                          ? " needs a memory for what moves"
                          : " needs a memory that is there for certain, and \"auto\" may take none";
    throw InputError(name + why + ": name it (offload), as in \"disk:/scratch\"");
  }
  if (wanted.offload_parameters &&
      far_parameters(recording(), updater().updates(), options).empty()) {
    throw InputError(
        "offload_parameters moves parameters that are frozen (requires_grad is off) or that an "
        "optimizer inside the step updates, of 4096 bytes or more, and this step reads none: name "
        "its modules, freeze what is not trained, capture the step with its optimizer, or leave "
        "offload_parameters out");
  }
}

FarThings StepState::things_of(const Placement& where) const {
  return far_things(captured().program, options, where);
}

Bytes StepState::bytes_of(const Placement& where) const {
  Bytes sum;
  for (const FarThing& thing : things_of(where)) sum += Bytes(thing.bytes);
  return sum;
}

PlacedStep StepState::place(Placement where, Bytes fixed) const {
  return placed(captured().program, options, std::move(where), fixed);
}

void StepState::move_far(const PlacedStep& next, const transfer::OpenedMemory& there) {
  const bool is_there = next.placement.optimizer || next.placement.parameters;
  if (far_state && (!is_there || far_state->memory() != there.memory)) {
    far_state->fetch(FarKind::kState);
    far_state->fetch(FarKind::kParameter);
    far_state.reset();
  }
  if (is_there && !far_state) {
    far_state = std::make_shared<FarState>(options.optimizer, recording().device, there.memory);
  }
  use_far(next);
  if (far_state) far_state->fetch_unexpected();
}

void StepState::use_captured_far() {
  if (!far_state) return;
  if (now().placed.placement != placement) now().placed = place(placement, graph().fixed);
  use_far(now().placed);
}

void StepState::use_far(const PlacedStep& next) {
  if (far_state) far_state->expect(next.things);
  std::vector<int64_t> bytes(captured().program.far_bytes.size(), 0);
  for (const FarThing& thing : next.things) {
    if (!thing.tensor.defined()) bytes[*thing.update] = thing.bytes;
  }
  updater().use_far(next.placement.optimizer ? far_state : nullptr, bytes);
}

}  // namespace reprise::runtime::internal::graph
