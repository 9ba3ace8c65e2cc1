// Checks promises about a process as a whole: several models with budgets of their own, threads,
// and child processes.
#include <ATen/Parallel.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "both_modes.h"
#include "runtime/device/tensor_bytes.h"

namespace reprise::runtime::testing {

using internal::device::storage_bytes;
namespace {

class ProcessTest : public RuntimeTest {};

// Returns the message of the InputError that `work` throws.
template <class Work>
std::string refusal(Work&& work) {
  try {
    work();
  } catch (const InputError& error) {
    return error.what();
  }
  return "done";
}

TEST_F(ProcessTest, ModelsOfBothModesTakeTurnsEachInsideItsBudget) {
  const std::vector<Stage> a = conv_stages(), b = small_stages(64), c = conv_stages();
  const Tensors rows{rows_}, images{images_};
  const StepState state_a(a, images), state_b(b, rows), state_c(c, images);
  auto turns = [&](const std::function<at::Tensor()>& first,
                   const std::function<at::Tensor()>& second,
                   const std::function<at::Tensor()>& third) {
    state_b.restore();
    state_c.restore();
    state_a.restore();
    std::vector<Bits> all;
    for (int n = 0; n < 4; ++n) {
      drop_gradients(a, {});
      drop_gradients(b, {});
      drop_gradients(c, {});
      all.push_back(bits_now(a, images, first()));
      all.push_back(bits_now(b, rows, second()));
      all.push_back(bits_now(c, images, third()));
    }
    return all;
  };
  auto plain_turns = [&] {
    return turns([&] { return plain(a, images); }, [&] { return plain(b, rows); },
                 [&] { return plain(c, images); });
  };
  plain_turns();
  auto model_a = fitted(a, images);
  auto model_b = fitted(b, rows);
  CapturedStep step_c = captured(c, images);
  // Each budget is for the model's own peak beside what the others hold between their steps.
  int64_t resident = 0;
  for (const std::vector<Stage>& stages : {a, b, c}) {
    resident += 2 * storage_bytes(parameters_of(stages)) + storage_bytes(buffers_of(stages));
  }
  model_a->set_budget(smallest_budget(*model_a) + Bytes(resident));
  model_b->set_budget(smallest_budget(*model_b) + Bytes(resident));
  step_c.plan(
      {.budget = step_c.planned().budget + Bytes(resident), .time_limit = Nanos(100'000'000)});
  const std::vector<Bits> expected = plain_turns();
  auto in_budget = [](const auto& report) {
    EXPECT_EQ(report.predicted_peak, report.measured_peak);
    EXPECT_LE(report.measured_peak, report.budget);
    EXPECT_EQ(memory_limit(), std::nullopt);
  };
  auto planned = [&](const std::shared_ptr<Remat>& model, const Tensors& inputs) {
    at::Tensor loss = mean_square(model->forward(inputs));
    loss.backward();
    in_budget(model->last_step());
    return loss;
  };
  const std::vector<Bits> found =
      turns([&] { return planned(model_a, images); }, [&] { return planned(model_b, rows); },
            [&] {
              at::Tensor loss = step_c.run(images);
              in_budget(step_c.last_step());
              return loss;
            });
  for (size_t n = 0; n < expected.size(); ++n)
    EXPECT_EQ(difference(expected[n], found[n]), "") << n;
}

// Descends by hand, so that every step starts from other parameters.
void descend(const std::vector<Stage>& stages) {
  at::NoGradGuard no_grad;
  for (const at::Tensor& p : parameters_of(stages)) {
    at::Tensor(p).sub_(p.grad(), 0.1);
    p.mutable_grad() = at::Tensor();
  }
}

std::string parameter_bits(const std::vector<Stage>& stages) {
  std::string bits;
  for (const at::Tensor& p : parameters_of(stages)) {
    bits.append(static_cast<const char*>(p.const_data_ptr()), p.nbytes());
  }
  return bits;
}

// A budget covers all live bytes, also those of the other thread's step. So a step may be refused,
// and then nothing has changed. A step that is not refused is right.
TEST_F(ProcessTest, TwoThreadsWithAModelEachAreRightOrRefused) {
  constexpr int kSteps = 100;
  at::manual_seed(5);
  std::vector<std::vector<Stage>> models{dense_stages(5), dense_stages(7)};
  std::vector<std::string> expected;
  for (std::vector<Stage>& stages : models) {
    std::vector<at::Tensor> initial;
    for (const at::Tensor& p : parameters_of(stages)) initial.push_back(p.detach().clone());
    for (int n = 0; n < kSteps; ++n) {
      plain(stages, {rows_});
      descend(stages);
    }
    expected.push_back(parameter_bits(stages));
    at::NoGradGuard no_grad;
    for (size_t i = 0; i < initial.size(); ++i) {
      at::Tensor(parameters_of(stages)[i]).copy_(initial[i]);
    }
  }
  std::vector<std::shared_ptr<Remat>> planned{fitted(models[0], {rows_}),
                                              fitted(models[1], {rows_})};
  const int64_t level = live();
  for (const auto& model : planned) {  // tight enough that the two meet now and then
    model->set_budget(Bytes(level + (smallest_budget(*model).count() - level) * 3 / 2));
  }
  std::atomic<int> refused = 0, changed = 0;
  auto train = [&](size_t m) {
    int in_a_row = 0;
    for (int n = 0; n < kSteps;) {
      const std::string before = parameter_bits(models[m]);
      try {
        at::Tensor loss = mean_square(planned[m]->forward(Tensors{rows_}));
        loss.backward();
      } catch (const BudgetError& error) {
        ++refused;
        ASSERT_LT(++in_a_row, 10'000) << error.what() << "; before the threads " << level;
        changed += parameter_bits(models[m]) != before;
        for (const at::Tensor& p : parameters_of(models[m])) changed += p.grad().defined();
        std::this_thread::yield();
        continue;
      }
      descend(models[m]);
      in_a_row = 0;
      ++n;
    }
  };
  std::thread first(train, 0), second(train, 1);
  first.join();
  second.join();
  RecordProperty("refused", refused.load());
  EXPECT_EQ(changed, 0);
  EXPECT_EQ(parameter_bits(models[0]), expected[0]);
  EXPECT_EQ(parameter_bits(models[1]), expected[1]);
  EXPECT_EQ(memory_limit(), std::nullopt);
  EXPECT_EQ(live(), level);
}

TEST_F(ProcessTest, AModelThatOneThreadFittedIsUsedByOthers) {
  const std::vector<Stage> stages = conv_stages();
  const Tensors inputs{images_};
  const StepState state(stages, inputs);
  plain(stages, inputs);
  state.restore();
  const Bits expected = [&] {
    const at::Tensor loss = plain(stages, inputs);
    return bits_now(stages, inputs, loss);
  }();
  state.restore();
  CapturedStep step = captured(stages, inputs);
  auto model = fitted(stages, inputs);
  const int64_t level = live();
  at::Tensor loss;
  for (int n = 0; n < 3; ++n) {
    state.restore();
    std::thread([&] { loss = mean_square(model->forward(inputs)); }).join();
    std::thread([&] { loss.backward(); }).join();
    EXPECT_EQ(difference(expected, bits_now(stages, inputs, loss)), "");
    EXPECT_EQ(memory_limit(), std::nullopt);
    state.restore();
    std::thread([&] { loss = step.run(inputs); }).join();
    EXPECT_EQ(difference(expected, bits_now(stages, inputs, loss)), "");
    loss = at::Tensor();
  }
  state.restore();
  EXPECT_EQ(step.last_step().fallbacks, 0);
  EXPECT_EQ(live(), level);
}

TEST_F(ProcessTest, MeasuringWhileAnotherThreadStepsIsRefusedAndSoIsTheOpposite) {
  const std::vector<Stage> stages = dense_stages(4), others = dense_stages(3);
  CapturedStep step = captured(stages, {rows_});
  auto model = fitted(stages, {rows_});
  drop_gradients(stages, {});
  const RematOptions options{.loss = mean_square, .measure = quick()};
  std::vector<std::string> said;
  auto ask = [&] {
    said.push_back(refusal([&] { model->forward(rows_); }));
    said.push_back(refusal([&] { step.run({rows_}); }));
    said.push_back(refusal([&] { remat(others, {rows_}, options); }));
    said.push_back(refusal([&] { captured(others, {rows_}); }));
    said.push_back(refusal([&] { profile(others, {rows_}, mean_square); }));
  };
  RematOptions watched = options;
  watched.observer = [&](const Progress& now) {
    if (now.task == "profile" && said.empty()) std::thread(ask).join();
  };
  remat(others, {rows_}, watched);
  ASSERT_EQ(said.size(), 5U);
  for (const std::string& text : said) {
    EXPECT_NE(text.find("measure"), std::string::npos) << text;
    EXPECT_NE(text.find("before the threads start"), std::string::npos) << text;
  }
  said.clear();
  {
    const at::Tensor output =
        model->forward(rows_);  // under way until its backward, or until it is dropped
    std::thread([&] {
      said.push_back(refusal([&] { remat(others, {rows_}, options); }));
      said.push_back(refusal([&] { captured(others, {rows_}); }));
    }).join();
  }
  for (const std::string& text : said) {
    EXPECT_NE(text.find("has a step under way"), std::string::npos) << text;
  }
  EXPECT_EQ(refusal([&] { std::thread([&] { remat(others, {rows_}, options); }).join(); }), "done");
}

// Runs `work` in a child of fork(), which exits with 0 if `work` returns true. A child that hangs
// is ended.
template <class Work>
int in_a_child(Work&& work) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    bool well = false;
    try {
      well = work();
    } catch (...) {
    }
    _exit(well ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

TEST_F(ProcessTest, ChildrenWorkOnTensorsWhileTheParentTrainsOn) {
  const std::vector<Stage> stages = conv_stages();
  const Tensors inputs{images_};
  const StepState state(stages, inputs);
  plain(stages, inputs);
  state.restore();
  const Bits expected = [&] {
    const at::Tensor loss = plain(stages, inputs);
    return bits_now(stages, inputs, loss);
  }();
  CapturedStep step = captured(stages, inputs);
  auto model = fitted(stages, inputs);
  for (int n = 0; n < 3; ++n) {  // so that the step has its arena
    state.restore();
    step.run(inputs);
  }
  state.restore();
  const int64_t budget = model->plan().budget.count();
  // More than the budget of the parent's step, as a loader's batches may be.
  auto load = [&] {
    const at::Tensor batch = at::ones({budget}, at::kByte);
    return batch.sum().item<int64_t>() == budget && images_.sum().isfinite().item<bool>();
  };
  EXPECT_EQ(in_a_child(load), 0);
  at::Tensor loss = mean_square(model->forward(inputs));
  EXPECT_NE(memory_limit(), std::nullopt);
  EXPECT_EQ(in_a_child(load), 0) << "in the middle of a step";
  EXPECT_NE(memory_limit(), std::nullopt);
  loss.backward();
  EXPECT_EQ(difference(expected, bits_now(stages, inputs, loss)), "");
  // A child may even train its copy of the model.
  EXPECT_EQ(
      in_a_child([&] {
        state.restore();
        return difference(expected, planned_step(*model, stages, inputs, mean_square)).empty();
      }),
      0);
  EXPECT_EQ(in_a_child([&] {
              state.restore();
              return difference(expected, bits_now(stages, inputs, step.run(inputs))).empty();
            }),
            0);
  state.restore();
  EXPECT_EQ(difference(expected, bits_now(stages, inputs, step.run(inputs))), "");
  EXPECT_EQ(step.last_step().fallbacks, 0);
  state.restore();
}

TEST_F(ProcessTest, AForkWhileAnotherThreadTakesMemoryDoesNotHangTheChild) {
  std::atomic<bool> stop = false;
  std::thread busy([&] {
    while (!stop) at::empty({64});
  });
  for (int n = 0; n < 100; ++n) {
    ASSERT_EQ(in_a_child([] { return at::empty({64}).defined(); }), 0) << "child " << n;
  }
  stop = true;
  busy.join();
}

TEST_F(ProcessTest, OneAndTwoThreadsWithinOperationsEachRepeatPlainTraining) {
  const int before = at::get_num_threads();
  const std::vector<Stage> stages = conv_stages();
  const Tensors inputs{at::randn({16, 3, 16, 16})};
  const StepState state(stages, inputs);
  auto model = remat(stages, inputs, {.loss = mean_square, .measure = quick()});
  for (const int threads : {1, 2, 1}) {
    SCOPED_TRACE(threads);
    at::set_num_threads(threads);
    CapturedStep step = captured(stages, inputs);
    const int64_t plans = model->last_step().plans;
    model->set_budget({});
    model->plan_for(inputs);  // sizes are of a number of threads: another one is measured again
    model->set_budget(smallest_budget(*model));
    plain(stages, inputs);  // warm
    state.restore();
    const std::vector<Bits> expected = plain_steps(stages, inputs, mean_square, 2);
    for (int n = 0; n < 2; ++n) {
      state.restore();
      EXPECT_EQ(difference(expected[0], planned_step(*model, stages, inputs, mean_square)), "");
      EXPECT_EQ(model->last_step().predicted_peak, model->last_step().measured_peak);
      drop_gradients(stages, inputs);
      EXPECT_EQ(difference(expected[1], planned_step(*model, stages, inputs, mean_square)), "");
      state.restore();
      EXPECT_EQ(difference(expected[0], bits_now(stages, inputs, step.run(inputs))), "");
    }
    EXPECT_GT(model->last_step().plans, plans);
    state.restore();
  }
  at::set_num_threads(before);
}

}  // namespace
}  // namespace reprise::runtime::testing
