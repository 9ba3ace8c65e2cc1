#include "runtime/chain/prepare.h"

#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <unordered_set>

#include "reprise/model/errors.h"
#include "runtime/chain/agreement.h"
#include "runtime/chain/joined_stage.h"
#include "runtime/device/plain_tensors.h"
#include "runtime/device/tensor_bytes.h"
#include "runtime/state/random_state.h"
#include "runtime/state/value_keeper.h"

namespace reprise::runtime::internal::chain {

using device::require_plain;
using state::bitwise_equal;
using state::RandomScope;
using state::RandomState;
using state::ValueKeeper;

namespace {

[[noreturn]] void reject(const Stage& stage, const std::string& why) {
  throw InputError("stage '" + stage.name + "' " + why);
}

struct Piece {
  Stage stage;
  std::vector<std::shared_ptr<torch::nn::Module>> modules;
};

bool shares_storage(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && b.defined() && a.has_storage() && b.has_storage() &&
         a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl();
}

// Returns the leaf tensors in which the recorded ops end, except those with a sink. The function of
// a stage uses them without a module that shows them. `begin` is autograd's sequence number at the
// start of the recording.
std::vector<at::Tensor> other_leaves(const Stage& stage, const torch::autograd::edge_list& roots,
                                     uint64_t begin) {
  std::vector<at::Tensor> leaves;
  std::vector<torch::autograd::Node*> todo;
  std::unordered_set<torch::autograd::Node*> seen;
  const auto visit = [&](const torch::autograd::edge_list& edges) {
    for (const torch::autograd::Edge& edge : edges) {
      if (edge.is_valid() && seen.insert(edge.function.get()).second) {
        todo.push_back(edge.function.get());
      }
    }
  };
  visit(roots);
  while (!todo.empty()) {
    torch::autograd::Node* node = todo.back();
    todo.pop_back();
    if (const auto* end = dynamic_cast<torch::autograd::AccumulateGrad*>(node)) {
      leaves.push_back(end->variable);
    } else if (node->sequence_nr() < begin) {
      reject(stage,
             "uses a tensor that was made outside it and has a history, which would be gone after "
             "the first step: hand it over as an input, or detach() it");
    }
    visit(node->next_edges());
  }
  return leaves;
}

// The findings of one watched run of a stage.
struct Observation {
  Tensors outputs;
  bool changes_input = false;
  std::vector<bool> aliases;     // per output: shares memory with an input
  std::vector<bool> needs_grad;  // per output
  bool random = false;
  std::vector<at::Tensor> other_leaves;
};

class StageWatcher {
 public:
  StageWatcher(const Piece& piece, const PreparedModel& model,
               const std::vector<size_t>& parameters, const std::vector<bool>& input_needs_grad)
      : piece_(piece), model_(model) {
    watched_.parameters = parameters;
    watched_.traits.input_needs_grad = input_needs_grad;
    watched_.traits.copies_input = true;  // so x_i stays as it is, whatever the stage does
    watched_.stage = piece.stage;
    watched_.stage.forward = [this](const Tensors& x) { return watch(x); };
  }

  Observation keep(const Tensors& x) {
    seen_ = {};
    const RandomState before(model_.device);
    const uint64_t begin = at::sequence_number::peek();
    auto [outputs, kept] = run_keep(watched_, x, model_.parameters);
    seen_.random = !(before == RandomState(model_.device));
    for (const auto& root : kept.roots) seen_.needs_grad.push_back(root.is_valid());
    seen_.other_leaves = other_leaves(piece_.stage, kept.roots, begin);
    seen_.outputs = std::move(outputs);
    return std::move(seen_);
  }
  Tensors fast(const Tensors& x) { return run_fast(watched_, x, model_.parameters); }

 private:
  Tensors watch(const Tensors& x) {
    std::vector<int64_t> versions;
    for (const at::Tensor& tensor : x) versions.push_back(tensor._version());
    Tensors outputs = piece_.stage.forward(x);
    if (outputs.empty()) reject(piece_.stage, "returns no tensor");
    seen_.aliases.clear();
    for (const at::Tensor& output : outputs) {
      if (!output.defined()) reject(piece_.stage, "returns an undefined tensor");
      require_plain(output, fmt::format("what stage '{}' returns", piece_.stage.name));
      if (output.device() != model_.device) {
        reject(piece_.stage, "returns a tensor on " + output.device().str() + " where " +
                                 model_.device.str() + " was given; use one device");
      }
      seen_.aliases.push_back(std::any_of(
          x.begin(), x.end(), [&](const at::Tensor& in) { return shares_storage(in, output); }));
    }
    for (size_t e = 0; e < x.size(); ++e) seen_.changes_input |= x[e]._version() != versions[e];
    return outputs;
  }

