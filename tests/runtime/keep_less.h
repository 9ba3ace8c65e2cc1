// Runs stages that keep something in less memory, and compares them with plain runs.
#pragma once

#include "fixture.h"
#include "runtime/chain/prepare.h"
#include "runtime/chain/saved/keep_less.h"
#include "runtime/chain/stage_runner.h"
#include "runtime/device/tensor_bytes.h"

namespace reprise::runtime::testing {

inline const internal::chain::SavedForm kSmaller{.one_bit_mask = true, .small_indices = true};
inline const internal::chain::SavedForm kRebuild{
    .one_bit_mask = true, .small_indices = true, .rebuild = true};

// Holds what a stage's run keeps beside its output, and what its backward makes of gradients of
// ones.
struct StageRun {
  int64_t kept = 0;
  Bits bits;
};

class KeepLessTest : public RuntimeTest {
 protected:
  static internal::chain::PreparedModel prepared(const Stage& stage, const at::Tensor& x) {
    return internal::chain::prepare({{"", {stage}}}, {}, {{x.detach().requires_grad_()}});
  }

  static StageRun run(const internal::chain::PreparedModel& model, const at::Tensor& x,
                      const internal::chain::SavedForm& saved_form,
                      const std::function<void()>& between = {}) {
    at::manual_seed(3);
    StageRun result;
    const int64_t before = live();
    auto [outputs, kept] =
        internal::chain::run_keep(model.stages[0], {x.detach()}, model.parameters, saved_form);
    result.kept = live() - before - internal::device::storage_bytes(outputs);
    put_bits(result.bits, "output", outputs);
    if (between) between();
    internal::chain::GradientBook book(model.parameters.size());
    const Tensors gradients =
        internal::chain::run_backward(model.stages[0], std::move(kept), {at::ones_like(outputs[0])},
                                      model.parameters, book)
            .inputs;
    put_bits(result.bits, "input gradient", gradients);
    put_bits(result.bits, "gradient", book);
    return result;
  }

  // Returns how many bytes less are kept than in plain training, after it has shown that nothing
  // else differs.
  static int64_t saved(const Stage& stage, const at::Tensor& x,
                       const internal::chain::SavedForm& saved_form) {
    const internal::chain::PreparedModel model = prepared(stage, x);
    run(model, x, {});  // warm up
    const StageRun plain = run(model, x, {}), other = run(model, x, saved_form);
    EXPECT_EQ(difference(plain.bits, other.bits), "") << stage.name;
    EXPECT_TRUE(
        internal::chain::rebuilds_same_bits(model.stages[0], {x.detach()}, model.parameters))
        << stage.name;
    return plain.kept - other.kept;
  }
};

// Makes a stage of one input and one output.
template <class Forward>
Stage stage_of(std::shared_ptr<torch::nn::Module> module, Forward forward) {
  return {"stage", std::move(module),
          [forward](const Tensors& x) mutable { return Tensors{forward(x.at(0))}; }};
}

inline constexpr int64_t kImages = 8 * 8 * 16 * 16 * 4;  // bytes of eight channels of `images_`

struct ConvNormActivation : torch::nn::Module {
  torch::nn::Conv2d first = register_module("first", conv(3));
  torch::nn::BatchNorm2d norm = register_module("norm", torch::nn::BatchNorm2d(8));
  torch::nn::Conv2d second = register_module("second", conv(8));

  // Puts a function between the norm and the second convolution.
  Stage with(const std::function<at::Tensor(at::Tensor)>& activation) {
    return stage_of(shared_from_this(), [this, activation](const at::Tensor& x) {
      return second->forward(activation(norm->forward(first->forward(x))));
    });
  }
};

}  // namespace reprise::runtime::testing
