// This is the state of the thread in which a replay calls kernels.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace reprise::runtime::internal::step {

// While a ReplayScope lives, kernels run below autograd, without autocast, and outside inference
// mode.
class ReplayScope {
 public:
  ReplayScope();

 private:
  c10::InferenceMode normal_mode_;
  at::AutoDispatchBelowADInplaceOrView below_autograd_;
  c10::impl::ExcludeDispatchKeyGuard no_autocast_;
  at::AutoGradMode keep_grad_mode_;
};

}  // namespace reprise::runtime::internal::step
