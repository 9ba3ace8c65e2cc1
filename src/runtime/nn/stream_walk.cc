// Gomez et al., arXiv 1707.04585, section 3.2, algorithm 1. The names of the paper and of this file:
//
//   y1 = x1 + F(x2)              branch 2 i: streams_[0] += function(streams_[1])
//   y2 = x2 + G(y1)              branch 2 i + 1: streams_[1] += function(streams_[0])
//   lines 2 to 4 (G, x2, F, x1)  run_again() and the sum with Sign::kMinus
//   lines 5 to 9 (gradients)     run_backward() of the branch, fed with both gradients
//
// Plain training adds the gradient by the other stream first and those of the branch after it. So
// the other stream is a second result of the branch: autograd then adds in the same order.
//
// Tests: tests/runtime/reversible_test.cc, tests/python/test_reversible.py.
#include "runtime/nn/stream_walk.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <unordered_map>

#include "reprise/model/errors.h"
#include "runtime/chain/saved/nodes.h"

namespace reprise::runtime::internal::nn {

using chain::version_of;
using runtime::nn::ReversibleOptions;
using runtime::nn::StreamNumbers;
using state::AutocastScope;
using state::RandomState;
using state::ValueKeeper;

Stage checked_branch(const Stage& stage, const at::Tensor& stream) {
  Stage checked{stage.name, stage.module, {}};
  checked.forward = [stage, sizes = stream.sizes().vec(),
                     device = stream.device()](const Tensors& x) {
    const auto refuse = [&](const std::string& why) {
      throw InputError("branch '" + stage.name + "' of a reversible network " + why);
    };
    const int64_t version = version_of(x[0]);
    Tensors results = stage.forward(x);
    if (results.size() != 1 || !results[0].defined()) {
      refuse(c10::str("returns ", results.size(), " tensors: it is to return one"));
    }
    const at::Tensor& result = results[0];
    if (version_of(x[0]) != version) {
      refuse(
          "changes its input in place, so that its stream is lost: let its first operation make a "
          "new tensor (inplace=False)");
    }
    if (result.sizes() != at::IntArrayRef(sizes)) {
      refuse(c10::str("returns the shape ", result.sizes(), ", and its stream has ",
                      at::IntArrayRef(sizes),
                      ": a block cannot change shapes. Do that between two "
                      "reversible networks"));
    }
    if (!result.is_floating_point() || result.layout() != at::kStrided ||
        result.device() != device) {
      refuse(c10::str("returns a ", result.toString(), " on ", result.device(),
                      ": it is to return real numbers on ", device));
    }
    return Tensors{result, x[0]};
  };
  return checked;
}

void refuse_range(const std::vector<Stage>& branches, size_t behind, bool wide, int fraction_bits) {
  const double limit = std::ldexp(1.0, (wide ? 63 : 31) - fraction_bits);
  const std::string where = behind == 0 ? "an input of a reversible network"
                                        : "the sum behind branch '" + branches[behind - 1].name +
                                              "' of a reversible network";
  throw InputError(c10::str(
      where, " has a number that is not finite or not in [-", limit, ", ", limit,
      "), the range of fixed-point streams with fraction_bits=", fraction_bits,
      ": take fewer fraction_bits, put a norm into the branches, or use floating-point streams"));
}

void check_range(const std::vector<Stage>& branches, const std::vector<at::Tensor>& outside,
                 bool wide, int fraction_bits) {
  std::vector<at::Tensor> defined;
  std::vector<size_t> behind;
  for (size_t i = 0; i < outside.size(); ++i) {
    if (!outside[i].defined()) continue;
    defined.push_back(outside[i]);
    behind.push_back(i);
  }
  if (defined.empty()) return;
  const at::Tensor all = at::stack(defined).cpu();
  for (size_t i = 0; i < behind.size(); ++i) {
    if (all.const_data_ptr<bool>()[i]) refuse_range(branches, behind[i], wide, fraction_bits);
  }
}

StreamWalk::StreamWalk(const std::vector<Stage>& branches, const ReversibleOptions& options,
                       const TwoTensors& inputs)
    : branches_(branches),
      fixed_(options.streams == StreamNumbers::kFixedPoint),
      fraction_bits_(options.fraction_bits),
      type_(inputs[0].scalar_type()),
      device_(inputs[0].device()),
      needed_{inputs[0].requires_grad(), inputs[1].requires_grad()},
      facts_(branches.size()),
      streams_{inputs[0].detach(), inputs[1].detach()},
      autocast_(device_) {
  find_parameters();
  first_ = branches.size();
  for (size_t i = 0; i < branches.size(); ++i) {
    const size_t to = i % 2, from = 1 - to;
    Facts& facts = facts_[i];
    facts.prepared.stage = checked_branch(branches[i], inputs[to]);
    facts.prepared.traits.input_needs_grad = {needed_[from]};
    needed_[to] = needed_[to] || needed_[from] || !facts.prepared.parameters.empty();
    if (first_ == branches.size() && (needed_[0] || needed_[1])) first_ = i;
  }
  book_.resize(parameters_.size());
}

void StreamWalk::find_parameters() {
  std::unordered_map<const void*, size_t> known;
  for (size_t i = 0; i < branches_.size(); ++i) {
    Facts& facts = facts_[i];
    if (!branches_[i].module) continue;
    for (const at::Tensor& parameter : branches_[i].module->parameters()) {
      if (!parameter.requires_grad()) continue;
      if (!parameter.is_leaf()) {
        throw InputError("branch '" + branches_[i].name +
                         "' of a reversible network has a parameter that is not a leaf");
      }
      const auto [entry, fresh] =
          known.emplace(parameter.unsafeGetTensorImpl(), parameters_.size());
      if (fresh) {
        parameters_.push_back(parameter);
        facts.complete.push_back(entry->second);  // the way back meets this branch last
      }
      facts.prepared.parameters.push_back(entry->second);
    }
    std::vector<size_t>& own = facts.prepared.parameters;
    std::sort(own.begin(), own.end());
    own.erase(std::unique(own.begin(), own.end()), own.end());
    facts.buffers = branches_[i].module->buffers();
    std::erase_if(facts.buffers, [](const at::Tensor& buffer) { return !buffer.defined(); });
  }
}

at::Tensor StreamWalk::numbers(size_t stream) const {
  return fixed_ ? from_fixed(streams_[stream], type_, fraction_bits_) : streams_[stream].detach();
}

void StreamWalk::watch(const TwoTensors& results) {
  if (fixed_) return;  // the streams are other tensors
  for (size_t e = 0; e < 2; ++e) {
    watched_[e] = results[e].detach();  // has the same counter; the result itself holds the walk
    watched_versions_[e] = version_of(results[e]);
  }
}

at::Tensor StreamWalk::add(size_t stream, const at::Tensor& change, Sign sign) {
  const at::NoGradGuard no_grad;
  if (fixed_) return add_fixed(streams_[stream], change, fraction_bits_, sign);
  const at::Tensor sum =
      sign == Sign::kPlus ? streams_[stream] + change : streams_[stream] - change;
  streams_[stream] = sum.to(type_);
  return {};
}

void StreamWalk::forward() {
  const bool wide = type_ == at::kDouble;
  const RandomState start(device_);
  std::vector<at::Tensor> outside;
  const auto check = [&] { check_range(branches_, outside, wide, fraction_bits_); };
  try {
    for (size_t e = 0; fixed_ && e < 2; ++e) {
      const at::Tensor x = streams_[e];
      streams_[e] = at::zeros_like(x, x.options().dtype(integers_for(type_)));
      outside.assign(1, add_fixed(streams_[e], x, fraction_bits_));
      check();
    }
    for (behind_ = 0; behind_ < branches_.size();) {
      outside.push_back(add(behind_ % 2, run_first(behind_), Sign::kPlus));
      ++behind_;
      if (device_.is_cpu()) check();
    }
    check();
  } catch (...) {
    const size_t begun = std::min(behind_ + 1, facts_.size());
    for (size_t i = begun; i-- > 0;) {
      if (facts_[i].before) facts_[i].before->restore();
    }
    start.restore();
    drop();
    throw;
  }
}

at::Tensor StreamWalk::run_first(size_t branch) {
  Facts& facts = facts_[branch];
  const Tensors x = {numbers(1 - branch % 2)};
  facts.before.emplace(facts.buffers);
  facts.before->save();
  const RandomState random(device_);
  Tensors results;
  if (branch >= first_) {
    // With gradients, like the second run: some operations have other kernels without them.
    for (size_t p : facts.prepared.parameters) facts.versions.push_back(parameters_[p]._version());
    results = chain::run_keep(facts.prepared, x, parameters_).first;
  } else {
    const at::NoGradGuard no_grad;
    results = facts.prepared.stage.forward(x);
  }
  if (!random.is_now()) facts.random = random;
  if (!facts.before->changed()) facts.before.reset();
  return results[0];
}

void StreamWalk::check_unchanged(const Facts& facts) const {
  for (size_t i = 0; i < facts.prepared.parameters.size(); ++i) {
    if (parameters_[facts.prepared.parameters[i]]._version() == facts.versions[i]) continue;
    throw InputError(
        "a parameter of branch '" + facts.prepared.stage.name +
        "' of a reversible network was changed between the forward pass and the backward "
        "pass, which runs the branch again; change it after backward()");
  }
  for (size_t e = 0; e < 2; ++e) {
    if (!watched_[e].defined() || version_of(watched_[e]) == watched_versions_[e]) continue;
    throw InputError(
        "a result of a reversible network with floating-point streams was changed in place "
        "before the backward pass, which begins with it: change a copy");
  }
}

// Runs a branch with the buffers, the random numbers and the autocast state of its first run.
std::pair<at::Tensor, chain::Kept> StreamWalk::run_again(size_t branch) {
  const Facts& facts = facts_[branch];
  const AutocastScope as_before(autocast_, device_);
  std::optional<RandomState> random;
  if (facts.random) {
    random.emplace(device_);
    facts.random->restore();
  }
  ValueKeeper now(facts.buffers);
  now.save();
  if (facts.before) facts.before->restore();
  const auto put_back = [&] {
    now.restore();
    if (random) random->restore();
  };
  try {
    auto [results, kept] = chain::run_keep(facts.prepared, {numbers(1 - branch % 2)}, parameters_);
    put_back();
    return {std::move(results[0]), std::move(kept)};
  } catch (...) {
    put_back();
    throw;
  }
}

std::vector<at::Tensor> StreamWalk::backward(size_t branch, TwoTensors gradients) {
  if (behind_ != branch + 1 || !streams_[0].defined()) {
    throw InputError(
        "the backward pass ran through this reversible network already and its streams are undone; "
        "run forward again (retain_graph=True does not reach into it)");
  }
  const size_t to = branch % 2, from = 1 - to;
  Facts& facts = facts_[branch];
  check_unchanged(facts);
  watched_ = {};
  auto [change, kept] = run_again(branch);
  add(to, change, Sign::kMinus);
  change.reset();
  --behind_;
  if (behind_ == first_) drop();
  if (gradients[0].defined() || gradients[1].defined()) {
    chain::StageGradients found = chain::run_backward(
        facts.prepared, std::move(kept), {gradients[to], gradients[from]}, parameters_, book_);
    gradients[from] = std::move(found.inputs[0]);
  }
  std::vector<at::Tensor> result = {std::move(gradients[0]), std::move(gradients[1])};
  for (size_t p : facts.complete) result.push_back(std::move(book_[p]));
  return result;
}

void StreamWalk::drop() {
  streams_ = {};
  watched_ = {};
}

}  // namespace reprise::runtime::internal::nn