  const Piece& piece_;
  const PreparedModel& model_;
  PreparedStage watched_;
  Observation seen_;
};

int64_t version_sum(const std::vector<at::Tensor>& tensors) {
  int64_t sum = 0;
  for (const at::Tensor& tensor : tensors) sum += tensor._version();
  return sum;
}

// Positions in the model's list of parameters, by tensor.
using Positions = std::unordered_map<void*, size_t>;

// Adds a parameter to the model's list and to the stage's list, unless it is there. The stage's
// list stays ascending.
void register_parameter(const at::Tensor& parameter, PreparedModel& model, Positions& known,
                        std::vector<size_t>& own) {
  auto [entry, fresh] = known.emplace(parameter.unsafeGetTensorImpl(), model.parameters.size());
  if (fresh) model.parameters.push_back(parameter);
  const auto place = std::lower_bound(own.begin(), own.end(), entry->second);
  if (place == own.end() || *place != entry->second) own.insert(place, entry->second);
}

std::vector<size_t> register_parameters(const Piece& piece, PreparedModel& model,
                                        Positions& known) {
  std::vector<size_t> own;
  for (const auto& module : piece.modules) {
    for (const at::Tensor& parameter : module->parameters()) {
      if (!parameter.requires_grad()) continue;
      if (!parameter.is_leaf()) reject(piece.stage, "has a parameter that is not a leaf");
      register_parameter(parameter, model, known, own);
    }
  }
  return own;
}

bool share_memory(const Tensors& tensors) {
  for (size_t e = 0; e < tensors.size(); ++e) {
    for (size_t f = 0; f < e; ++f) {
      if (shares_storage(tensors[e], tensors[f])) return true;
    }
  }
  return false;
}

// Rejects a piece whose run resized a buffer, because its old value cannot be put back.
void require_same_sizes(const Piece& piece, const std::vector<at::Tensor>& buffers,
                        const std::vector<std::vector<int64_t>>& sizes) {
  for (size_t b = 0; b < buffers.size(); ++b) {
    if (buffers[b].sizes() == sizes[b]) continue;
    reject(piece.stage,
           "has a buffer that takes its size when it runs for the first time (a lazy module, "
           "observers of quantization): run the model once before");
  }
}

bool same_bits(const Tensors& a, const Tensors& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), bitwise_equal);
}

