// Tests of faults run these models, and compare the state before a step with the state after it
// failed.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fixture.h"
#include "small_models.h"
#include "training/zoo.h"

namespace reprise::runtime::testing {

// This is a model with what its step is made of.
struct ChainSubject {
  std::string name;
  std::vector<Stage> stages;
  Tensors inputs;
  Loss loss;
};

inline ChainSubject convolutions_and_dropout() {
  at::manual_seed(3);
  return {"convolutions", conv_stages(), {at::randn({2, 3, 16, 16})}, mean_square};
}

inline ChainSubject of_the_zoo(const std::string& name) {
  at::manual_seed(3);
  const training::Model model = training::make_model(small_config(name));
  return {name,
          model.stages,
          {model.sample_input()},
          [model, target = model.sample_target()](const Tensors& y) {
            return model.loss(y.at(0), target);
          }};
}

inline std::vector<ChainSubject> chains() {
  return {convolutions_and_dropout(), of_the_zoo("lstm"), of_the_zoo("gpt")};
}

inline at::Tensor plain(const ChainSubject& subject) {
  at::Tensor loss = subject.loss(run_plain(subject.stages, subject.inputs));
  loss.backward();
  return loss;
}

// This is the state before a step: all of it, and how much memory is live.
struct Before {
  explicit Before(const ChainSubject& s)
      : subject(s), bits(bits_now(s.stages, s.inputs)), level(live()) {}
  void expect_nothing_changed() const {
    EXPECT_EQ(difference(bits, bits_now(subject.stages, subject.inputs)), "");
    EXPECT_EQ(live(), level);
    EXPECT_EQ(memory_limit(), std::nullopt);
  }

  const ChainSubject& subject;
  Bits bits;
  int64_t level;
};

}  // namespace reprise::runtime::testing
