// Tests functions that are compared with their recordings, without a replay: a function that says
// what was recorded is never found to differ, whatever operations it calls.
#include <torch/csrc/autograd/custom_function.h>

#include <functional>
#include <vector>

#include "fixture.h"
#include "reprise/runtime/capture.h"
#include "runtime/lockstep/lockstep.h"
#include "runtime/state/random_state.h"
#include "runtime/step/observe_step.h"
#include "step_cases.h"

namespace reprise::runtime::testing {
namespace {

using internal::lockstep::compare_with;
using internal::state::RandomState;
using internal::step::observe_step;
using internal::step::Recording;

class LockstepAgreement : public RuntimeTest {};

// Records a function, and expects that it agrees with the recording.
void expect_agreement(const StepFunction& step, const Tensors& inputs,
                      const std::vector<at::Tensor>& parameters = {}) {
  const Recording recording =
      observe_step(step, inputs, at::kCPU, parameters, 2, nullptr).recording;
  const RandomState random(at::kCPU);
  for (int run = 0; run < 2; ++run) {
    EXPECT_EQ(compare_with(recording, step, inputs, parameters), "");
  }
  EXPECT_TRUE(random.is_now());
}

TEST_F(LockstepAgreement, TheCasesOfGraphMode) {
  for (const Case& one : cases()) {
    SCOPED_TRACE(one.name);
    const auto step = [&](const Tensors& in) {
      const at::Tensor loss = one.loss(in);
      loss.backward();
      return Tensors{loss};
    };
    expect_agreement(step, one.inputs);
  }
}

TEST_F(LockstepAgreement, OperationsOfManyKinds) {
  const at::Tensor input = at::randn({8, 16}), w = at::randn({16, 16}).requires_grad_();
  struct Doubled : torch::autograd::Function<Doubled> {
    static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
      context->save_for_backward({x});
      return x * 2;
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                   torch::autograd::variable_list gradients) {
      return {gradients[0] * 2 + context->get_saved_variables()[0] * 0};
    }
  };
  const std::vector<std::function<at::Tensor(const at::Tensor&)>> bodies = {
      // in place on a value, on a view, and by a list of tensors
      [&](const at::Tensor& x) { return at::mm(x, w).sin().mul_(2).add_(x); },
      [&](const at::Tensor& x) {
        const at::Tensor y = at::mm(x, w);
        y.select(0, 1).mul_(3);
        y.narrow(1, 0, 4).zero_();
        return y;
      },
      [&](const at::Tensor& x) {
        const at::Tensor y = at::mm(x, w).detach();
        const std::vector<at::Tensor> parts = y.split(4);
        at::_foreach_add_(parts, 1.0);
        return at::mm(x, w) * y;
      },
      // views that change a tensor itself
      [&](const at::Tensor& x) { return at::mm(x, w).clone().t_().unsqueeze_(0).squeeze_(0); },
      // complex numbers, whose conjugates are flags
      [&](const at::Tensor& x) {
        const at::Tensor z = at::complex(at::mm(x, w), x).conj();
        return at::real(z * z.conj()) + at::imag(z);
      },
      // literals, ranges and random numbers
      [&](const at::Tensor& x) {
        const at::Tensor y = at::mm(x, w) + at::tensor({1.5f}) + at::arange(16) * 0.5;
        return y + at::rand_like(y) + at::scalar_tensor(2.0) + at::empty({16}).fill_(1);
      },
      // lists, indices, masks and results that are no tensors
      [&](const at::Tensor& x) {
        const at::Tensor y = at::mm(x, w);
        const at::Tensor chosen =
            y.index({at::arange(4), at::Tensor()}).sum() + y.masked_select(x > 0).sum();
        return at::cat({y, y.index({x.select(1, 0) > 0})}) + chosen;
      },
      [&](const at::Tensor& x) {
        const at::Tensor y = at::mm(x, w).view({1, 2, 4, 16});
        return at::scaled_dot_product_attention(y, y, y);
      },
      // a function of the user's own, and a step without history inside
      [&](const at::Tensor& x) { return Doubled::apply(at::mm(x, w)); },
      [&](const at::Tensor& x) {
        const at::Tensor y = at::mm(x, w);
        const at::NoGradGuard no_grad;
        const at::Tensor norm = y.norm();
        return [&] {
          const at::AutoGradMode grad(true);
          return y / norm;
        }();
      },
      // an operation that fails, and that the step goes on without
      [&](const at::Tensor& x) {
        const at::Tensor y = at::mm(x, w);
        try {
          return at::mm(y, at::ones({3, 3}));
        } catch (const c10::Error&) {
          return y * 2;
        }
      },
      // gradients of gradients
      [&](const at::Tensor& x) {
        const at::Tensor y = at::mm(x, w).tanh();
        const at::Tensor slope = torch::autograd::grad({y.sum()}, {w}, {}, /*retain_graph=*/true,
                                                       /*create_graph=*/true)[0];
        return y + slope.square().sum();
      },
  };
  for (size_t b = 0; b < bodies.size(); ++b) {
    SCOPED_TRACE(b);
    const auto step = [&](const Tensors& in) {
      const at::Tensor loss = bodies[b](in[0]).square().mean();
      loss.backward();
      return Tensors{loss};
    };
    expect_agreement(step, {input}, {w});
    w.mutable_grad() = at::Tensor();
  }
}

}  // namespace
}  // namespace reprise::runtime::testing
