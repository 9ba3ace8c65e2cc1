// A step on stand-ins is recorded as plain training records it, in the memory of its largest
// operation, and a capture within a budget comes from there.
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <sstream>

#include "online_training.h"
#include "reprise/check/simulate.h"
#include "reprise/runtime/capture.h"
#include "runtime/graph/stand_ins.h"
#include "runtime/step/observe_step.h"
#include "small_models.h"
#include "step_cases.h"
#include "training/zoo.h"
#include "zoo_step.h"

namespace reprise::runtime::testing {
namespace {

using internal::graph::StandIns;
using internal::step::Argument;
using internal::step::Call;
using internal::step::LeafGradient;
using internal::step::observe_step;
using internal::step::Recording;
using internal::step::StepValue;

// Writes its operand and does not say so.
at::Tensor scribble(const at::Tensor& x) {
  x.detach().mul_(2);
  return at::ones({1});
}

// Returns a matrix whose strides depend on its numbers.
at::Tensor laid_out_by_numbers(const at::Tensor& x) {
  const int64_t rows = x.size(0), columns = x.size(1);
  const bool by_columns = x.lt(0).any().item<bool>();
  const at::Tensor made =
      by_columns ? at::empty({columns, rows}).t() : at::empty({rows, columns});
  return made.copy_(x);
}

TORCH_LIBRARY(reprise_stand_ins, library) {
  library.def("scribble(Tensor x) -> Tensor");
  library.def("laid_out_by_numbers(Tensor x) -> Tensor");
}
TORCH_LIBRARY_IMPL(reprise_stand_ins, CPU, library) {
  library.impl("scribble", &scribble);
  library.impl("laid_out_by_numbers", &laid_out_by_numbers);
}

at::Tensor call(const char* name, const at::Tensor& x) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow(name, "")
      .typed<at::Tensor(const at::Tensor&)>()
      .call(x);
}

std::string text_of(const c10::IValue& value) {
  std::ostringstream text;
  if (value.isGenerator() || value.isDevice()) return {};
  text << value;
  return text.str();
}

bool same_arguments(const Call& a, const Call& b) {
  return std::equal(a.arguments.begin(), a.arguments.end(), b.arguments.begin(), b.arguments.end(),
                    [](const Argument& x, const Argument& y) {
                      return x.kind == y.kind && x.tensors == y.tensors &&
                             x.shape_only == y.shape_only &&
                             text_of(x.constant) == text_of(y.constant);
                    });
}

// Says what the first recording has in another way than the second one: operators, shapes, strides,
// memory that is shared, effects, random numbers, gradients.
std::string difference_of(const Recording& a, const Recording& b) {
  if (a.calls.size() != b.calls.size()) {
    return fmt::format("{} and {} calls", a.calls.size(), b.calls.size());
  }
  for (size_t c = 0; c < a.calls.size(); ++c) {
    const Call &x = a.calls[c], &y = b.calls[c];
    const char* what = x.name() != y.name()                               ? "operator"
                       : !same_arguments(x, y)                            ? "arguments"
                       : x.outputs != y.outputs                           ? "results"
                       : x.effects != y.effects                           ? "effects"
                       : x.random != y.random                             ? "random numbers"
                       : x.phase != y.phase || x.grad_mode != y.grad_mode ? "phase"
                       : x.node != y.node                                 ? "node"
                                                                          : nullptr;
    if (what != nullptr) return fmt::format("{} of call {}: {}, {}", what, c, x.name(), y.name());
  }
  const bool same_values =
      std::equal(a.values.begin(), a.values.end(), b.values.begin(), b.values.end(),
                 [](const StepValue& x, const StepValue& y) {
                   return x.bytes == y.bytes && x.maker == y.maker && x.previous == y.previous &&
                          x.device == y.device;
                 });
  const bool same_gradients = std::equal(
      a.gradients.begin(), a.gradients.end(), b.gradients.begin(), b.gradients.end(),
      [](const LeafGradient& x, const LeafGradient& y) {
        return x.target.is_same(y.target) && x.input == y.input && x.gradient == y.gradient &&
               x.arrival == y.arrival;
      });
  return !same_values                               ? "values"
         : !same_gradients                          ? "gradients"
         : a.outputs != b.outputs                   ? "outputs"
         : a.externals.size() != b.externals.size() ? "externals"
         : a.left_out.size() != b.left_out.size()   ? "views"
         : a.held != b.held                         ? "held memory"
                                                    : "";
}

// Records a step plainly and on stand-ins, and expects the same recording and an untouched model.
void expect_the_plain_recording(const StepFunction& step, const Tensors& inputs,
                                const std::vector<at::Tensor>& parameters = {}) {
  const auto record = [&](internal::step::Surroundings* surroundings, int64_t& most) {
    const int64_t level = live();
    reset_peak(c10::kCPU);
    Recording recording =
        observe_step(step, inputs, at::kCPU, parameters, 3, surroundings).recording;
    most = peak() - level;
    return recording;
  };
  int64_t of_plain = 0, of_stand_ins = 0;
  const Recording plain = record(nullptr, of_plain);
  StandIns stand_ins(Bytes(int64_t{1} << 40), at::kCPU);
  const Recording found = record(&stand_ins, of_stand_ins);
  EXPECT_EQ(difference_of(found, plain), "");
  EXPECT_LE(of_stand_ins, of_plain);
}

class StandInsZoo : public ::testing::TestWithParam<std::string> {};

TEST_P(StandInsZoo, RecordWhatPlainTrainingRecordsInLessMemory) {
  install_cpu_allocator();
  at::manual_seed(5);
  const training::Model model = training::make_model(small_config(GetParam()));
  const Tensors inputs{model.sample_input(), model.sample_target()};
  const StepFunction step = training_step(model);
  const Bits before = bits_now(model.stages, inputs);
  expect_the_plain_recording(step, inputs, parameters_of(model.stages));
  EXPECT_EQ(difference(before, bits_now(model.stages, inputs)), "");
}

INSTANTIATE_TEST_SUITE_P(All, StandInsZoo, ::testing::ValuesIn(tested_models()),
                         [](const auto& row) { return row.param; });

class StandInsTest : public RuntimeTest {};

TEST_F(StandInsTest, TheCasesOfGraphMode) {
  for (const Case& one : cases()) {
    SCOPED_TRACE(one.name);
    expect_the_plain_recording(
        [&](const Tensors& in) {
          const at::Tensor loss = one.loss(in);
          loss.backward();
          return Tensors{loss};
        },
        one.inputs);
  }
}

// Operators need no kernel that knows shapes alone, because their own kernels run.
TEST_F(StandInsTest, WritesThatNoSchemaDeclaresAreFound) {
  nn::Linear layer(64, 64);
  const StepFunction step = [=](const Tensors& in) mutable {
    const at::Tensor y = layer->forward(in[0]).tanh();
    const at::Tensor one = call("reprise_stand_ins::scribble", y.detach());
    const at::Tensor loss = (y.detach() * layer->forward(y.detach()) * one).mean();
    loss.backward();
    return Tensors{loss.detach()};
  };
  for (const int64_t rows : {8, 512}) expect_the_plain_recording(step, {at::randn({rows, 64})});
}

TEST_F(StandInsTest, AnOperationWithOtherStridesThanInTheCaptureEndsTheFirstStep) {
  nn::Linear layer(64, 64);
  const StepFunction step = [=](const Tensors& in) mutable {
    const at::Tensor y = call("reprise_stand_ins::laid_out_by_numbers", in[0]);
    const at::Tensor z = call("reprise_stand_ins::laid_out_by_numbers", y * 1);
    const at::Tensor loss = layer->forward(z).square().mean();
    loss.backward();
    return Tensors{loss.detach()};
  };
  const Tensors inputs{at::randn({32, 64})};
  const at::Tensor expected = step(inputs)[0];
  layer->zero_grad();
  CaptureOptions options{.modules = {layer.ptr()}, .measure = quick()};
  EXPECT_TRUE(capture(step, inputs, options).run(inputs).equal(expected));
  layer->zero_grad();
  options.budget = Bytes(live() + (int64_t{64} << 20));
  CapturedStep captured = capture(step, inputs, options);
  try {
    captured.run(inputs);
    FAIL() << "other strides were not noticed";
  } catch (const InputError& error) {
    EXPECT_TRUE(contains(error.what(), "with other strides, than in the capture within a budget"))
        << error.what();
  }
  EXPECT_FALSE(layer->weight.grad().defined());
}

}  // namespace
}  // namespace reprise::runtime::testing
