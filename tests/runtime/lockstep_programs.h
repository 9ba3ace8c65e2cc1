// These are the steps of the lockstep tests: a function of a block and of numbers that a test
// changes.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "fixture.h"
#include "reprise/runtime/capture.h"
#include "reprise/runtime/miss.h"

namespace reprise::runtime::testing {

// A model with what steps have: a norm with statistics, dropout, an operation in place, views.
struct BlockImpl : nn::Module {
  BlockImpl()
      : in(register_module("in", nn::Linear(16, 16))),
        norm(register_module("norm", nn::BatchNorm1d(16))),
        other(register_module("other", nn::Linear(16, 16))),
        out(register_module("out", nn::Linear(16, 4))) {}

  at::Tensor body(const at::Tensor& x) {
    return torch::dropout(norm(in(x)).relu_(), 0.2, is_training());
  }
  at::Tensor loss_of(const at::Tensor& x) {
    at::Tensor loss = out(x.view({-1, 4, 4}).transpose(1, 2).reshape({-1, 16})).square().mean();
    loss.backward();
    return loss;
  }

  nn::Linear in;
  nn::BatchNorm1d norm;
  nn::Linear other, out;
};
TORCH_MODULE(Block);

// The function of a test reads these numbers. A test changes them behind the capture.
struct Program {
  double scale = 1.0;
  int way = 0;
  int64_t rows = 8;
  int runs = 0;  // of the function
  std::function<void()> inside = [] {};
};

class LockstepTest : public RuntimeTest {
 protected:
  void SetUp() override {
    RuntimeTest::SetUp();
    x_ = at::randn({8, 16});
  }

  // Returns the step of a function of the block, the program and the input.
  template <class Body>
  StepFunction step_of(Body body) {
    return [body, block = block_, program = program_](const Tensors& in) mutable -> Tensors {
      ++program->runs;
      program->inside();
      return body(block, *program, in[0]);
    };
  }
  template <class Body>
  CapturedStep captured(Body body, CaptureOptions options = {}) {
    options.modules = {block_.ptr()};
    options.measure = quick();
    return CapturedStep(step_of(body), {x_}, options);
  }
  // Captures a step, runs it `runs` times, lets `change` change the program, and runs it until
  // lockstep finds the change. Returns the message. A run that is refused has no effect.
  template <class Body>
  std::string found(Body body, const std::function<void(Program&)>& change, int runs = 6) {
    CapturedStep step = captured(body);
    for (int run = 0; run < runs; ++run) step.run({x_});
    change(*program_);
    for (int run = runs + 1; run < 10 && runs >= 2; ++run) step.run({x_});
    const Bits before = bits_now(stages(), {x_});
    for (int attempt = 0; attempt < 2; ++attempt) {
      try {
        step.run({x_});
        ADD_FAILURE() << "nothing was found";
      } catch (const StepMiss& miss) {
        EXPECT_TRUE(miss.of_function());
        EXPECT_EQ(difference(before, bits_now(stages(), {x_})), "");
        EXPECT_EQ(step.last_step().compared, std::min(runs, 2));
        if (attempt == 1) return miss.what();
      }
    }
    return {};
  }
  std::vector<Stage> stages() { return {{"block", block_.ptr(), {}}}; }

  static at::Tensor scaled(Block& block, const Program& program, const at::Tensor& x) {
    return block->loss_of(block->body(x) * program.scale);
  }

  Block block_;
  std::shared_ptr<Program> program_ = std::make_shared<Program>();
  at::Tensor x_;
};

inline constexpr auto kScaled = [](Block& block, Program& program, const at::Tensor& x) -> Tensors {
  return {block->loss_of(block->body(x) * program.scale)};
};

inline bool has(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

}  // namespace reprise::runtime::testing
