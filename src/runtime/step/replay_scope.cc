#include "runtime/step/replay_scope.h"

#include <ATen/autocast_mode.h>

namespace reprise::runtime::internal::step {

ReplayScope::ReplayScope()
    : normal_mode_(false),
      no_autocast_(c10::autocast_dispatch_keyset),
      keep_grad_mode_(at::GradMode::is_enabled()) {}

}  // namespace reprise::runtime::internal::step
