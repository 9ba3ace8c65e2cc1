// Decides where the optimizer's state and the parameters of a captured step lie between its runs.
#include <utility>

#include "reprise/model/errors.h"
#include "runtime/graph/step_state.h"
#include "runtime/transfer/choose.h"

namespace reprise::runtime::internal::graph {

namespace {

bool has_homes(const StepPlanOptions& wanted) {
  return wanted.offload_optimizer || wanted.offload_parameters;
}

}  // namespace

void StepState::require_homes(const StepPlanOptions& wanted) const {
  if (!has_homes(wanted)) return;
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
  if (options.shard_optimizer) {
    throw InputError(
        name +
        " moves the same values on all ranks, and with shard_optimizer each rank has the state of "
        "other parameters: leave one of them off");
  }
  if (wanted.offload_parameters &&
      homed_parameters(recording(), updater().updates(), options).empty()) {
    throw InputError(
        "offload_parameters moves parameters that are frozen (requires_grad is off) or that an "
        "optimizer inside the step updates, of 4096 bytes or more, and this step reads none: name "
        "its modules, freeze what is not trained, capture the step with its optimizer, or leave "
        "offload_parameters out");
  }
}

Bytes StepState::bytes_of(const Placement& where) const {
  Bytes sum;
  for (const HomedValue& one : homed_values(captured().program, options, where)) {
    sum += Bytes(one.bytes);
  }
  return sum;
}

PlacedStep StepState::place(Placement where, Bytes fixed) const {
  return placed(captured().program, options, std::move(where), fixed);
}

void StepState::move_homes(const PlacedStep& next, const transfer::OpenedMemory& there) {
  const bool is_there = next.placement.optimizer || next.placement.parameters;
  if (homes && (!is_there || homes->memory() != there.memory)) {
    homes->fetch(HomedKind::kState);
    homes->fetch(HomedKind::kParameter);
    homes.reset();
  }
  if (is_there && !homes) {
    homes = std::make_shared<HomeStore>(options.optimizer, recording().device, there.memory);
  }
  use_homes(next);
  if (homes) homes->fetch_unexpected();
}

void StepState::use_captured_homes() {
  if (!homes) return;
  if (outcome().placed.placement != placement) outcome().placed = place(placement, graph().fixed);
  use_homes(outcome().placed);
}

void StepState::use_homes(const PlacedStep& next) {
  if (homes) homes->expect(next.homed);
  std::vector<int64_t> bytes(captured().program.movable_bytes.size(), 0);
  for (const HomedValue& one : next.homed) {
    if (!one.tensor.defined() && !one.stays) bytes[*one.update] = one.bytes;
  }
  updater().use_homes(next.placement.optimizer ? homes : nullptr, bytes);
}

}  // namespace reprise::runtime::internal::graph
