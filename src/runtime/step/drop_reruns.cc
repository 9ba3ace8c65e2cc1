#include "runtime/step/drop_reruns.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/step/host_reads.h"
#include "runtime/step/same_constant.h"
#include "runtime/step/storage_bytes.h"

namespace reprise::runtime::internal::step {
namespace {

// Calls `visit` for each reference to memory in a call, which it may change.
template <class Visit>
void for_each_ref(Call& call, Visit&& visit) {
  for (Argument& argument : call.arguments) {
    for (TensorRef& ref : argument.tensors) visit(ref);
  }
  for (auto& list : call.outputs) {
    for (TensorRef& ref : list) visit(ref);
  }
}

// Literals of one content are one memory for whoever reads them.
bool same_literal(const External& a, const External& b) {
  return a.is_constant && b.is_constant &&
         a.tensor.storage().nbytes() == b.tensor.storage().nbytes() &&
         copy_to_host(a.tensor.storage()) == copy_to_host(b.tensor.storage());
}

// A Search pairs calls with those whose values they make again.
class Search {
 public:
  Search(const Recording& recording, const std::function<bool(size_t, size_t)>& draws_alike)
      : recording_(recording),
        draws_alike_(draws_alike),
        made_(recording.calls.size()),
        writes_(recording.externals.size()) {
    for (size_t v = 0; v < recording.values.size(); ++v) {
      const StepValue& value = recording.values[v];
      if (value.maker >= 0) made_[value.maker].push_back(static_cast<int32_t>(v));
    }
    for (size_t c = 0; c < recording.calls.size(); ++c) {
      for (const int32_t e : recording.calls[c].effects) writes_[e].push_back(c);
      if (recording.calls[c].phase == Phase::kForward) alike_[key_of(c, {})].push_back(c);
    }
  }

  // Finds all pairs. Those whose second call has to stay are none.
  void run() {
    do {
      find();
    } while (refuse());
  }

  const std::map<size_t, size_t>& pairs() const { return pairs_; }    // by the second call
  const std::map<int32_t, int32_t>& values() const { return values_; }  // by the value made again

 private:
  using Key = std::pair<std::string, std::vector<int32_t>>;

  int32_t first_of(int32_t value) const {
    const auto found = values_.find(value);
    return found == values_.end() ? value : found->second;
  }

  // Returns what equal calls have in common, and hardly any others. Literals have no positions here.
  Key key_of(size_t c, const std::map<int32_t, int32_t>& values) const {
    const Call& call = recording_.calls[c];
    Key key{call.name(), {}};
    for (const Argument& argument : call.arguments) {
      for (const TensorRef& ref : argument.tensors) {
        const bool literal = ref.memory == Memory::kExternal &&
                             recording_.externals[ref.index].is_constant;
        const auto other = values.find(ref.index);
        const bool again = ref.memory == Memory::kValue && other != values.end();
        key.second.push_back(static_cast<int32_t>(ref.memory));
        key.second.push_back(literal ? -1 : again ? other->second : ref.index);
      }
    }
    return key;
  }

  void find() {
    pairs_.clear();
    values_.clear();
    size_t last = 0;
    for (size_t c = 0; c < recording_.calls.size(); ++c) {
      const Call& call = recording_.calls[c];
      if (call.phase != Phase::kBackward || !call.effects.empty() || made_[c].empty() ||
          is_host_read(call) || refused_.contains(c)) {
        continue;
      }
      const auto found = alike_.find(key_of(c, values_));
      if (found == alike_.end()) continue;
      // A re-run has its calls in the order of the first run.
      const auto& firsts = found->second;
      const auto next = std::upper_bound(firsts.begin(), firsts.end(), last);
      std::vector<size_t> order(next, firsts.end());
      order.insert(order.end(), firsts.begin(), next);
      for (const size_t first : order) {
        if (!makes_again(first, c)) continue;
        pairs_.emplace(c, first);
        for (size_t v = 0; v < made_[c].size(); ++v) {
          values_.emplace(made_[c][v], made_[first][v]);
        }
        last = first;
        break;
      }
    }
  }

