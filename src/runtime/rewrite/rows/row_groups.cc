#include "runtime/rewrite/rows/row_groups.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

namespace reprise::runtime::internal::rewrite {

namespace {

// More calls than in any perceptron would only cost the planner's time.
constexpr size_t kMostCalls = 64;

int64_t count_of(const TensorRef& ref) {
  const std::vector<int64_t>& sizes = ref.geometry.sizes;
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

// Grows one group from the product that makes the first hidden value.
class Growth {
 public:
  Growth(const Rewriter& rewriter, RowCalls& row_calls, const std::vector<bool>& is_taken,
         const std::vector<int32_t>& overwritten_by, int64_t rows)
      : rewriter_(rewriter),
        recording_(rewriter.recording()),
        row_calls_(row_calls),
        is_taken_(is_taken),
        overwritten_by_(overwritten_by),
        rows_(rows) {}

  // Returns the group that begins with a product, if there is one. There is none if the results of
  // the product must exist as a whole.
  std::optional<RowGroup> from(int32_t first) {
    const RowCall* product = row_call(first);
    if (product == nullptr || product->kind != RowKind::kProduct) return std::nullopt;
    width_ = product->width();
    if (!hide(product->result.index)) return std::nullopt;
    RowGroup group{.rows = rows_};
    bool narrows = false;
    for (const int32_t c : calls_) {
      const RowCall& call = *row_call(c);
      (phase(c) == Phase::kForward ? group.forward : group.backward).push_back(call);
      if (call.kind != RowKind::kProduct || phase(c) != Phase::kForward) continue;
      const bool is_hidden = hidden_.contains(call.result.index);
      const int64_t other = is_hidden ? call.operands[0].geometry.sizes[1] : call.width();
      if (other >= width_) return std::nullopt;
      narrows = narrows || !is_hidden;
    }
    if (!narrows || group.backward.empty() || calls_.size() > kMostCalls) return std::nullopt;
    find_again(group);
    if (!find_places(group)) return std::nullopt;
    return group;
  }

 private:
  using Calls = std::set<int32_t>;

  Phase phase(int32_t c) const { return recording_.calls[c].phase; }
  const StepValue& value(int32_t v) const { return recording_.values[v]; }

  // Returns null if the call is no row call, or belongs to another group.
  const RowCall* row_call(int32_t c) {
    const auto [known, fresh] = known_.try_emplace(c);
    if (fresh && !is_taken_[c] && !rewriter_.reads_written(rewriter_.work(c))) {
      known->second = row_calls_.at(c, rows_);
    }
    return known->second ? &*known->second : nullptr;
  }

  // Returns whether the call reads all of the value, as rows only, and as what it was made.
  static bool reads_rows(const RowCall& call, const TensorRef& made) {
    bool as_rows = true;
    call.for_each_operand([&](const TensorRef& ref, bool has_rows) {
      if (ref.memory == Memory::kValue && ref.index == made.index) {
        as_rows = as_rows && has_rows && ref.geometry.offset == 0 &&
                  count_of(ref) == count_of(made) && ref.geometry.dtype == made.geometry.dtype;
      }
    });
    return as_rows;
  }

  // Takes the value, its maker and its readers into the group, and what has to follow. Changes
  // nothing and returns false if that is not possible.
  bool hide(int32_t v) {
    if (hidden_.contains(v)) return true;
    const std::set<int32_t> hidden_before = hidden_;
    const Calls calls_before = calls_;
    if (hide_all(v)) return true;
    hidden_ = hidden_before;
    calls_ = calls_before;
    return false;
  }

  bool hide_all(int32_t v) {
    const int32_t maker = value(v).maker;
    const RowCall* call = maker < 0 ? nullptr : row_call(maker);
    if (call == nullptr || !call->has_rows() || call->width() != width_ ||
        call->result.index != v || rewriter_.is_result(v)) {
      return false;
    }
    hidden_.insert(v);
    for (const int32_t reader : rewriter_.readers(v)) {
      const RowCall* next = row_call(reader);
      if (next == nullptr || !reads_rows(*next, call->result)) return false;
      if (phase(reader) == Phase::kForward && !next->has_rows()) return false;
    }
    if (!join(maker)) return false;
    for (const int32_t reader : rewriter_.readers(v)) {
      if (!join(reader)) return false;
    }
    return true;
  }

  // Takes a call into the group. What an element-wise call of the forward makes is hidden, too.
  // The value of any other call is hidden where that is possible.
  bool join(int32_t c) {
    if (!calls_.insert(c).second) return true;
    const RowCall& call = *row_call(c);
    if (call.kind == RowKind::kElements) {
      const StepValue& made = value(call.result.index);
      if (call.width() != width_ || (made.previous >= 0 && !hidden_.contains(made.previous))) {
        return false;
      }
      const bool is_hidden = hide(call.result.index);
      if (!is_hidden && phase(c) == Phase::kForward) return false;
    }
    call.for_each_operand([&](const TensorRef& ref, bool has_rows) {
      if (ref.memory == Memory::kValue && has_rows && derives_from_product(ref.index)) {
        hide(ref.index);
      }
    });
    return true;
  }

  // Returns whether a value of the hidden width is made by a product, perhaps by element-wise calls
  // from one. A mask is not.
  bool derives_from_product(int32_t v) {
    if (hidden_.contains(v)) return true;
    const int32_t maker = value(v).maker;
    const RowCall* call = maker < 0 ? nullptr : row_call(maker);
    if (call == nullptr || !call->has_rows() || call->width() != width_) return false;
    if (call->kind == RowKind::kProduct) return true;
    bool derives = false;
    call->for_each_operand([&](const TensorRef& ref, bool has_rows) {
      derives = derives || (ref.memory == Memory::kValue && has_rows && ref.index != v &&
                            derives_from_product(ref.index));
    });
    return derives;
  }

  // The backward makes again what it reads of hidden values of the forward.
  void find_again(RowGroup& group) const {
    std::set<int32_t> wanted;
    for (const RowCall& call : group.backward) {
      call.for_each_operand([&](const TensorRef& ref, bool) {
        if (ref.memory == Memory::kValue) wanted.insert(ref.index);
      });
    }
    for (size_t c = group.forward.size(); c-- > 0;) {
      const RowCall& call = group.forward[c];
      if (!wanted.contains(call.result.index) || !hidden_.contains(call.result.index)) continue;
      call.for_each_operand([&](const TensorRef& ref, bool) {
        if (ref.memory == Memory::kValue) wanted.insert(ref.index);
      });
      group.again.push_back(call);
    }
    std::ranges::reverse(group.again);
  }

  bool find_places(RowGroup& group) const {
    std::vector<RowCall> in_backward = group.again;
    in_backward.insert(in_backward.end(), group.backward.begin(), group.backward.end());
    for (const RowCall& call : group.forward) {
      if (!hidden_.contains(call.result.index)) group.forward_after = call.call;
    }
    group.backward_after = group.backward.back().call;
    return find_place(group.forward, group.forward_after, group.forward_outputs) &&
           find_place(in_backward, group.backward_after, group.backward_outputs);
  }

  // Finds the call behind which these calls can run together: `after`, or an earlier one if
  // something else needs what they make. Says what they make for others. Returns false if there is
  // no such call.
  bool find_place(const std::vector<RowCall>& calls, int32_t& after,
                  std::vector<int32_t>& outputs) const {
    const Phase phase_of_all = phase(after);
    int32_t ready = -1, wanted = after + 1;
    const auto use = [&](int32_t v) { wanted = std::min(wanted, overwritten_by_[v]); };
    for (const RowCall& call : calls) {
      const int32_t made = call.result.index;
      if (!hidden_.contains(made)) {
        outputs.push_back(made);
        use(made);
        for (const int32_t reader : rewriter_.readers(made)) {
          if (!calls_.contains(reader)) wanted = std::min(wanted, reader);
        }
      }
      call.for_each_operand([&](const TensorRef& ref, bool) {
        if (ref.memory != Memory::kValue || hidden_.contains(ref.index)) return;
        use(ref.index);
        const bool is_inside = calls_.contains(value(ref.index).maker) &&
                               phase(value(ref.index).maker) == phase_of_all;
        if (!is_inside) ready = std::max(ready, value(ref.index).maker);
      });
    }
    after = wanted - 1;
    return after >= std::max(ready, 0) && phase(after) == phase_of_all;
  }

  const Rewriter& rewriter_;
  const Recording& recording_;
  RowCalls& row_calls_;
  const std::vector<bool>& is_taken_;
  const std::vector<int32_t>& overwritten_by_;
  const int64_t rows_;
  int64_t width_ = 0;
  std::map<int32_t, std::optional<RowCall>> known_;  // by call
  std::set<int32_t> hidden_;                         // values
  Calls calls_;
};

}  // namespace

std::vector<int32_t> RowGroup::calls() const {
  std::vector<int32_t> all;
  for (const auto* list : {&forward, &backward}) {
    for (const RowCall& call : *list) all.push_back(call.call);
  }
  return all;
}

std::vector<RowGroup> find_row_groups(const Rewriter& rewriter) {
  const Recording& recording = rewriter.recording();
  std::vector<RowGroup> groups;
  if (!recording.device.is_cpu()) return groups;
  RowCalls row_calls(recording);
  std::vector<int32_t> overwritten_by(recording.values.size(),
                                      static_cast<int32_t>(recording.calls.size()));
  for (const StepValue& value : recording.values) {
    if (value.previous >= 0) overwritten_by[value.previous] = value.maker;
  }
  std::vector<bool> is_taken(recording.calls.size(), false);
  for (size_t c = 0; c < recording.calls.size(); ++c) {
    const Call& call = recording.calls[c];
    const auto position = static_cast<int32_t>(c);
    const int64_t rows = row_calls.rows_of_product(position);
    if (is_taken[c] || call.phase != Phase::kForward || rows < 2) continue;
    const TensorRef& made = call.outputs[0][0];
    if (made.memory != Memory::kValue ||
        !rewriter.is_worthwhile(recording.values[made.index].bytes)) {
      continue;
    }
    std::optional<RowGroup> group =
        Growth(rewriter, row_calls, is_taken, overwritten_by, rows).from(position);
    if (!group) continue;
    for (const int32_t one : group->calls()) is_taken[one] = true;
    groups.push_back(*std::move(group));
  }
  return groups;
}

}  // namespace reprise::runtime::internal::rewrite
