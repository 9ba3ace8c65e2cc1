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

FarThings StepState::far_things(const StepPlanOptions& wanted, const KeptThings& keep) const {
  FarThings things;
  if (wanted.offload_parameters) things = far_parameters(recording(), updater().updates(), options);
  if (wanted.offload_optimizer) {
    const FarThings states = far_states(updater().updates(), captured().program.far_bytes);
    things.insert(things.end(), states.begin(), states.end());
  }
  std::erase_if(things, [&](const FarThing& thing) { return keep.contains(thing.name); });
  return things;
}

Bytes StepState::far_bytes(const StepPlanOptions& wanted, const KeptThings& keep) const {
  Bytes sum;
  for (const FarThing& thing : far_things(wanted, keep)) sum += Bytes(thing.bytes);
  return sum;
}

void StepState::place_far(const StepPlanOptions& wanted, const KeptThings& keep) {
  StepProgram& program = captured().program;
  if (wanted.offload_optimizer == program.far_optimizer &&
      wanted.offload_parameters == program.far_parameters && keep == program.kept) {
    return;
  }
  program.far_optimizer = wanted.offload_optimizer;
  program.far_parameters = wanted.offload_parameters;
  program.kept = keep;
  const std::string name = wanted.offload.to.rfind("disk:", 0) == 0 ? "disk" : wanted.offload.to;
  set_far_things(program.lowered, far_things(wanted, keep), program.step.works, updater().updates(),
                 name);
}

void StepState::move_far(const StepPlanOptions& wanted, const transfer::OpenedMemory& there) {
  if (far_state && (!is_far(wanted) || far_state->memory() != there.memory)) {
    far_state->fetch(FarKind::kState);
    far_state->fetch(FarKind::kParameter);
    far_state.reset();
  }
  if (is_far(wanted) && !far_state) {
    far_state = std::make_shared<FarState>(options.optimizer, recording().device, there.memory);
  }
  use_far(wanted);
  if (far_state) far_state->fetch_unexpected();
}

void StepState::use_captured_far() {
  if (!far_state) return;
  place_far(plan_options, kept);
  use_far(plan_options);
}

void StepState::use_far(const StepPlanOptions& wanted) {
  if (far_state) far_state->expect(captured().program.lowered.far);
  std::vector<int64_t> bytes(captured().program.far_bytes.size(), 0);
  for (const FarThing& thing : captured().program.lowered.far) {
    if (!thing.tensor.defined()) bytes[*thing.update] = thing.bytes;
  }
  updater().use_far(wanted.offload_optimizer ? far_state : nullptr, bytes);
}

}  // namespace reprise::runtime::internal::graph