  bool makes_again(size_t first, size_t again) const {
    const Call &a = recording_.calls[first], &b = recording_.calls[again];
    if (!a.effects.empty() || a.random != b.random || a.op.operator_name() != b.op.operator_name())
      return false;
    if (a.arguments.size() != b.arguments.size() || a.outputs.size() != b.outputs.size() ||
        a.results.size() != b.results.size() || made_[first].size() != made_[again].size()) {
      return false;
    }
    for (size_t i = 0; i < a.arguments.size(); ++i) {
      const Argument &x = a.arguments[i], &y = b.arguments[i];
      if (x.kind != y.kind || !is_comparable(x.constant) || !is_comparable(y.constant) ||
          !same_constant(x.constant, y.constant) ||
          !std::equal(x.tensors.begin(), x.tensors.end(), y.tensors.begin(), y.tensors.end(),
                      [&](const TensorRef& p, const TensorRef& q) {
                        return same_operand(p, q, first, again);
                      })) {
        return false;
      }
    }
    for (size_t r = 0; r < a.results.size(); ++r) {
      if (!same_constant(a.results[r], b.results[r])) return false;
    }
    for (size_t v = 0; v < made_[first].size(); ++v) {
      const StepValue &x = recording_.values[made_[first][v]],
                      &y = recording_.values[made_[again][v]];
      if (x.bytes != y.bytes || x.device != y.device) return false;
      if ((x.previous < 0) != (y.previous < 0)) return false;
      if (x.previous >= 0 && first_of(y.previous) != x.previous) return false;
    }
    for (size_t r = 0; r < a.outputs.size(); ++r) {
      if (!std::equal(a.outputs[r].begin(), a.outputs[r].end(), b.outputs[r].begin(),
                      b.outputs[r].end(), [&](const TensorRef& p, const TensorRef& q) {
                        return same_result(p, q, first, again);
                      })) {
        return false;
      }
    }
    return !a.random || draws_alike_(first, again);
  }

  bool same_operand(const TensorRef& p, const TensorRef& q, size_t first, size_t again) const {
    if (p.memory != q.memory || !(p.geometry == q.geometry)) return false;
    if (p.memory == Memory::kValue) return first_of(q.index) == p.index;
    if (p.memory == Memory::kNone) return true;
    if (p.index != q.index) {
      return same_literal(recording_.externals[p.index], recording_.externals[q.index]);
    }
    // Nothing has written it in between.
    const std::vector<size_t>& writes = writes_[p.index];
    const auto next = std::lower_bound(writes.begin(), writes.end(), first);
    return next == writes.end() || *next > again;
  }

  bool same_result(const TensorRef& p, const TensorRef& q, size_t first, size_t again) const {
    if (p.memory != q.memory || !(p.geometry == q.geometry)) return false;
    if (p.memory != Memory::kValue) return p.index == q.index;
    const auto& made = made_[again];
    const auto position = std::find(made.begin(), made.end(), q.index);
    if (position == made.end()) return first_of(q.index) == p.index;
    return made_[first][static_cast<size_t>(position - made.begin())] == p.index;
  }

  // Refuses the pairs whose values something needs for itself. Returns whether there are such.
  bool refuse() {
    std::set<int32_t> overwritten;  // values that have a later version
    std::set<size_t> refused;
    const auto stays = [&](int32_t value) {
      if (values_.contains(value)) refused.insert(recording_.values[value].maker);
    };
    for (const StepValue& value : recording_.values) {
      if (value.previous < 0) continue;
      overwritten.insert(value.previous);
      if (value.maker < 0 || !pairs_.contains(value.maker)) stays(value.previous);
    }
    for (size_t c = 0; c < recording_.calls.size(); ++c) {
      if (pairs_.contains(c)) continue;
      for (const Argument& argument : recording_.calls[c].arguments) {
        for (const TensorRef& ref : argument.tensors) {
          if (ref.memory != Memory::kValue || argument.shape_only) continue;
          if (overwritten.contains(first_of(ref.index))) stays(ref.index);
        }
      }
    }
    for (const TensorRef& ref : recording_.outputs) {
      if (ref.memory == Memory::kValue) stays(ref.index);
    }
    for (const LeafGradient& leaf : recording_.gradients) {
      if (leaf.gradient.memory == Memory::kValue) stays(leaf.gradient.index);
    }
    refused_.insert(refused.begin(), refused.end());
    return !refused.empty();
  }

