#include "runtime/graph/lower.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "runtime/graph/external_values.h"
#include "runtime/graph/follow_ups.h"
#include "runtime/graph/words.h"

namespace reprise::runtime::internal::graph {

using rewrite::Alternatives;
using rewrite::VariantName;
using step::add_once;
using step::externals_of;
using step::values_read;
using step::values_written;

namespace {

class Lowering {
 public:
  Lowering(const RewrittenStep& step, const std::vector<WorkCost>& costs)
      : step_(step),
        recording_(step.recording),
        works_(step.works),
        alternatives_(step.alternatives),
        updates_(step.updates),
        costs_(costs),
        variants_(recording_.calls.size()),
        realizations_(recording_.calls.size()),
        version_(recording_.externals.size(), -1),
        versioned_(step::versioned(recording_)) {
    for (const CallVariant& variant : alternatives_.variants) {
      variants_[variant.call].push_back(&variant);
    }
    for (const CallRealization& realization : alternatives_.realizations) {
      for (const CallRealization::Piece& piece : realization.pieces) {
        auto& here = realizations_[piece.after];
        // A call that runs as it is stands before the pieces that belong behind it.
        here.emplace(piece.as_it_is ? here.begin() : here.end(), &realization, &piece);
      }
    }
    find_needed();
    find_effects();
    find_early_guards();
    follow_ups_ = follow_ups_of(step, needed_);
  }

  LoweredStep run(const Tensors& inputs, const std::string& name) {
    Graph& graph = result_.graph;
    graph.name = name;
    std::set<const void*> seen;  // storages, because inputs may share memory
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!inputs[i].defined()) continue;
      const c10::Storage& storage = inputs[i].storage();
      if (!seen.insert(storage.unsafeGetStorageImpl()).second) continue;
      graph.values.push_back({fmt::format("input{}", i),
                              as_counted(static_cast<int64_t>(storage.nbytes())),
                              ValueKind::kInput});
      result_.step_value_of.push_back(-1);
      result_.input_bytes.push_back(static_cast<int64_t>(storage.nbytes()));
    }
    result_.devices = step_.devices;
    external_value_ = add_external_values(result_, step_, needed_, inputs);
    value_of_.assign(recording_.values.size(), -1);
    const size_t loss = find_loss();
    op_of_.assign(recording_.calls.size(), -1);
    if (!updates_.each.empty()) add_parameters();
    if (works_.before >= 0) add_state();
    for (size_t c = 0; c < recording_.calls.size(); ++c) {
      if (needed_[c] && !is_early_[c]) add_call(c, c == loss);
      for (const size_t guard : early_guards_[c]) add_call(guard, guard == loss);
      for (const auto& [realization, piece] : realizations_[c]) add_piece(*realization, *piece);
      for (const FollowUp& follow_up : follow_ups_[c]) add_follow_up(follow_up);
    }
    add_choices();
    // Shards have one order, because the sums and exchanges of all ranks have one.
    if (!step_.buckets.sharded && step_.buckets.reader < 0) add_waits();
    if (!updates_.each.empty() && !step_.buckets.sharded) add_optimizer();
    for (const TensorRef& ref : results()) {
      if (ref.memory == Memory::kValue) {
        add_once(graph.results, value_of_[ref.index]);
      }
    }
    return std::move(result_);
  }

 private:
  // Returns the outputs and the gradients as the step leaves them.
  std::vector<TensorRef> results() const {
    std::vector<TensorRef> all;
    for (const TensorRef& ref : recording_.outputs) all.push_back(step_.buckets.averaged(ref));
    std::vector<bool> used_up(recording_.gradients.size(), false);
    for (const Update& update : updates_.each) used_up[update.leaf] = true;
    for (size_t l = 0; l < recording_.gradients.size(); ++l) {
      if (!used_up[l]) all.push_back(step_.buckets.gradient(recording_, l));
    }
    return all;
  }