// Finds out the traits of one piece on x. Then x becomes the piece's output. Returns false if the
// piece only returns views of x and should be joined to the piece before it.
bool prepare_piece(const Piece& piece, bool may_join, PreparedModel& model, Tensors& x,
                   std::vector<bool>& needs_grad, Positions& known) {
  PreparedStage prepared{piece.stage, {}, register_parameters(piece, model, known)};
  std::vector<at::Tensor> all_buffers, all_parameters;
  std::vector<std::vector<int64_t>> buffer_sizes;
  for (const auto& module : piece.modules) {
    for (const at::Tensor& buffer : module->buffers()) {
      all_buffers.push_back(buffer);
      buffer_sizes.push_back(buffer.sizes().vec());
    }
    for (const at::Tensor& parameter : module->parameters()) {
      // A parameter of a lazy module takes its size, and its first values, in the first run.
      if (parameter.numel() > 0) all_parameters.push_back(parameter);
    }
  }
  ValueKeeper buffers(all_buffers), parameters(all_parameters);
  const RandomState random(model.device);
  StageWatcher observer(piece, model, prepared.parameters, needs_grad);
  Observation seen;
  const auto put_back = [&] {
    for (size_t b = 0; b < all_buffers.size(); ++b) {
      if (all_buffers[b].sizes() != buffer_sizes[b]) return;
    }
    buffers.restore();
    if (parameters.changed()) parameters.restore();
  };
  bool advances = false, fast_differs = false, repeats = true;
  buffers.save();
  parameters.save();
  try {
    const int64_t version = version_sum(all_buffers);
    seen = observer.keep(x);
    require_same_sizes(piece, all_buffers, buffer_sizes);
    if (parameters.changed()) {
      parameters.restore();
      reject(piece.stage,
             "writes its parameters when it runs (Embedding with max_norm, a weight that is "
             "clamped in place?), which a plan would do again: do it between two steps");
    }
    // Batch norm writes its statistics without a new version, so the values are compared, too.
    advances = version_sum(all_buffers) != version || buffers.changed();
    buffers.restore();
    const auto run_again = [&](auto&& run) {
      random.restore();
      auto result = run();
      buffers.restore();
      return result;
    };
    const auto keep = [&] { return observer.keep(x); };
    const auto fast = [&] { return observer.fast(x); };
    // Each run may be one of all ranks.
    const auto differ = [&](const Tensors& a, const Tensors& b) {
      return on_any_rank(model.ranks, !same_bits(a, b), model.device);
    };
    fast_differs = differ(seen.outputs, run_again(fast));
    if (fast_differs) {  // without gradients, at every run, or only at the first run
      const Tensors second = run_again(keep).outputs;
      if (differ(seen.outputs, second)) {
        // In some of LibTorch's kernels, too, the first run in a process may differ from all others
        // (docs/runtime.md).
        seen = run_again(keep);
        repeats = !differ(seen.outputs, second);
        fast_differs = repeats && differ(seen.outputs, run_again(fast));
      }
    }
  } catch (const c10::Error& error) {
    put_back();
    reject(piece.stage, std::string("fails on its input: ") + error.what_without_backtrace());
  } catch (...) {
    put_back();
    throw;
  }
  for (const at::Tensor& leaf : seen.other_leaves) {
    if (piece.stage.sharded && piece.stage.sharded->has(leaf)) continue;
    require_plain(leaf, fmt::format("a parameter that stage '{}' uses", piece.stage.name));
    register_parameter(leaf, model, known, prepared.parameters);
  }
  if (seen.changes_input && share_memory(x)) {
    reject(piece.stage,
           "changes its input in place, and two tensors of the input share memory: let it make a "
           "new tensor, or let the stage before it return copies");
  }
  const bool all_views =
      std::all_of(seen.aliases.begin(), seen.aliases.end(), [](bool b) { return b; });
  if (all_views && may_join) return false;
  if (!repeats) {
    reject(piece.stage,
           "gives another result when it runs again on the same input, so no plan may run it "
           "again: does it keep a tensor in an attribute, draw from a random generator of its "
           "own, or use an algorithm that is not deterministic? State belongs in a buffer that is "
           "written in place, random numbers in the default generator");
  }

  StageTraits& traits = prepared.traits;
  traits.random = seen.random;
  traits.copies_input = seen.changes_input;
  // A changed input is a copy already, so the output may share its memory.
  traits.copies_output = seen.changes_input ? std::vector<bool>(seen.aliases.size()) : seen.aliases;
  traits.input_needs_grad = needs_grad;
  traits.output_needs_grad = seen.needs_grad;
  traits.buffers = all_buffers;
  traits.fast_with_grad = fast_differs;
  if (advances) {
    model.buffers.insert(model.buffers.end(), all_buffers.begin(), all_buffers.end());
  }
  needs_grad = seen.needs_grad;
  x = std::move(seen.outputs);
  model.stages.push_back(std::move(prepared));
  return true;
}

c10::Device device_of(const Tensors& sample) {
  if (sample.empty()) throw InputError("the sample input has no tensor");
  for (const at::Tensor& tensor : sample) {
    if (!tensor.defined()) throw InputError("the sample input has an undefined tensor");
    if (tensor.device() != sample[0].device()) {
      throw InputError("the sample input's tensors are on " + sample[0].device().str() + " and " +
                       tensor.device().str() + "; use one device");
    }
  }
  return sample[0].device();
}

// Ends are the tensors where a branch ends.
struct Ends {
  Tensors tensors;
  std::vector<bool> needs_grad;
};

std::vector<bool> wanted_gradients(const Tensors& tensors) {
  std::vector<bool> wanted;
  for (const at::Tensor& tensor : tensors) wanted.push_back(tensor.requires_grad());
  return wanted;
}

