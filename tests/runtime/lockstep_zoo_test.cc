// Each model of the zoo agrees with its recording when its step runs beside it, and takes no memory.
#include "fixture.h"
#include "reprise/runtime/allocator.h"
#include "runtime/lockstep/lockstep.h"
#include "runtime/step/observe_step.h"
#include "small_models.h"
#include "training/zoo.h"
#include "zoo_step.h"

namespace reprise::runtime::testing {
namespace {

using internal::lockstep::compare_with;
using internal::step::observe_step;
using internal::step::Recording;

class LockstepZoo : public ::testing::TestWithParam<std::string> {};

TEST_P(LockstepZoo, TheStepAgreesWithItsRecordingAndTakesNoMemory) {
  install_cpu_allocator();
  at::manual_seed(5);
  const training::Model model = training::make_model(small_config(GetParam()));
  const Tensors inputs{model.sample_input(), model.sample_target()};
  const StepFunction step = training_step(model);
  const std::vector<at::Tensor> parameters = parameters_of(model.stages);
  const Recording recording =
      observe_step(step, inputs, at::kCPU, parameters, 2, nullptr).recording;
  const auto peak_of = [](const std::function<void()>& work) {
    const int64_t live = memory_count(at::kCPU).live;
    reset_peak(at::kCPU);
    work();
    return memory_count(at::kCPU).peak - live;
  };
  const Bits before = bits_now(model.stages, inputs);
  const int64_t compared =
      peak_of([&] { EXPECT_EQ(compare_with(recording, step, inputs, parameters), ""); });
  EXPECT_EQ(difference(before, bits_now(model.stages, inputs)), "");
  const int64_t plain = peak_of([&] { step(inputs); });
  EXPECT_LT(compared, 4096);
  EXPECT_GT(plain, 10 * compared);
}

INSTANTIATE_TEST_SUITE_P(All, LockstepZoo, ::testing::ValuesIn(tested_models()),
                         [](const auto& row) { return row.param; });

}  // namespace
}  // namespace reprise::runtime::testing