  // Finds the calls that are needed. The loop goes backwards from results, effects, random numbers
  // and guards.
  void find_needed() {
    needed_.assign(recording_.calls.size(), false);
    std::vector<bool> wanted(recording_.values.size(), false);
    const auto want = [&](const TensorRef& ref) {
      if (ref.memory == Memory::kValue) wanted[ref.index] = true;
    };
    for (const TensorRef& ref : recording_.outputs) want(ref);
    for (const LeafGradient& leaf : recording_.gradients) want(leaf.gradient);
    for (const step::Bucket& bucket : step_.buckets.all) {
      for (const Filling& filling : bucket.fillings) wanted[filling.value] = true;
    }
    for (size_t c = recording_.calls.size(); c-- > 0;) {
      const Call& call = recording_.calls[c];
      const std::vector<int32_t> writes = values_written(works_.all[c]);
      needed_[c] = call.random || !call.effects.empty() || is_host_read(call) ||
                   std::any_of(writes.begin(), writes.end(), [&](int32_t v) { return wanted[v]; });
      if (!needed_[c]) continue;
      for (const int32_t v : values_read(works_.all[c])) wanted[v] = true;
    }
  }

  // Finds the externals that calls write, and counts the calls that touch each external.
  void find_effects() {
    users_.assign(recording_.externals.size(), 0);
    written_.assign(recording_.externals.size(), false);
    writers_.resize(recording_.externals.size());
    last_user_.assign(recording_.externals.size(), 0);
    for (size_t c = 0; c < recording_.calls.size(); ++c) {
      if (!needed_[c]) continue;
      for (const int32_t e : externals_of(recording_.calls[c])) {
        ++users_[e];
        last_user_[e] = c;
      }
      for (const int32_t e : recording_.calls[c].effects) {
        written_[e] = !versioned_[e];
        if (versioned_[e]) writers_[e].push_back(c);
      }
    }
  }

  // A number that the function gets stands behind the calls that make its value. So a loss that the
  // function reads at its end, behind the updates of its parameters, is there before them.
  void find_early_guards() {
    is_early_.assign(recording_.calls.size(), false);
    early_guards_.resize(recording_.calls.size());
    for (size_t c = 0; c < recording_.calls.size(); ++c) {
      const Call& call = recording_.calls[c];
      if (!step::is_guard(call) || step::expects_number(call)) continue;
      const std::vector<int32_t> reads = values_read(works_.all[c]);
      if (reads.empty() || !externals_of(call).empty()) continue;
      int32_t maker = 0;
      for (const int32_t v : reads) maker = std::max(maker, recording_.values[v].maker);
      is_early_[c] = true;
      early_guards_[maker].push_back(c);
    }
  }

  // A batch norm whose statistics nobody else touches can run again without them.
  bool has_replay(size_t c) const {
    const std::vector<int32_t>& effects = recording_.calls[c].effects;
    return works_.rerun[c] >= 0 &&
           std::all_of(effects.begin(), effects.end(), [&](int32_t e) { return users_[e] == 1; });
  }

  // Ops that run once keep their order. So no op whose size depends on a mask runs before the guard
  // of its count, and guards stand in their order before all updates and the whole backward.
  bool runs_once(size_t c) const {
    if (is_host_read(recording_.calls[c]) || sizes_by_values(recording_.calls[c])) return true;
    if (has_replay(c)) return false;
    for (const int32_t e : externals_of(recording_.calls[c])) {
      if (written_[e]) return true;
    }
    return false;
  }

  // Returns the last forward call before the first backward call. Without a backward there is no
  // loss.
  size_t find_loss() const {
    size_t loss = recording_.calls.size();
    for (size_t c = 0; c < recording_.calls.size(); ++c) {
      if (!needed_[c]) continue;
      if (recording_.calls[c].phase == Phase::kBackward) return loss;
      loss = c;
    }
    return recording_.calls.size();
  }

  // Returns an id for the op that is next: "12:gelu@blocks.0.mlp". It names the module for people;
  // programs look at the op's owner.
  std::string op_id(const Call& call, const std::string& piece) const {
    std::string id = fmt::format("{}:{}{}", result_.graph.ops.size(), call.name(), piece);
    if (!call.module.empty()) id += "@" + call.module;
    return id;
  }

  void add_call(size_t c, bool is_loss) {
    const Call& call = recording_.calls[c];
    op_of_[c] = static_cast<OpIndex>(result_.graph.ops.size());
    add_call(c, op_id(call, ""), is_loss ? Phase::kLoss : call.phase);
  }

