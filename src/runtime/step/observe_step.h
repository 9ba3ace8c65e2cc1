// Observes a step function: records it, audits it, and compares its runs.
#pragma once

#include "reprise/runtime/capture.h"
#include "runtime/step/audit.h"
#include "runtime/step/record.h"

namespace reprise::runtime::internal::step {

// An Observation is a recording, with what its runs showed. The serial numbers of the audit are those
// of the last run.
struct Observation {
  Recording recording;
  Audit audit;
};

// Runs the step `runs` times, from 2 on, and returns a recording that can be replayed:
//
// 1. The first run finds no gradients. It is recorded, and all memory is watched.
// 2. The second run finds gradients of zeros, which shows what the step does with them.
// 3. Further runs find no gradients.
//
// All runs have to do the same work. Memory of up to kLargestLiteral bytes is watched in all of them,
// so that a literal of the host that changes is noticed. `runs` runs in a row are compared, so that
// what changes at every n-th call is noticed for each n up to `runs`.
//
// The step runs more often where that is not enough: up to twice more if it writes memory that no
// schema declares; once more if leaves that are not among `parameters` have gradients; `runs` times
// more if the run with gradients cannot be compared; and `runs` + 1 times more if a later run differs
// from the first one, which may have filled a cache.
//
// Parameters, gradients, buffers and the random state are left as they were. `parameters` are tensors
// that the step may know although no operation reads them; the step may drop their gradients. Throws
// InputError as capture() does, and when two runs do not do the same work. The runs are in
// `surroundings`; null stands for none.
Observation observe_step(const StepFunction& step, const Tensors& inputs, c10::Device device,
                         const std::vector<at::Tensor>& parameters, int runs,
                         Surroundings* surroundings);

// Runs the step once, as a step of the training: nothing is put back. Memory is watched as closely
// as `scrutiny` says; `known` are the writes that no schema declares and that are known. The recording
// can be replayed if the audit has no other ones. It says nothing of gradients from before.
Observation observe_run(const StepFunction& step, const Tensors& inputs, c10::Device device,
                        const std::vector<at::Tensor>& parameters, Scrutiny scrutiny,
                        const Audit& known, Surroundings* surroundings);

// Runs the step `count` more times without gradients, and says whether these runs do the work of the
// recording and teach nothing new about it. The arguments are those of observe_step().
bool repeats(const StepFunction& step, const Tensors& inputs, c10::Device device,
             const std::vector<at::Tensor>& parameters, Observation seen, int count,
             Surroundings* surroundings);

}  // namespace reprise::runtime::internal::step