  const Recording& recording_;
  const std::function<bool(size_t, size_t)>& draws_alike_;
  std::vector<std::vector<int32_t>> made_;  // by call: its values
  std::vector<std::vector<size_t>> writes_;  // by external: the calls that write it
  std::map<Key, std::vector<size_t>> alike_;  // calls of the forward pass
  std::set<size_t> refused_;
  std::map<size_t, size_t> pairs_;
  std::map<int32_t, int32_t> values_;
};

}  // namespace

std::set<size_t> drop_reruns(Recording& recording,
                             const std::function<bool(size_t first, size_t again)>& draws_alike) {
  Search search(recording, draws_alike);
  search.run();
  const auto& pairs = search.pairs();
  std::set<size_t> dropped;
  for (const auto& [again, first] : pairs) dropped.insert(again);
  if (dropped.empty()) return dropped;
  // Values and calls get their positions among those that stay.
  std::vector<int32_t> value_at(recording.values.size(), -1);
  std::vector<int32_t> call_at(recording.calls.size(), -1);
  int32_t calls = 0;
  for (size_t c = 0; c < call_at.size(); ++c) call_at[c] = pairs.contains(c) ? -1 : calls++;
  std::vector<StepValue> values;
  for (size_t v = 0; v < value_at.size(); ++v) {
    const auto again = search.values().find(static_cast<int32_t>(v));
    if (again != search.values().end()) {
      value_at[v] = value_at[again->second];
      continue;
    }
    StepValue value = recording.values[v];
    if (value.maker >= 0) value.maker = call_at[value.maker];
    if (value.previous >= 0) value.previous = value_at[value.previous];
    value_at[v] = static_cast<int32_t>(values.size());
    values.push_back(value);
  }
  const auto move = [&](TensorRef& ref) {
    if (ref.memory == Memory::kValue) ref.index = value_at[ref.index];
  };
  std::vector<Call> kept;
  std::vector<LeftOut> left_out;
  auto next = recording.left_out.begin();
  const auto leave_out_before = [&](size_t call) {
    for (; next != recording.left_out.end() && next->before <= call; ++next) {
      next->before = kept.size();
      for_each_ref(next->call, move);
      left_out.push_back(std::move(*next));
    }
  };
  for (size_t c = 0; c < recording.calls.size(); ++c) {
    leave_out_before(c);
    Call& call = recording.calls[c];
    const auto pair = pairs.find(c);
    if (pair == pairs.end()) {
      for_each_ref(call, move);
      kept.push_back(std::move(call));
      continue;
    }
    const int32_t first = call_at[pair->second];
    // Its literals are those of the first call.
    for (size_t a = 0; a < call.arguments.size(); ++a) {
      auto& tensors = call.arguments[a].tensors;
      for (size_t t = 0; t < tensors.size(); ++t) {
        if (tensors[t].memory != Memory::kExternal) continue;
        tensors[t].index = kept[first].arguments[a].tensors[t].index;
      }
    }
    for_each_ref(call, move);
    left_out.push_back(
        {.before = kept.size(), .call = std::move(call), .failed = false, .same_as = first});
  }
  leave_out_before(recording.calls.size());
  recording.calls = std::move(kept);
  recording.left_out = std::move(left_out);
  recording.values = std::move(values);
  for (TensorRef& ref : recording.outputs) move(ref);
  for (LeafGradient& leaf : recording.gradients) move(leaf.gradient);
  return dropped;
}

}  // namespace reprise::runtime::internal::step
