#include "prepare.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <unordered_set>

#include "random_state.h"
#include "reprise/model/errors.h"

namespace reprise::runtime {
namespace {

[[noreturn]] void reject(const Stage& stage, const std::string& why) {
  throw InputError("stage '" + stage.name + "' " + why);
}

// `first`, then `second`, as one stage.
Stage joined(const Stage& first, const Stage& second) {
  return {first.name + "+" + second.name, nullptr,
          [a = first.forward, b = second.forward](const Tensors& x) { return b(a(x)); }};
}

struct Piece {
  Stage stage;
  std::vector<std::shared_ptr<torch::nn::Module>> modules;
};

bool shares_storage(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && b.defined() && a.has_storage() && b.has_storage() &&
         a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl();
}

// What one watched run of a stage showed.
struct Observation {
  Tensors outputs;
  bool changes_input = false;
  std::vector<bool> aliases;     // per output: shares memory with an input
  std::vector<bool> needs_grad;  // per output
  bool random = false;
};

class Observer {
 public:
  Observer(const Piece& piece, const PreparedModel& model, const std::vector<size_t>& parameters,
           const std::vector<bool>& input_needs_grad)
      : piece_(piece), model_(model) {
    watched_.parameters = parameters;
    watched_.traits.input_needs_grad = input_needs_grad;
    watched_.traits.copies_input = true;  // whatever it does to its input, x_i stays as it is
    watched_.stage = piece.stage;
    watched_.stage.forward = [this](const Tensors& x) { return watch(x); };
  }

