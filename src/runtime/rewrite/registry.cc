#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "reprise/model/errors.h"
#include "runtime/rewrite/alternative.h"

namespace reprise::runtime {
namespace {

struct Row {
  const char* name;
  const char* description;
  void (*find)(Rewriter&);  // in a captured step
  Exactness exactness = Exactness::kBitwise;
  bool in_chain = false;  // saved/keep_less.h
};

// One row an alternative; its file is called like its function.
constexpr std::array kRows = {
    // Before those that would take some of its calls.
    Row{"linear-cross-entropy-by-rows",
        "a linear layer, cross-entropy and their backwards some rows at a time",
        linear_cross_entropy, Exactness::kRounding},
    Row{"batch-norm-by-samples",
        "a convolution, batch norm, activation, max pooling and their backwards some samples at a "
        "time, by the statistics of the whole batch, the convolution four times",
        batch_norm_by_samples, Exactness::kRounding},
    Row{"in-place", "element-wise operations and soft-max write over an operand that ends there",
        in_place},
    Row{"two-call-convolution",
        "the backward of a convolution as two calls: gradients of the weights, then of the input",
        two_call_convolution},
    // Behind the one whose second call it varies.
    Row{"convolution-by-samples",
        "a convolution, and the gradient of its input, some samples at a time",
        convolution_by_samples},
    Row{"cross-entropy-by-rows",
        "the backward of log-soft-max and negative log likelihood as one, some rows at a time",
        cross_entropy_by_rows},
    Row{"two-step-batch-norm",
        "a batch norm as two operations: the statistics of the batch, once, and what normalises by "
        "them",
        two_step_batch_norm},
    Row{"batch-norm-by-channels",
        "the backward of a batch norm some channels at a time, over one of its operands",
        batch_norm_by_channels},
    Row{"group-norm-by-groups",
        "the backward of a group norm some groups at a time, over one of its operands",
        group_norm_by_groups},
    Row{"backward-by-result",
        "the backward of hard tanh (ReLU6) or leaky ReLU looks at the result in place of the "
        "input, "
        "or of a copy of it, which is then not made",
        backward_by_result},
    Row{"one-bit-mask",
        "of an activation with a kink, or of dropout's factors, one bit an element is kept for the "
        "backward",
        one_bit_mask, Exactness::kBitwise, /*in_chain=*/true},
    Row{"small-indices",
        "max pooling keeps the places of its maxima in two or four bytes, not eight", small_indices,
        Exactness::kBitwise, /*in_chain=*/true},
    // Behind those whose realizations they vary.
    Row{"late-gradient",
        "a gradient that is larger than what it is made from is made right before it is read",
        late_gradient},
    Row{"copied-part",
        "of a gradient of which only a part is read from now on that part is copied, the rest "
        "freed",
        copied_part},
    // A captured step runs single operations again, where it pays.
    Row{"rebuild",
        "results of activations and norms are made again from what a stage keeps anyway, at the "
        "backward that reads them",
        nullptr, Exactness::kBitwise, /*in_chain=*/true},
};

bool has(const std::vector<std::string>& names, const char* name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

std::vector<AlternativeInfo> alternatives() {
  std::vector<AlternativeInfo> all;
  for (const Row& row : kRows) {
    all.push_back({row.name, row.description, row.exactness, row.find != nullptr, row.in_chain});
  }
  return all;
}

namespace {

const Row& row_of(const std::string& name) {
  const auto row =
      std::find_if(kRows.begin(), kRows.end(), [&](const Row& one) { return one.name == name; });
  if (row != kRows.end()) return *row;
  std::vector<std::string> known;
  for (const Row& one : kRows) known.emplace_back(one.name);
  throw InputError(
      fmt::format("there is no alternative \"{}\"; there are {}", name, fmt::join(known, ", ")));
}

void validate_names(const AlternativeOptions& options) {
  for (const std::string& name : options.without) row_of(name);
  for (const std::string& name : options.only) {
    const Row& row = row_of(name);
    if (row.exactness <= options.allow) continue;
    throw InputError(
        fmt::format("the alternative \"{}\" is of exactness \"{}\", which has to be allowed", name,
                    to_string(row.exactness)));
  }
}

}  // namespace

void validate(const AlternativeOptions& options) {
  validate_names(options);
  const bool some = std::any_of(options.only.begin(), options.only.end(),
                                [](const std::string& n) { return row_of(n).find != nullptr; });
  if (some || options.only.empty()) return;
  throw InputError(
      fmt::format("the alternative \"{}\" is for stages of a chain, not for captured "
                  "steps (graph mode)",
                  options.only.front()));
}

void validate_for_chain(const AlternativeOptions& options) {
  validate_names(options);
  for (const std::string& name : options.only) {
    if (row_of(name).in_chain) continue;
    throw InputError(fmt::format(
        "the alternative \"{}\" is for captured steps (graph mode), not for stages of a chain",
        name));
  }
}

Alternatives find_alternatives(Recording& recording, Works& works, const Updates& updates,
                               const AlternativeOptions& options) {
  validate(options);
  Rewriter rewriter(recording, works, updates);
  for (const Row& row : kRows) {
    const bool wanted = options.only.empty() || has(options.only, row.name);
    const bool allowed = row.exactness <= options.allow && !has(options.without, row.name);
    if (row.find != nullptr && wanted && allowed) row.find(rewriter);
  }
  return rewriter.take();
}

Rewriter::Rewriter(Recording& recording, Works& works, const Updates& updates)
    : recording_(recording),
      works_(works),
      readers_(recording.values.size()),
      is_result_(recording.values.size(), false),
      is_used_up_(recording.values.size(), false),
      is_updated_(recording.externals.size(), false),
      is_written_(recording.externals.size(), false),
      stands_for_(recording.calls.size(), -1) {
  for (const Call& call : recording.calls) {
    for (const int32_t e : call.effects) is_written_[static_cast<size_t>(e)] = true;
  }
  for (const StepValue& value : recording.values) largest_ = std::max(largest_, value.bytes);
  for (size_t c = 0; c < recording.calls.size(); ++c) {
    for (const int32_t value : values_read(works.all[c])) {
      readers_[static_cast<size_t>(value)].push_back(static_cast<int32_t>(c));
    }
  }
  const auto mark = [](const TensorRef& ref, std::vector<bool>& marks) {
    if (ref.memory == Memory::kValue) marks[static_cast<size_t>(ref.index)] = true;
  };
  for (const TensorRef& ref : recording.outputs) mark(ref, is_result_);
  for (const LeafGradient& leaf : recording.gradients) mark(leaf.gradient, is_result_);
  for (const Update& update : updates.each) {
    mark(recording.gradients[update.leaf].gradient, is_used_up_);
    is_updated_[static_cast<size_t>(update.external)] = true;
  }
}

int32_t Rewriter::last_forward_use(int32_t value, int32_t c) const {
  const auto& readers = readers_[static_cast<size_t>(value)];
  if (readers.empty() || readers.back() != c) return -1;
  const int32_t last = readers.size() > 1 ? readers[readers.size() - 2]
                                          : recording_.values[static_cast<size_t>(value)].maker;
  const bool is_forward =
      last >= 0 && recording_.calls[static_cast<size_t>(last)].phase == Phase::kForward;
  return is_forward ? last : -1;
}

bool Rewriter::reads_written(const Work& work) const {
  for (const Argument& argument : work.arguments) {
    if (argument.shape_only) continue;
    for (const TensorRef& ref : argument.tensors) {
      if (ref.memory == Memory::kExternal && is_written_[static_cast<size_t>(ref.index)])
        return true;
    }
  }
  return false;
}

int32_t Rewriter::add_value(int64_t bytes) {
  recording_.values.push_back({.bytes = bytes});
  readers_.emplace_back();
  is_result_.push_back(false);
  is_used_up_.push_back(false);
  return static_cast<int32_t>(recording_.values.size()) - 1;
}

int32_t Rewriter::add_work(Work work) {
  works_.all.push_back(std::move(work));
  return static_cast<int32_t>(works_.all.size()) - 1;
}

void Rewriter::add(Realization realization) {
  // Choices are disjoint: those of the first row that stands for a call have it.
  int32_t other = -1;
  for (const int32_t c : realization.calls) {
    other = std::max(other, stands_for_[static_cast<size_t>(c)]);
  }
  if (other >= 0 && !widen(realization, found_.realizations[static_cast<size_t>(other)].calls)) {
    return;
  }
  std::vector<Realization> together;
  for (const Realization& one : found_.realizations) {
    if (auto two = both(one, realization)) together.push_back(*std::move(two));
  }
  for (const int32_t c : realization.calls) {
    int32_t& first = stands_for_[static_cast<size_t>(c)];
    if (first < 0) first = static_cast<int32_t>(found_.realizations.size());
  }
  found_.realizations.push_back(std::move(realization));
  std::ranges::move(together, std::back_inserter(found_.realizations));
}

void Rewriter::add_variant(size_t realization, size_t piece, int32_t work, std::string name) {
  Realization::Piece& one = found_.realizations[realization].pieces[piece];
  one.works.push_back(work);
  one.names.push_back(std::move(name));
}

namespace {

bool contains(const std::vector<int32_t>& list, int32_t c) {
  return std::find(list.begin(), list.end(), c) != list.end();
}

}  // namespace

bool Rewriter::widen(Realization& realization, const std::vector<int32_t>& calls) const {
  if (!std::ranges::all_of(realization.calls, [&](int32_t c) { return contains(calls, c); })) {
    return false;
  }
  if (realization.changed.empty()) {
    realization.changed = realization.calls;
    for (Realization::Piece& piece : realization.pieces) piece.of = realization.calls.front();
  }
  for (const int32_t c : calls) {
    if (contains(realization.calls, c)) continue;
    if (recording_.calls[static_cast<size_t>(c)].random) return false;
    realization.pieces.push_back({.after = c, .as_it_is = true});
  }
  realization.calls = calls;
  return true;
}

std::optional<Realization> Rewriter::both(const Realization& a, const Realization& b) const {
  if (a.calls != b.calls || a.changed.empty() || b.changed.empty()) return std::nullopt;
  if (std::ranges::any_of(a.changed, [&](int32_t c) { return contains(b.changed, c); })) {
    return std::nullopt;
  }
  Realization two = a;
  two.name += "+" + b.name;
  two.exactness = std::max(a.exactness, b.exactness);
  std::ranges::copy(b.changed, std::back_inserter(two.changed));
  std::erase_if(two.pieces, [&](const Realization::Piece& piece) {
    return piece.as_it_is && contains(b.changed, piece.after);
  });
  std::ranges::copy_if(b.pieces, std::back_inserter(two.pieces),
                       [](const Realization::Piece& piece) { return !piece.as_it_is; });
  return two;
}

bool is_in_rows(const Geometry& geometry) {
  int64_t stride = 1;
  for (size_t d = geometry.sizes.size(); d-- > 0;) {
    if (geometry.sizes[d] != 1 && geometry.strides[d] != stride) return false;
    stride *= geometry.sizes[d];
  }
  return true;
}

bool fills_storage(const TensorRef& ref, const Recording& recording) {
  return is_in_rows(ref.geometry) && covers_storage(ref, recording);
}

bool covers_storage(const TensorRef& ref, const Recording& recording) {
  int64_t elements = 1;
  for (const int64_t size : ref.geometry.sizes) elements *= size;
  return ref.memory == Memory::kValue && ref.geometry.offset == 0 &&
         elements * static_cast<int64_t>(c10::elementSize(ref.geometry.dtype)) ==
             recording.values[static_cast<size_t>(ref.index)].bytes;
}

const Argument* argument_of(const Call& call, const char* name) {
  const auto& formals = call.op.schema().arguments();
  for (size_t a = 0; a < formals.size() && a < call.arguments.size(); ++a) {
    if (formals[a].name() == name) return &call.arguments[a];
  }
  return nullptr;
}

Kernel kernel_of(const c10::OperatorHandle& op) {
  return [op](std::vector<c10::IValue>& stack) { op.callBoxed(stack); };
}

}  // namespace reprise::runtime
