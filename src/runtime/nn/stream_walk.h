// This is one forward pass through the branches of a reversible network, and its way back.
//
// Branch number i changes stream i % 2: it adds its function of the other stream. So a block of Gomez et
// al. is two branches, and to undo a branch takes one run of its function.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "reprise/runtime/nn/reversible.h"
#include "runtime/chain/stage_runner.h"
#include "runtime/nn/fixed_point.h"
#include "runtime/state/autocast.h"
#include "runtime/state/random_state.h"
#include "runtime/state/value_keeper.h"

namespace reprise::runtime::internal::nn {

using TwoTensors = std::array<at::Tensor, 2>;

// Returns a branch that is a function of one tensor, and that refuses what a walk cannot undo: the
// result is f(x) and x itself. `stage` has a name and a function.
Stage checked_branch(const Stage& stage, const at::Tensor& stream);

// Throws the error of a stream that is not in the range of fixed-point numbers behind a branch, or
// at the start.
[[noreturn]] void refuse_range(const std::vector<Stage>& branches, size_t behind, bool wide,
                               int fraction_bits);

// Throws refuse_range() for the first of these booleans that is true; one for the input and for each branch.
void check_range(const std::vector<Stage>& branches, const std::vector<at::Tensor>& outside,
                 bool wide, int fraction_bits);

class StreamWalk {
 public:
  // `needed` is whether the inputs require gradients. Nothing runs yet.
  StreamWalk(const std::vector<Stage>& branches, const runtime::nn::ReversibleOptions& options,
             const TwoTensors& inputs);

  // Returns the first branch whose result requires a gradient; the number of branches if there is
  // none.
  size_t first() const { return first_; }
  // These functions return the parameters, and which of them have their whole gradient when the way
  // back is through a branch.
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  const std::vector<size_t>& complete_at(size_t branch) const { return facts_[branch].complete; }
  // Returns whether a stream requires a gradient behind all branches.
  bool needed(size_t stream) const { return needed_[stream]; }

  // Runs all branches. Random state and buffers are as before if it throws.
  void forward();
  // Returns a stream as numbers of the type of the inputs.
  at::Tensor numbers(size_t stream) const;
  // Takes what numbers() returned as the streams that the caller may not change.
  void watch(const TwoTensors& results);

  // Goes back through a branch: undoes it, and turns the gradients by its results into those by its
  // inputs. The gradients of the parameters in complete_at() come behind them. Throws InputError if the
  // streams are not right behind this branch.
  std::vector<at::Tensor> backward(size_t branch, TwoTensors gradients);
  void drop();  // the streams

 private:
  struct Facts {
    chain::PreparedStage prepared;
    std::vector<size_t> complete = {};
    std::vector<int64_t> versions = {};  // of the parameters
    std::vector<at::Tensor> buffers = {};
    std::optional<state::RandomState> random = {};  // before the branch, if it draws random numbers
    std::optional<state::ValueKeeper> before = {};  // the buffers, if it changes them
  };

  void find_parameters();
  at::Tensor run_first(size_t branch);
  std::pair<at::Tensor, chain::Kept> run_again(size_t branch);
  at::Tensor add(size_t stream, const at::Tensor& change, Sign sign);
  void check_unchanged(const Facts& facts) const;

  const std::vector<Stage>& branches_;  // of the network, which the nodes own
  const bool fixed_;
  const int fraction_bits_;
  const at::ScalarType type_;
  const c10::Device device_;
  std::array<bool, 2> needed_;
  std::vector<Facts> facts_;
  std::vector<at::Tensor> parameters_;
  size_t first_ = 0;
  size_t behind_ = 0;   // the number of branches that lie before the streams
  TwoTensors streams_;  // integers if fixed_
  TwoTensors watched_;
  std::array<int64_t, 2> watched_versions_{};
  state::AutocastState autocast_;
  chain::GradientBook book_;
};

}  // namespace reprise::runtime::internal::nn
