// Makes the proposals of a walker: single steps of the local search over the schedules of a graph.
#include <algorithm>
#include <tuple>
#include <utility>

#include "plan/common/graph_facts.h"
#include "plan/graph/search/anneal.h"

namespace reprise::internal::search {

using common::contains;
using schedule::Early;
using schedule::Interval;
using schedule::Keeping;
using schedule::kPutOff;
using schedule::Schedule;

// Proposes one change: a value is dropped at the peak, a value is kept again, a value is treated in
// another way, an op runs in another way; or two of these at once.
void Annealer::propose(const Course& course) {
  const SearchSwitches& use = params_.use;
  const ProposalParams& share = params_.proposals;
  const bool has_choices = !model_.graph().choices.empty();
  large_ = false;
  if (!moves_.makers.empty() && (use.rows || use.others) && uniform() < share.rows) {
    large_ = true;
    const bool has_others = use.others && course.others != nullptr;
    if (has_others && (!use.rows || below(2) == 0)) return take_over(*course.others);
    return use.rows ? copy_block() : change_any();
  }
  if (use.trades && has_choices && uniform() < share.trades) {
    large_ = true;
    return trade();
  }
  if (use.variants && !moves_.flexible.empty() && uniform() < share.variants) {
    change_variant();
    if (below(2) == 0) return;
  }
  if (use.on_demand && !moves_.repeatable.empty() && uniform() < share.on_demand) {
    change_on_demand();
    if (below(2) == 0) return;
  }
  if (use.early && !moves_.intervals.empty() && uniform() < share.early) {
    change_early();
    if (below(2) == 0) return;
  }
  if (use.realizations && has_choices && uniform() < share.realizations) {
    change_realization();
    if (below(2) == 0) return;
  }
  if (use.put_off && !moves_.patient.empty() && uniform() < share.put_off) {
    put_off();
    if (below(2) == 0) return;
  }
  propose_interval();
}

void Annealer::propose_interval() {
  const ProposalParams& share = params_.proposals;
  if (over_ && uniform() < share.drops) {
    drop_at_peak();
  } else if (uniform() < share.keeps) {
    keep_again();
  } else if (uniform() < share.swaps) {
    keep_again();
    drop_at_peak();
  } else {
    change_any();
  }
}

// A row of ops, with the values that they make, is treated like another row that looks alike. Half
// of the time the two rows are exchanged.
void Annealer::copy_block() {
  const OpIndex to = moves_.makers[below(moves_.makers.size())];
  const std::vector<OpIndex>& alike = moves_.alike[moves_.kind[to]];
  const OpIndex from = alike[below(alike.size())];
  if (from == to) return;
  const bool exchange = below(2) == 0;
  const auto count = static_cast<OpIndex>(moves_.kind.size());
  const auto length = static_cast<OpIndex>(some_length());
  for (OpIndex d = 0; d < length && std::max(from, to) + d < count; ++d) {
    if (moves_.kind[from + d] != moves_.kind[to + d]) break;
    const std::vector<Variant>& of = model_.graph().ops[from + d].variants;
    const std::vector<Variant>& for_these = model_.graph().ops[to + d].variants;
    for (size_t k = 0; k < of.front().writes.size(); ++k) {
      const int32_t source = model_.first_interval(of.front().writes[k]);
      const int32_t target = model_.first_interval(for_these.front().writes[k]);
      const int32_t intervals = model_.first_interval(of.front().writes[k] + 1) - source;
      for (int32_t g = 0; g < intervals; ++g) {
        const Keeping there = ledger_.schedule().intervals[source + g];
        const Keeping here = ledger_.schedule().intervals[target + g];
        if (there == here || model_.intervals()[target + g].must_keep) continue;
        set_interval(target + g, there);
        if (exchange) set_interval(source + g, here);
      }
    }
  }
}

// A row of ops, with the values that they make, is treated as in another schedule.
void Annealer::take_over(const std::vector<FoundSchedule>& others) {
  const Schedule& other = others[below(others.size())].schedule;
  const OpIndex first = moves_.makers[below(moves_.makers.size())];
  const auto count = static_cast<OpIndex>(moves_.kind.size());
  const OpIndex end = std::min(count, first + static_cast<OpIndex>(some_length()));
  for (OpIndex op = first; op < end; ++op) {
    for (const ValueIndex value : model_.graph().ops[op].variants.front().writes) {
      for (int32_t g = model_.first_interval(value); g < model_.first_interval(value + 1); ++g) {
        if (ledger_.schedule().intervals[g] != other.intervals[g])
          set_interval(g, other.intervals[g]);
      }
    }
  }
}

// Takes another realization, which may take much longer or hold much more than the one before. By
// itself it would not be accepted. So the bytes that it frees are spent at once on values that are
// kept again, and make_fit() drops values for the bytes that it needs.
void Annealer::trade() {
  const ProposalParams& share = params_.proposals;
  change_realization();
  for (uint64_t count = below(share.most_traded); count > 0; --count) keep_again(share.to_compare);
}

// After a large change: drops values at the peak until the schedule fits, or several values were
// dropped.
bool Annealer::make_fit(const Course& course) {
  for (int k = 0; k < params_.proposals.drops_to_fit && ledger_.peak() > course.goal.peak; ++k) {
    drop_at_peak(params_.proposals.to_compare);
    if (!ledger_.apply_changes()) return false;
  }
  return true;
}

void Annealer::set_interval(int32_t interval, Keeping keeping) {
  ledger_.set_interval(interval, keeping);
  changing_.push_back(interval);
}

// Draws some values that are held at the peak, and drops the one that frees most bytes for its
// maker's time.
void Annealer::drop_at_peak(int candidates) {
  const int32_t position = ledger_.peak_position();
  int32_t best = -1;
  double most = -1;
  if (moves_.intervals.empty()) return;
  const int draws = params_.proposals.draws_at_peak;
  for (int draw = 0; draw < draws * candidates && candidates > 0; ++draw) {
    const int32_t index = moves_.intervals[below(moves_.intervals.size())];
    const Interval& interval = model_.intervals()[index];
    if (interval.begin > position || interval.end < position) continue;
    if (ledger_.schedule().intervals[index] == Keeping::kDrop) continue;
    if (!ledger_.passes(interval.value, position) && !ledger_.touches(interval.value, position))
      continue;
    const double worth = worth_of_dropping(interval.value);
    if (worth > most) std::tie(most, best) = std::pair(worth, index);
    --candidates;
  }
  if (best < 0) return;
  const bool is_kept = ledger_.schedule().intervals[best] == Keeping::kKeep;
  set_interval(best, is_kept && below(4) != 0 ? Keeping::kOnRerun : Keeping::kDrop);
}

// Draws some values that are dropped, and keeps the one that saves most time for its bytes.
void Annealer::keep_again(int candidates) {
  if (dropped_.empty()) return;
  int32_t interval = -1;
  double most = -1;
  for (; candidates > 0; --candidates) {
    const int32_t index = dropped_[below(dropped_.size())];
    const ValueIndex value = model_.intervals()[index].value;
    const double worth = static_cast<double>(model_.rerun_time(value)) /
                         (1 + static_cast<double>(model_.bytes(value)));
    if (worth > most) std::tie(most, interval) = std::pair(worth, index);
  }
  const auto now = static_cast<uint64_t>(ledger_.schedule().intervals[interval]);
  set_interval(interval,
               below(4) != 0 ? Keeping::kKeep : static_cast<Keeping>((now + 1 + below(2)) % 3));
}

void Annealer::change_any() {
  if (moves_.intervals.empty()) return;
  const int32_t interval = moves_.intervals[below(moves_.intervals.size())];
  const auto now = static_cast<uint64_t>(ledger_.schedule().intervals[interval]);
  set_interval(interval, static_cast<Keeping>((now + 1 + below(2)) % 3));
}

void Annealer::change_variant() {
  const int32_t position = moves_.flexible[below(moves_.flexible.size())];
  const std::vector<int32_t>& variants = moves_.first_variants[position];
  run_otherwise(position, variants[below(variants.size())]);
}

// Gives an op another variant. Ops before it that would not write what it reads get other variants,
// too.
void Annealer::run_otherwise(int32_t position, int32_t chosen) {
  ledger_.set_variant(position, chosen);
  const Graph& graph = model_.graph();
  const std::vector<ValueIndex>& reads =
      graph.ops[model_.plain()[position].op].variants[chosen].reads;
  for (const int32_t p : moves_.flexible) {
    if (p >= position) break;
    const Op& maker = graph.ops[model_.plain()[p].op];
    const auto writes_wanted = [&](int32_t variant) {
      const std::vector<ValueIndex>& writes = maker.variants[variant].writes;
      return std::count_if(writes.begin(), writes.end(),
                           [&](ValueIndex value) { return contains(reads, value); });
    };
    const int32_t before = ledger_.schedule().variant[p];
    if (before == kPutOff) continue;
    const auto now = writes_wanted(before);
    for (const int32_t variant : moves_.first_variants[p]) {
      if (writes_wanted(variant) <= now) continue;
      ledger_.set_variant(p, variant);
      break;
    }
  }
}

void Annealer::change_on_demand() {
  const int32_t position = moves_.repeatable[below(moves_.repeatable.size())];
  const size_t count = model_.graph().ops[model_.plain()[position].op].variants.size();
  // Draws one of the variants, or kFastest.
  ledger_.set_on_demand(position, static_cast<int32_t>(below(count + 1)) - 1);
}

// Takes some realization of some choice. Above the budget, rather of a choice whose op makes a
// value that is held throughout the peak.
void Annealer::change_realization() {
  const std::vector<Choice>& choices = model_.graph().choices;
  auto choice = static_cast<int32_t>(below(choices.size()));
  for (int draw = 0; over_ && draw < params_.proposals.draws_of_ops; ++draw) {
    const OpIndex op = moves_.chosen[below(moves_.chosen.size())];
    if (bytes_at_peak(op) == 0) continue;
    choice = model_.choice(op);
    break;
  }
  ledger_.set_realization(choice, static_cast<int32_t>(below(choices[choice].realizations.size())));
}

// Lets the value of some interval be made early, or lets one no longer be made early.
void Annealer::change_early() {
  std::vector<Early> all = ledger_.schedule().early;
  if (!all.empty() && below(2) == 0) {
    all.erase(all.begin() + static_cast<std::ptrdiff_t>(below(all.size())));
    ledger_.set_early(std::move(all));
    return;
  }
  const bool dropped = !dropped_.empty() && below(4) != 0;
  const int32_t index =
      dropped ? dropped_[below(dropped_.size())] : moves_.intervals[below(moves_.intervals.size())];
  const Interval& interval = model_.intervals()[index];
  const auto length = static_cast<size_t>(interval.end - interval.begin);
  const Early early{interval.begin + 1 + static_cast<int32_t>(below(length)), index};
  all.insert(std::lower_bound(all.begin(), all.end(), early), early);
  ledger_.set_early(std::move(all));
  if (ledger_.schedule().intervals[index] != Keeping::kOnRerun)
    set_interval(index, Keeping::kOnRerun);
}

// A forward op waits until it is needed, or no longer waits.
void Annealer::put_off() {
  const int32_t position = moves_.patient[below(moves_.patient.size())];
  const bool waits = ledger_.schedule().variant[position] == kPutOff;
  ledger_.set_variant(position, waits ? model_.plain()[position].variant : kPutOff);
}

}  // namespace reprise::internal::search
