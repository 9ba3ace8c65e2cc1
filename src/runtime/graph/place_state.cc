// Decides where the optimizer's state of a captured step lies between its runs.
#include <utility>

#include "reprise/model/errors.h"
#include "runtime/graph/step_state.h"
#include "runtime/transfer/choose.h"

namespace reprise::runtime::internal::graph {

Bytes StepState::far_state_bytes() const {
  Bytes sum;
  for (const int64_t bytes : captured().program.far_bytes) sum += Bytes(bytes);
  return sum;
}

void StepState::place_state(const StepPlanOptions& wanted) {
  StepProgram& program = captured().program;
  const bool leaves = wanted.offload_optimizer;
  if (leaves && !options.optimizer) {
    throw InputError(
        "offload_optimizer moves the state of an optimizer inside the step, and the step has none: "
        "capture it with its optimizer, or leave offload_optimizer out");
  }
  if (leaves && (wanted.offload.to.empty() || transfer::is_auto(wanted.offload))) {
    throw InputError(
        "offload_optimizer needs a memory for the state: name it (offload), as in "
        "\"disk:/scratch\"");
  }
  if (leaves != program.lowered.far_parameters.empty()) return;
  const std::string name = wanted.offload.to.rfind("disk:", 0) == 0 ? "disk" : wanted.offload.to;
  set_state_home(program.lowered, updater().updates(), program.far_bytes, leaves ? name : "");
}

void StepState::move_state(const StepPlanOptions& wanted, const transfer::OpenedMemory& there) {
  if (far_state && (!wanted.offload_optimizer || far_state->memory() != there.memory)) {
    far_state->fetch();
    far_state.reset();
  }
  if (wanted.offload_optimizer && !far_state) {
    far_state = std::make_shared<FarState>(options.optimizer, recording().device, there.memory);
  }
  use_far_state();
}

void StepState::use_far_state() {
  const std::vector<int64_t>& bytes = captured().program.far_bytes;
  if (far_state) far_state->expect(updater().updates(), bytes);
  updater().use_far(far_state, bytes);
}

}  // namespace reprise::runtime::internal::graph
