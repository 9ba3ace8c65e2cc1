#include <algorithm>
#include <iterator>
#include <utility>

#include "runtime/rewrite/alternative.h"

namespace reprise::runtime::internal::rewrite {

using step::Bucket;
using step::Buckets;
using step::Filling;
using step::LeafGradient;
using step::Update;
using step::Updates;
using step::values_read;
using step::Works;

Rewriter::Rewriter(Recording recording, Works works, Updates updates, const Buckets& buckets,
                   Exactness allow, std::shared_ptr<const Sharers> ranks)
    : recording_(std::move(recording)),
      works_(std::move(works)),
      updates_(std::move(updates)),
      allow_(allow),
      ranks_(std::move(ranks)),
      readers_(recording_.values.size()),
      is_result_(recording_.values.size(), false),
      is_used_up_(recording_.values.size(), false),
      is_updated_(recording_.externals.size(), false),
      is_written_(recording_.externals.size(), false),
      stands_for_(recording_.calls.size(), -1) {
  for (const Call& call : recording_.calls) {
    for (const int32_t e : call.effects) is_written_[e] = true;
  }
  for (const StepValue& value : recording_.values) largest_ = std::max(largest_, value.bytes);
  for (size_t c = 0; c < recording_.calls.size(); ++c) {
    for (const int32_t value : values_read(works_.all[c])) {
      readers_[value].push_back(static_cast<int32_t>(c));
    }
  }
  const auto mark = [](const TensorRef& ref, std::vector<bool>& marks) {
    if (ref.memory == Memory::kValue) marks[ref.index] = true;
  };
  for (const TensorRef& ref : recording_.outputs) mark(ref, is_result_);
  for (const LeafGradient& leaf : recording_.gradients) mark(leaf.gradient, is_result_);
  for (const Update& update : updates_.each) {
    mark(recording_.gradients[update.leaf].gradient, is_used_up_);
    is_updated_[update.external] = true;
  }
  for (const Bucket& bucket : buckets.all) {
    for (const Filling& filling : bucket.fillings) {
      is_used_up_[filling.value] = true;
    }
  }
}

RewrittenStep Rewriter::take() {
  return {.recording = std::move(recording_),
          .works = std::move(works_),
          .updates = std::move(updates_),
          .alternatives = std::move(found_),
          .codecs = std::move(codecs_),
          .refusals = std::move(refusals_)};
}

int32_t Rewriter::last_forward_use(int32_t value, int32_t c) const {
  const auto& readers = readers_[value];
  if (readers.empty() || readers.back() != c) return -1;
  const int32_t last =
      readers.size() > 1 ? readers[readers.size() - 2] : recording_.values[value].maker;
  const bool is_forward = last >= 0 && recording_.calls[last].phase == Phase::kForward;
  return is_forward ? last : -1;
}

bool Rewriter::reads_written(const Work& work) const {
  for (const Argument& argument : work.arguments) {
    if (argument.shape_only) continue;
    for (const TensorRef& ref : argument.tensors) {
      if (ref.memory == Memory::kExternal && is_written_[ref.index]) return true;
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

void Rewriter::add(CallRealization realization) {
  if (realization.exactness > allow_) return;
  // Choices are disjoint. The first realization that stands for a call decides which calls its
  // choice has.
  int32_t other = -1;
  for (const int32_t c : realization.calls) {
    other = std::max(other, stands_for_[c]);
  }
  if (other >= 0 && !widen(realization, found_.realizations[other].calls)) {
    return;
  }
  std::vector<CallRealization> together;
  for (const CallRealization& one : found_.realizations) {
    if (auto two = both(one, realization)) together.push_back(*std::move(two));
  }
  for (const int32_t c : realization.calls) {
    int32_t& first = stands_for_[c];
    if (first < 0) first = static_cast<int32_t>(found_.realizations.size());
  }
  found_.realizations.push_back(std::move(realization));
  std::ranges::move(together, std::back_inserter(found_.realizations));
}

void Rewriter::add_variant(size_t realization, size_t piece, int32_t work, VariantName name) {
  CallRealization::Piece& one = found_.realizations[realization].pieces[piece];
  one.works.push_back(work);
  one.names.push_back(std::move(name));
}

namespace {

bool contains(const std::vector<int32_t>& list, int32_t c) {
  return std::find(list.begin(), list.end(), c) != list.end();
}

}  // namespace

bool Rewriter::widen(CallRealization& realization, const std::vector<int32_t>& calls) const {
  if (!std::ranges::all_of(realization.calls, [&](int32_t c) { return contains(calls, c); })) {
    return false;
  }
  if (realization.changed.empty()) {
    realization.changed = realization.calls;
    for (CallRealization::Piece& piece : realization.pieces) piece.of = realization.calls.front();
  }
  for (const int32_t c : calls) {
    if (contains(realization.calls, c)) continue;
    if (recording_.calls[c].random) return false;
    realization.pieces.push_back({.after = c, .as_it_is = true});
  }
  realization.calls = calls;
  return true;
}

std::optional<CallRealization> Rewriter::both(const CallRealization& a,
                                              const CallRealization& b) const {
  if (a.calls != b.calls || a.changed.empty() || b.changed.empty()) return std::nullopt;
  if (std::ranges::any_of(a.changed, [&](int32_t c) { return contains(b.changed, c); })) {
    return std::nullopt;
  }
  // A plan that rounds is compared with plain training, an approximate one with its bound.
  const bool is_mixed = a.exactness != b.exactness && a.exactness != Exactness::kBitwise &&
                        b.exactness != Exactness::kBitwise;
  if (is_mixed) return std::nullopt;
  CallRealization two = a;
  two.name += "+" + b.name;
  two.exactness = std::max(a.exactness, b.exactness);
  std::ranges::copy(b.changed, std::back_inserter(two.changed));
  std::erase_if(two.pieces, [&](const CallRealization::Piece& piece) {
    return piece.as_it_is && contains(b.changed, piece.after);
  });
  std::ranges::copy_if(b.pieces, std::back_inserter(two.pieces),
                       [](const CallRealization::Piece& piece) { return !piece.as_it_is; });
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
             recording.values[ref.index].bytes;
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

}  // namespace reprise::runtime::internal::rewrite
