// This is a training that the tests of online mode run plainly and online, and the bits that it may
// change.
#pragma once

#include <torch/optim/sgd.h>

#include <functional>

#include "fixture.h"
#include "online_models.h"

namespace reprise::runtime::testing {

inline int64_t peak() { return memory_count(c10::kCPU).peak; }

// Returns all that a step may change, as bytes in host memory.
inline Bits bits_of(const Subject& subject, const at::Tensor& loss) {
  Bits bits;
  put_bits(bits, "loss", loss);
  for (const auto& item : subject.module->named_parameters()) {
    put_bits(bits, item.key(), item.value());
    put_bits(bits, item.key() + ".grad", item.value().grad());
  }
  for (const auto& item : subject.module->named_buffers()) put_bits(bits, item.key(), item.value());
  put_bits(bits, "random state", at::detail::getDefaultCPUGenerator().get_state());
  return bits;
}

using MakeSubject = std::function<Subject()>;

// Trains for some steps with momentum, from the same start each time.
struct OnlineTraining {
  explicit OnlineTraining(const MakeSubject& make)
      : subject((at::manual_seed(1), make())),
        optimizer(subject.module->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9)) {}

  at::Tensor body() {
    optimizer.zero_grad();
    at::Tensor loss = subject.forward();
    loss.backward();
    optimizer.step();
    return loss.detach();
  }
  void prepare(int step) {
    at::manual_seed(static_cast<uint64_t>(100 + step));
    subject.prepare(step);
  }

  Subject subject;
  torch::optim::SGD optimizer;
};

inline bool all_are(const at::Tensor& tensor, float number) {
  return tensor.eq(number).all().item<bool>();
}

class OnlineTest : public RuntimeTest {};

}  // namespace reprise::runtime::testing
