// In lockstep, the function of a captured step runs again, beside its recording, and is compared
// with it call by call. This finds what the function says by now and what no guard sees.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reprise/runtime/capture.h"
#include "runtime/lockstep/beside.h"
#include "runtime/step/recording.h"

namespace reprise::runtime::internal::lockstep {

// Says whether this call of a recording is compared. Calls are counted from 1.
bool is_due(Lockstep how, int64_t call);

// Says whether a function can run beside this recording: its tensors lie on the CPU and on one other
// device at most. Autograd has a thread for each device, so with more of them the order of calls is
// not the same in every run.
bool can_follow(const step::Recording& recording);

// Runs the function once and returns in words what it does otherwise than the recording. The text is
// empty if nothing differs. Operators compute nothing, so the run takes as long as a step's own code
// and autograd, and no memory but for the numbers that the program writes. Host reads get the
// numbers of the recording. Parameters, gradients, buffers, flags, inputs and the random state are
// left as they were; what the function's own code changes elsewhere is changed as in plain training.
// `parameters` are tensors that the step may know although no operation reads them.
//
// An exception of the function goes to the caller, unless the function threw it because it differs.
// Throws InputError if the function looks into the bytes of a tensor.
std::string compare_with(const step::Recording& recording, const StepFunction& function,
                         const Tensors& inputs, const std::vector<at::Tensor>& parameters);

// A Followed is what is left of a function that ran and was followed.
struct Followed {
  Tensors outputs;              // that the function returned
  std::vector<HeldShell> held;  // shells that the program holds; empty if the function has left
  // Leaves whose .grad the function has looked at before the step made a gradient.
  std::vector<at::Tensor> seen;
  bool left = false;  // The function went on by itself.
};

// Runs the function of a step once, with what is `beside` it (beside.h). Gradients, flags and the
// data of parameters are then as before, and come from the replay, but for gradients that the function
// has dropped. If the function has left, all that it does is done. What the function throws passes through; gradients are as before then.
// Throws InputError if the function takes the pointer of a shell.
Followed follow(const step::Recording& recording, const StepFunction& function,
                const Tensors& inputs, const std::vector<at::Tensor>& parameters,
                ReplayBeside& beside);

}  // namespace reprise::runtime::internal::lockstep