void prepare_branch(const StageBranch& branch, const Tensors& sample, PreparedModel& model,
                    Positions& known, Ends& ends) {
  const size_t first = model.stages.size();
  model.branches.push_back({branch.name, first, sample.size()});
  std::vector<bool> needs_grad = wanted_gradients(sample);
  Tensors x = sample;
  // The state before the last piece. The loop goes back to it when the next piece is joined to that
  // piece.
  Piece last;
  Tensors before_x;
  std::vector<bool> before_needs_grad;
  for (const Stage& stage : branch.stages) {
    Piece piece{stage, {}};
    if (stage.module) piece.modules.push_back(stage.module);
    Tensors input = x;
    std::vector<bool> input_needs_grad = needs_grad;
    if (!prepare_piece(piece, model.stages.size() > first, model, x, needs_grad, known)) {
      model.stages.pop_back();
      last.modules.insert(last.modules.end(), piece.modules.begin(), piece.modules.end());
      piece = {joined(last.stage, stage), last.modules};
      input = x = before_x;
      input_needs_grad = needs_grad = before_needs_grad;
      prepare_piece(piece, false, model, x, needs_grad, known);
    }
    last = piece;
    before_x = std::move(input);
    before_needs_grad = std::move(input_needs_grad);
  }
  ends.tensors.insert(ends.tensors.end(), x.begin(), x.end());
  ends.needs_grad.insert(ends.needs_grad.end(), needs_grad.begin(), needs_grad.end());
}

void prepare_tail(const std::vector<Stage>& stages, PreparedModel& model, Positions& known,
                  Ends ends) {
  Piece tail;
  for (const Stage& stage : stages) {
    tail.stage = tail.stage.forward ? joined(tail.stage, stage) : stage;
    if (stage.module) tail.modules.push_back(stage.module);
  }
  prepare_piece(tail, false, model, ends.tensors, ends.needs_grad, known);
  model.tail = std::move(model.stages.back());
  model.stages.pop_back();
}

}  // namespace

size_t PreparedModel::branch_of(size_t stage) const {
  size_t branch = branches.size() - 1;
  while (branches[branch].first > stage) --branch;
  return branch;
}

std::vector<size_t> PreparedModel::output_counts() const {
  std::vector<size_t> counts;
  for (size_t b = 0; b < branches.size(); ++b) {
    counts.push_back(stages[end_of(b) - 1].traits.output_needs_grad.size());
  }
  return counts;
}

bool PreparedModel::uses_behind(size_t stage, size_t parameter) const {
  const auto uses = [&](const PreparedStage& other) {
    return std::binary_search(other.parameters.begin(), other.parameters.end(), parameter);
  };
  const auto behind = stages.begin() + static_cast<std::ptrdiff_t>(stage) + 1;
  return std::any_of(behind, stages.end(), uses) || (tail && uses(*tail));
}

std::vector<bool> PreparedModel::output_needs_grad() const {
  if (tail) return tail->traits.output_needs_grad;
  std::vector<bool> needs_grad;
  for (size_t b = 0; b < branches.size(); ++b) {
    const std::vector<bool>& own = stages[end_of(b) - 1].traits.output_needs_grad;
    needs_grad.insert(needs_grad.end(), own.begin(), own.end());
  }
  return needs_grad;
}

PreparedModel prepare(const std::vector<StageBranch>& branches, const std::vector<Stage>& tail,
                      const std::vector<Tensors>& samples, distributed::Ranks* ranks) {
  PreparedModel model;
  model.ranks = ranks;
  Tensors all;
  for (const Tensors& sample : samples) all.insert(all.end(), sample.begin(), sample.end());
  model.device = device_of(all);
  const RandomScope random(model.device);
  Positions known;
  Ends ends;
  for (size_t b = 0; b < branches.size(); ++b) {
    if (branches[b].stages.empty()) {
      throw InputError(branches.size() == 1 ? "the model has no stage"
                                            : "branch '" + branches[b].name + "' has no stage");
    }
    prepare_branch(branches[b], samples[b], model, known, ends);
  }
  if (!tail.empty()) prepare_tail(tail, model, known, std::move(ends));
  // A joined stage has registered its buffers twice. Shared modules do so, too.
  std::unordered_set<void*> seen;
  std::erase_if(model.buffers, [&](const at::Tensor& buffer) {
    return !seen.insert(buffer.unsafeGetTensorImpl()).second;
  });
  // A stage that only reads an advanced buffer must also see its old value. A buffer that no stage
  // advances always has it.
  const auto keep_advanced = [&](PreparedStage& stage) {
    std::erase_if(stage.traits.buffers, [&](const at::Tensor& buffer) {
      const bool still = !seen.contains(buffer.unsafeGetTensorImpl());
      if (still) stage.traits.still.push_back(buffer);
      return still;
    });
  };
  for (PreparedStage& stage : model.stages) keep_advanced(stage);
  if (model.tail) keep_advanced(*model.tail);
  return model;
}

}  // namespace reprise::runtime::internal::chain