  // Adds an op with the call and its variants.
  void add_call(size_t c, std::string id, Phase phase) {
    const Call& call = recording_.calls[c];
    const bool replay = has_replay(c);
    Op op;
    op.id = std::move(id);
    op.owner = call.module;
    op.phase = phase;
    op.random = call.random;
    op.once = runs_once(c);
    result_.works.emplace_back();
    add_variant(op, replay ? "first" : "default", static_cast<int32_t>(c),
                replay ? Role::kFirst : Role::kAny);
    if (replay) add_variant(op, "replay", works_.rerun[c], Role::kReplay);
    for (const CallVariant* variant : variants_[c]) {
      add_variant(op, variant->name, variant->work, Role::kAny, variant->exactness);
      if (variant->memory > 0) read_on_device(op.variants.back(), *variant);
    }
    for (const int32_t e : call.effects) {
      if (versioned_[e]) add_version(op, c, e);
    }
    result_.graph.ops.push_back(std::move(op));
  }

  // Lets the op write a versioned external in its place: nothing reads the version before any more.
  void add_version(Op& op, size_t c, int32_t e) {
    const ValueIndex before = version_[e];
    const bool goes_on = last_user_[e] > c;
    if (goes_on) version_[e] = add_state_value(fmt::format("{}.state{}", op.id, e));
    for (Variant& variant : op.variants) {
      add_once(variant.reads, before);
      variant.consumes.push_back(before);
      if (goes_on) variant.writes.push_back(version_[e]);
    }
  }

  ValueIndex add_state_value(std::string name) {
    result_.graph.values.push_back({std::move(name), Bytes(0), ValueKind::kState});
    result_.step_value_of.push_back(-1);
    return static_cast<ValueIndex>(result_.graph.values.size()) - 1;
  }

  // Adds the op that makes the first versions of what calls write in its place.
  void add_state() {
    Op op;
    op.id = fmt::format("{}:state", result_.graph.ops.size());
    op.once = true;
    op.variants.emplace_back();
    for (size_t e = 0; e < versioned_.size(); ++e) {
      if (writers_[e].empty()) continue;
      version_[e] = add_state_value(fmt::format("state{}", e));
      op.variants[0].writes.push_back(version_[e]);
    }
    result_.works.push_back({works_.before});
    result_.graph.ops.push_back(std::move(op));
  }

  // Lets the variant run on its device, where it reads copies of what was there before the step.
  void read_on_device(Variant& variant, const CallVariant& call) const {
    variant.at = step_.devices[call.memory].str();
    for (const int32_t e : externals_read(works_.all[call.work])) {
      const ValueIndex value = external_value_[e];
      if (value >= 0) variant.reads.push_back(value);
    }
  }

  // Says whether all calls that the realization stands for are needed, and read the same versions of
  // what the step writes in its place.
  bool stands(const CallRealization& realization) const {
    const auto [first, last] =
        std::minmax_element(realization.calls.begin(), realization.calls.end());
    const auto is_between = [&](size_t writer) {
      return writer >= static_cast<size_t>(*first) && writer <= static_cast<size_t>(*last);
    };
    return std::all_of(realization.calls.begin(), realization.calls.end(), [&](int32_t c) {
      const std::vector<int32_t> externals = externals_of(recording_.calls[c]);
      return needed_[c] && std::none_of(externals.begin(), externals.end(), [&](int32_t e) {
               return std::any_of(writers_[e].begin(), writers_[e].end(), is_between);
             });
    });
  }

  void add_piece(const CallRealization& realization, const CallRealization::Piece& piece) {
    if (!stands(realization)) return;
    const int32_t begin = piece.of < 0 ? realization.calls[0] : piece.of;
    const Call& first = recording_.calls[begin];
    pieces_[&realization].push_back(static_cast<OpIndex>(result_.graph.ops.size()));
    if (piece.as_it_is) {
      const auto c = static_cast<size_t>(piece.after);
      add_call(c, op_id(recording_.calls[c], "." + realization.name), recording_.calls[c].phase);
      return;
    }
    Op op;
    op.id = op_id(first, "." + piece.name);
    op.owner = first.module;
    // A piece that stands in the forward, to leave something for a backward, belongs to the
    // forward.
    op.phase = first.phase == Phase::kForward || piece.after < begin
                   ? recording_.calls[piece.after].phase
                   : first.phase;
    for (const int32_t work : piece.works) {
      for (const int32_t e : externals_read(works_.all[work])) {
        if (written_[e]) op.once = true;
      }
    }
    result_.works.emplace_back();
    for (size_t k = 0; k < piece.works.size(); ++k) {
      add_variant(op, piece.names[k], piece.works[k], Role::kAny, realization.exactness);
    }
    result_.graph.ops.push_back(std::move(op));
  }