  Observation keep(const Tensors& x) {
    const RandomState before(model_.device);
    auto [outputs, kept] = run_keep(watched_, x, model_.parameters);
    seen_.random = !(before == RandomState(model_.device));
    for (const auto& root : kept.roots) seen_.needs_grad.push_back(root.is_valid());
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

// Adds the parameters of the piece to the model's list; their positions.
std::vector<size_t> register_parameters(const Piece& piece, PreparedModel& model,
                                        std::unordered_map<void*, size_t>& known) {
  std::vector<size_t> positions;
  std::unordered_set<size_t> own;
  for (const auto& module : piece.modules) {
    for (const at::Tensor& parameter : module->parameters()) {
      if (!parameter.requires_grad()) continue;
      if (!parameter.is_leaf()) reject(piece.stage, "has a parameter that is not a leaf");
      auto [entry, fresh] = known.emplace(parameter.unsafeGetTensorImpl(), model.parameters.size());
      if (fresh) model.parameters.push_back(parameter);
      if (own.insert(entry->second).second) positions.push_back(entry->second);
    }
  }
  return positions;
}

bool same_bits(const Tensors& a, const Tensors& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), bitwise_equal);
}

// The traits of one piece on x; x becomes its output. False: the piece only returns views of x and
// should be joined to the one before.
bool prepare_piece(const Piece& piece, bool may_join, PreparedModel& model, Tensors& x,
                   std::vector<bool>& needs_grad, std::unordered_map<void*, size_t>& known) {
  PreparedStage prepared{piece.stage, {}, register_parameters(piece, model, known)};
  std::vector<at::Tensor> all_buffers;
  for (const auto& module : piece.modules) {
    for (const at::Tensor& buffer : module->buffers()) all_buffers.push_back(buffer);
  }
  ValueKeeper buffers(all_buffers);
  const RandomState random(model.device);
  Observer observer(piece, model, prepared.parameters, needs_grad);
  Observation seen;
  bool advances = false, fast_differs = false, repeats = true;
  buffers.save();
  try {
    const int64_t version = version_sum(all_buffers);
    seen = observer.keep(x);
    // Batch norm writes its statistics without a new version, so values are looked at, too.
    advances = version_sum(all_buffers) != version || buffers.changed();
    buffers.restore();
    random.restore();
    fast_differs = !same_bits(seen.outputs, observer.fast(x));
    buffers.restore();
    if (fast_differs) {  // without gradients, or each time
      random.restore();
      repeats = same_bits(seen.outputs, observer.keep(x).outputs);
      buffers.restore();
    }
  } catch (const c10::Error& error) {
    buffers.restore();
    reject(piece.stage, std::string("fails on its input: ") + error.what_without_backtrace());
  } catch (...) {
    buffers.restore();
    throw;
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
  // A changed input is a copy, which the output may be.
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

// Bytes of a copy that begins where any type of element may.
int64_t aligned_bytes(const at::Tensor& tensor) {
  return (static_cast<int64_t>(tensor.nbytes()) + 63) / 64 * 64;
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

}  // namespace

PreparedModel prepare(const std::vector<Stage>& stages, const Tensors& sample) {
  PreparedModel model;
  model.device = device_of(sample);
  if (stages.empty()) throw InputError("the model has no stage");
  const RandomScope random(model.device);
  std::unordered_map<void*, size_t> known;
  std::vector<bool> needs_grad;
  for (const at::Tensor& tensor : sample) needs_grad.push_back(tensor.requires_grad());
  Tensors x = sample;
  // What stood before the last piece, to go back to when the next one is joined to it.
  Piece last;
  Tensors before_x;
  std::vector<bool> before_needs_grad;
  for (const Stage& stage : stages) {
    Piece piece{stage, {}};
    if (stage.module) piece.modules.push_back(stage.module);
    Tensors input = x;
    std::vector<bool> input_needs_grad = needs_grad;
    if (!prepare_piece(piece, !model.stages.empty(), model, x, needs_grad, known)) {
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
  // A stage that was joined registered its buffers twice; shared modules do, too.
  std::unordered_set<void*> seen;
  std::erase_if(model.buffers, [&](const at::Tensor& buffer) {
    return !seen.insert(buffer.unsafeGetTensorImpl()).second;
  });
  // A stage that only reads a buffer must see it as it was, too; what nobody advances always is.
  for (PreparedStage& stage : model.stages) {
    std::erase_if(stage.traits.buffers, [&](const at::Tensor& buffer) {
      return !seen.contains(buffer.unsafeGetTensorImpl());
    });
  }
  return model;
}

ValueKeeper::ValueKeeper(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    tensors_.push_back(tensor);
    copies_.push_back(at::empty_like(tensor, tensor.options().requires_grad(false)));
  }
}

ValueKeeper::ValueKeeper(const std::vector<at::Tensor>& tensors, const at::Tensor& memory)
    : tensors_(tensors) {
  int64_t offset = 0;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor bytes = memory.narrow(0, offset, static_cast<int64_t>(tensor.nbytes()));
    copies_.push_back(bytes.view(tensor.scalar_type()).view(tensor.sizes()));
    offset += aligned_bytes(tensor);
  }
}

int64_t ValueKeeper::bytes_of(const std::vector<at::Tensor>& tensors) {
  int64_t sum = 0;
  for (const at::Tensor& tensor : tensors) sum += aligned_bytes(tensor);
  return sum;
}

ValueKeeper ValueKeeper::part(const std::vector<at::Tensor>& tensors) const {
  ValueKeeper result;
  for (const at::Tensor& tensor : tensors) {
    const auto known = std::find_if(tensors_.begin(), tensors_.end(),
                                    [&](const at::Tensor& t) { return t.is_same(tensor); });
    if (known == tensors_.end()) throw InternalError("a part of a keeper that does not keep it");
    result.tensors_.push_back(tensor);
    result.copies_.push_back(copies_[static_cast<size_t>(known - tensors_.begin())]);
  }
  return result;
}

namespace {

// Buffers are many and small: without the dispatcher a copy takes a tenth of the time.
bool plain_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.device().is_cpu() && b.device().is_cpu() && a.is_contiguous() && b.is_contiguous() &&
         a.scalar_type() == b.scalar_type() && a.nbytes() == b.nbytes();
}

}  // namespace

void ValueKeeper::save() {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (plain_memory(copies_[i], tensors_[i])) {
      std::memcpy(copies_[i].mutable_data_ptr(), tensors_[i].const_data_ptr(),
                  tensors_[i].nbytes());
    } else {
      copies_[i].copy_(tensors_[i]);
    }
  }
}

void ValueKeeper::restore() const {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    // variable_data(): the same memory, a version counter of its own.
    const at::Tensor values = tensors_[i].variable_data();
    if (plain_memory(values, copies_[i])) {
      std::memcpy(values.mutable_data_ptr(), copies_[i].const_data_ptr(), values.nbytes());
    } else {
      values.copy_(copies_[i]);
    }
  }
}

bool ValueKeeper::changed() const {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!bitwise_equal(tensors_[i], copies_[i])) return true;
  }
  return false;
}

bool bitwise_equal(const at::Tensor& a, const at::Tensor& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const at::Tensor x = a.detach().cpu().contiguous(), y = b.detach().cpu().contiguous();
  return x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

}  // namespace reprise::runtime
