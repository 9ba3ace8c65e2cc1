#include "runtime/lockstep/lockstep.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <exception>
#include <set>
#include <utility>

#include "reprise/model/errors.h"
#include "runtime/device/backward_queue.h"
#include "runtime/lockstep/follower.h"
#include "runtime/lockstep/intercept.h"
#include "runtime/lockstep/shells.h"
#include "runtime/state/random_state.h"
#include "runtime/step/before_images.h"
#include "runtime/step/gradients_aside.h"

namespace reprise::runtime::internal::lockstep {

using state::RandomState;
using step::BeforeImages;
using step::LeafGradient;
using step::Recording;

namespace {

// The scope puts back all that a run of the function changes when it ends. The recording was made
// without gradients, so there are none in the scope.
class Untouched {
 public:
  Untouched(const Recording& recording, const Tensors& inputs,
            const std::vector<at::Tensor>& parameters)
      : random_(recording.device) {
    for (const at::Tensor& parameter : parameters) take_gradient_of(parameter);
    for (const LeafGradient& leaf : recording.gradients) {
      if (leaf.input < 0) take_gradient_of(leaf.target);
    }
    for (const at::Tensor& input : inputs) {
      if (input.defined() && input.is_leaf()) take_gradient_of(input);
    }
    // The cache of the caller's autocast may hold weights that were cast before.
    at::autocast::clear_cache();
  }
  ~Untouched() {
    at::autocast::clear_cache();
    if (handed_over_) return;
    before_.restore();
    gradients_.put_back();
    if (keeps_random_ && !random_.is_now()) random_.restore();
  }
  Untouched(const Untouched&) = delete;
  Untouched& operator=(const Untouched&) = delete;

  bool random_state_changed() const { return !random_.is_now(); }
  step::GradientsAside& gradients() { return gradients_; }
  // Returns the leaves that the function had looked at when it ended or left.
  std::vector<at::Tensor> seen() const { return handed_over_ ? seen_ : gradients_.seen(); }
  // Lets the random state go on.
  void leave_random() { keeps_random_ = false; }

  // Lets all that the function does stay, from the middle of its run on: gradients that were there
  // before are there again, with what has been added to them.
  void hand_over() {
    handed_over_ = true;
    seen_ = gradients_.seen();
    gradients_.add();
  }
  // Undoes what was handed over, as far as it is known here.
  void take_back() { handed_over_ = false; }
  // Returns a tensor whose requires_grad is not what the recording says; an undefined one for none.
  at::Tensor other_flag(const Recording& recording) const {
    for (const at::Tensor& tensor : before_.flipped()) {
      const bool recorded =
          std::ranges::any_of(recording.flags, [&](const step::GradientFlag& flag) {
            return flag.target.is_same(tensor) && flag.wanted == tensor.requires_grad();
          });
      if (!recorded) return tensor;
    }
    return {};
  }

 private:
  void take_gradient_of(const at::Tensor& tensor) {
    if (!taken_.insert(tensor.unsafeGetTensorImpl()).second) return;
    before_.keep_place(tensor);
    before_.keep_flag(tensor);
    gradients_.take(tensor);
  }

  RandomState random_;
  bool keeps_random_ = true;
  bool handed_over_ = false;
  BeforeImages before_;
  step::GradientsAside gradients_;
  std::vector<at::Tensor> seen_;
  std::set<const void*> taken_;
};

// Throws InputError in place of the exception of code that took the pointer of a shell. Passes other
// exceptions on.
[[noreturn]] void explain(const std::exception_ptr& raised) {
  try {
    std::rethrow_exception(raised);
  } catch (const InputError&) {
    throw;
  } catch (const c10::Error& error) {
    if (std::string(error.what()).find(kNoBytes) == std::string::npos) throw;
    throw InputError(
        "the step looks into the bytes of a tensor by a pointer, in host code that a captured step "
        "does not run again: compute with the tensor itself, or read a boolean or a whole number "
        "by item(). If what it reads has no effect on the step, capture with lockstep never");
  }
}

}  // namespace

bool can_follow(const Recording& recording) {
  return std::ranges::all_of(recording.values, [&](const step::StepValue& value) {
    return value.device.is_cpu() || value.device == recording.device;
  });
}

bool is_due(Lockstep how, int64_t call) {
  if (how != Lockstep::kSparse) return how == Lockstep::kAlways;
  if (call <= 2) return true;
  while (call % 10 == 0) call /= 10;
  return call == 1;
}

std::string compare_with(const Recording& recording, const StepFunction& function,
                         const Tensors& inputs, const std::vector<at::Tensor>& parameters) {
  FunctionFollower follower(recording, inputs);
  std::exception_ptr raised;
  bool drew = false;
  {
    const Untouched untouched(recording, inputs, parameters);
    try {
      Tensors outputs;
      {
        const Interception interception(follower);
        outputs = function(inputs);
      }
      follower.finish(outputs);
    } catch (...) {
      raised = std::current_exception();
    }
    drew = untouched.random_state_changed();
  }
  if (raised) device::drain_backward_queue();
  if (!follower.difference().empty()) return follower.difference();
  if (raised) explain(raised);
  if (drew)
    return "the function sets the state of the random generator, and the recording does not";
  return {};
}

Followed follow(const Recording& recording, const StepFunction& function, const Tensors& inputs,
                const std::vector<at::Tensor>& parameters, ReplayBeside& beside) {
  Followed followed;
  Untouched untouched(recording, inputs, parameters);
  untouched.leave_random();
  FunctionFollower follower(recording, inputs, &beside, [&] { untouched.hand_over(); });
  follower.show_gradients_of(untouched.gradients());
  try {
    const Interception interception(follower);
    followed.outputs = function(inputs);
    follower.end(followed.outputs);
    if (!follower.has_left() && untouched.other_flag(follower.recording()).defined()) {
      follower.leave("the function sets requires_grad of a tensor, and the recording does not");
    }
  } catch (...) {
    untouched.take_back();
    device::drain_backward_queue();
    explain(std::current_exception());
  }
  followed.left = follower.has_left();
  if (!followed.left) {
    followed.held = follower.held();
    untouched.gradients().forget_dropped();
  }
  followed.seen = untouched.seen();
  return followed;
}

}  // namespace reprise::runtime::internal::lockstep

std::string reprise::runtime::no_bytes_text() { return std::string(internal::lockstep::kNoBytes); }