  // Adds the op that makes the values of the parameters: from here on they are as the step found
  // them.
  void add_parameters() {
    Op op;
    op.id = "0:parameters";
    op.once = true;
    op.variants.emplace_back();
    for (const Update& update : updates_.each) {
      version_[update.external] = add_state_value(update.name);
      op.variants[0].writes.push_back(version_[update.external]);
    }
    result_.works.push_back({updates_.before});
    result_.graph.ops.push_back(std::move(op));
  }

  void add_follow_up(const FollowUp& follow_up) {
    if (follow_up.kind == FollowUp::Kind::kUpdate)
      return add_update(updates_.each[follow_up.index]);
    const OpIndex op = add_bucket_op(follow_up);
    if (follow_up.kind == FollowUp::Kind::kWait && step_.buckets.reader < 0)
      update_ops_.push_back(op);
    if (follow_up.kind != FollowUp::Kind::kShard) return;
    for (const Filling& filling : step_.buckets.all[follow_up.index].fillings) {
      take(result_.graph.ops.back().variants[0], updates_.each[filling.update]);
    }
  }

  // Adds an op of a bucket. It runs once, in its place, as all ops of the backward do.
  OpIndex add_bucket_op(const FollowUp& follow_up) {
    Op op;
    op.id = fmt::format("{}:{}", result_.graph.ops.size(), name_of(follow_up, step_.buckets));
    op.phase = Phase::kBackward;
    op.once = true;
    result_.works.emplace_back();
    add_variant(op, "default", work_of(follow_up, step_.buckets), Role::kAny);
    result_.graph.ops.push_back(std::move(op));
    return static_cast<OpIndex>(result_.graph.ops.size()) - 1;
  }

  // Adds the waits for all buckets behind the backward, as in plain training.
  void add_waits() {
    for (size_t b = 0; b < step_.buckets.all.size(); ++b) {
      late_waits_.push_back(add_bucket_op({FollowUp::Kind::kWait, b}));
    }
  }

  void add_update(const Update& update) {
    Op op;
    op.id = fmt::format("{}:update.{}", result_.graph.ops.size(), update.name);
    op.phase = Phase::kBackward;
    result_.works.emplace_back();
    add_variant(op, "default", update.work, Role::kAny);
    take(op.variants[0], update);
    update_ops_.push_back(static_cast<OpIndex>(result_.graph.ops.size()));
    result_.graph.ops.push_back(std::move(op));
  }

  // Lets the variant read and consume the parameter from before its update. No later op may read
  // that.
  void take(Variant& variant, const Update& update) const {
    const ValueIndex before = version_[update.external];
    variant.reads.push_back(before);
    variant.consumes.push_back(before);
  }

  // Adds the optimizer's whole step, as in plain training, and the choice between this op and the
  // updates.
  void add_optimizer() {
    Op op;
    op.id = fmt::format("{}:{}", result_.graph.ops.size(), updates_.optimizer);
    op.phase = Phase::kBackward;
    result_.works.emplace_back();
    add_variant(op, "default", updates_.whole, Role::kAny);
    for (const Update& update : updates_.each) take(op.variants[0], update);
    const auto whole = static_cast<OpIndex>(result_.graph.ops.size());
    std::vector<OpIndex> plain = late_waits_;
    plain.push_back(whole);
    result_.graph.choices.push_back({op.id, {{"", plain}, {"gradients-consumed", update_ops_}}});
    result_.graph.ops.push_back(std::move(op));
  }

  // Adds a choice for each list of calls that realizations stand for. The choice has the id of the
  // first op.
  void add_choices() {
    std::map<std::vector<int32_t>, size_t> known;
    for (const CallRealization& realization : alternatives_.realizations) {
      if (!stands(realization)) continue;
      std::vector<Choice>& choices = result_.graph.choices;
      const auto [entry, is_new] = known.emplace(realization.calls, choices.size());
      if (is_new) {
        std::vector<OpIndex> plain;
        for (const int32_t c : realization.calls) plain.push_back(op_of_[c]);
        choices.push_back({result_.graph.ops[plain[0]].id, {{"", plain}}});
      }
      choices[entry->second].realizations.push_back({realization.name, pieces_[&realization]});
    }
  }

  // Adds a variant to the op that is next.
  void add_variant(Op& op, const VariantName& name, int32_t work_index, Role role,
                   Exactness exactness = Exactness::kBitwise) {
    const auto w = static_cast<size_t>(work_index);
    const Work& work = works_.all[w];
    const std::vector<int32_t> writes = values_written(work);
    for (size_t k = 0; k < writes.size(); ++k) add_value(writes[k], writes.size(), k, op);
    Variant variant;
    variant.name = name.text;
    variant.alternative = name.alternative;
    variant.time = costs_[w].time;
    variant.workspace = costs_[w].workspace;
    variant.reads = in_graph(values_read(work));
    for (const int32_t e : externals_read(work)) {
      if (version_[e] >= 0) variant.reads.push_back(version_[e]);
    }
    variant.writes = in_graph(writes);
    for (const auto& [now, before] : work.overwrites) {
      variant.reuses.emplace_back(value_of_[now], value_of_[before]);
    }
    variant.role = role;
    variant.exactness = exactness;
    variant.error_ppm = costs_[w].error_ppm;
    op.variants.push_back(std::move(variant));
    result_.works.back().push_back(work_index);
  }

  void add_value(int32_t step_value, size_t count, size_t k, const Op& op) {
    const auto v = static_cast<size_t>(step_value);
    if (value_of_[v] >= 0) return;
    value_of_[v] = static_cast<int32_t>(result_.graph.values.size());
    result_.graph.values.push_back(
        {count == 1 ? op.id + ".out" : fmt::format("{}.{}", op.id, k),
         as_counted(recording_.values[v].bytes),
         op.phase == Phase::kBackward ? ValueKind::kGradient : ValueKind::kActivation});
    result_.step_value_of.push_back(step_value);
  }

  Bytes as_counted(int64_t bytes) const { return counted_anywhere(bytes, step_); }

  std::vector<ValueIndex> in_graph(const std::vector<int32_t>& values) const {
    std::vector<ValueIndex> all;
    for (const int32_t v : values) all.push_back(value_of_[v]);
    return all;
  }

  const RewrittenStep& step_;
  const Recording& recording_;
  const Works& works_;
  const Alternatives& alternatives_;
  const Updates& updates_;
  const std::vector<WorkCost>& costs_;
  std::vector<std::vector<const CallVariant*>> variants_;  // by call
  std::vector<std::vector<std::pair<const CallRealization*, const CallRealization::Piece*>>>
      realizations_;  // by call: the pieces that stand behind it
  std::map<const CallRealization*, std::vector<OpIndex>> pieces_;
  std::vector<std::vector<FollowUp>> follow_ups_;  // by call
  std::vector<ValueIndex> version_;                // by external: the version in force; -1: none
  std::vector<bool> versioned_;                    // by external
  std::vector<std::vector<size_t>> writers_;       // by external that is versioned: calls
  std::vector<size_t> last_user_;                  // by external: the last call that touches it
  std::vector<ValueIndex> external_value_;  // by external: its value for other devices; -1: none
  std::vector<OpIndex> update_ops_;         // and the waits before them
  std::vector<OpIndex> late_waits_;         // by bucket
  std::vector<bool> needed_;                // by call
  std::vector<bool> is_early_;              // by call: a guard that stands behind an earlier call
  std::vector<std::vector<size_t>> early_guards_;  // by call: those that stand behind it
  std::vector<int32_t> users_;                     // by external: the number of calls that touch it
  std::vector<bool> written_;                      // by external: written, and not versioned
  std::vector<int32_t> value_of_;                  // by step value
  std::vector<OpIndex> op_of_;                     // by call
  LoweredStep result_;
};

}  // namespace

LoweredStep lower(const RewrittenStep& step, const std::vector<WorkCost>& costs,
                  const Tensors& inputs, const std::string& name) {
  return Lowering(step, costs).run(inputs, name);
}

}  // namespace reprise::runtime::internal::graph
