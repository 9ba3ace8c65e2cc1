// Makes plans of least energy. A problem is priced: the cost of each run stands in the place of
// its time. Then the planners of time solve it. The plan is judged on the problem itself.
#include "reprise/plan/energy.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <tuple>
#include <utility>

#include "reprise/check/simulate.h"
#include "reprise/check/verify.h"
#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "reprise/model/lower.h"

namespace reprise {
namespace {

// Returns what stands in the place of the time of a run.
using Price = std::function<Nanos(Nanos time, int64_t dynamic_mw)>;

Graph priced(const Graph& graph, const Power& power, const Price& price) {
  const std::vector<std::vector<int64_t>> dynamic = dynamic_power(graph, power);
  Graph result = graph;
  for (size_t k = 0; k < result.ops.size(); ++k) {
    for (size_t v = 0; v < result.ops[k].variants.size(); ++v) {
      Variant& variant = result.ops[k].variants[v];
      variant.time = price(variant.time, dynamic[k][v]);
    }
  }
  return result;
}

Chain priced(const Chain& chain, const Power& power, const Price& price) {
  const std::vector<std::vector<int64_t>> dynamic = dynamic_power(lower(chain), power);
  const ChainIndex index{chain.stages.size()};
  const auto at = [&](OpIndex op, size_t variant) { return dynamic[op][variant]; };
  Chain result = chain;
  for (size_t i = 0; i < chain.stages.size(); ++i) {
    Stage& stage = result.stages[i];
    stage.forward.time = price(stage.forward.time, at(index.forward(i), 0));
    for (size_t o = 0; o < stage.options.size(); ++o) {
      StageOption& option = stage.options[o];
      option.forward.time = price(option.forward.time, at(index.forward(i), o + 1));
      option.backward.time = price(option.backward.time, at(index.backward(i), o));
    }
  }
  result.loss.cost.time = price(chain.loss.cost.time, at(index.loss(), 0));
  return result;
}

Graph graph_of(const Chain& chain) { return lower(chain); }
const Graph& graph_of(const Graph& graph) { return graph; }

bool draws_the_same(const Graph& graph, const Power& power) {
  for (const std::vector<int64_t>& op : dynamic_power(graph, power)) {
    for (const int64_t milliwatts : op) {
      if (milliwatts != power.dynamic_mw) return false;
    }
  }
  return true;
}

// Returns the least dynamic energy of plans that run each op once, and of each choice one
// realization.
Picojoules least_dynamic_energy(const Graph& graph, const Power& power) {
  const std::vector<std::vector<int64_t>> dynamic = dynamic_power(graph, power);
  std::vector<Picojoules> least(graph.ops.size());
  Picojoules sum;
  for (size_t k = 0; k < graph.ops.size(); ++k) {
    std::optional<Picojoules> found;
    for (size_t v = 0; v < graph.ops[k].variants.size(); ++v) {
      const Nanos time = graph.ops[k].variants[v].time;
      const Picojoules one = Picojoules(time.count()) * dynamic[k][v];
      if (!found || one < *found) found = one;
    }
    least[k] = *found;
    sum += least[k];
  }
  for (const Choice& choice : graph.choices) {
    std::optional<Picojoules> smallest;
    for (const Realization& realization : choice.realizations) {
      Picojoules one;
      for (const OpIndex op : realization.ops) one += least[op];
      sum -= one;
      if (!smallest || one < *smallest) smallest = one;
    }
    if (smallest) sum += *smallest;
  }
  return sum;
}

// Plans one problem with several prices. All plans are restated as plans of the problem itself.
template <class Problem>
class EnergySearch {
 public:
  EnergySearch(const Problem& problem, const Power& power, PlanOptions options, int64_t searches)
      : problem_(problem), graph_(graph_of(problem)), power_(power), options_(std::move(options)) {
    validate(power);
    same_ = draws_the_same(graph_, power);
    baseline_energy(graph_, power_);  // throws if energies do not fit 64 bits
    options_.time_limit = Nanos(options_.time_limit.count() / (moves() || !same_ ? searches : 1));
    fastest_ = reprise::plan(problem, options_);
    if (fastest_.plan) add(*fastest_.plan);
  }

  bool moves() const { return !options_.machine.channels.empty(); }
  bool same() const { return same_; }
  const PlanResult& fastest() const { return fastest_; }
  const std::vector<EnergyPoint>& points() const { return points_; }
  const Graph& graph() const { return graph_; }

  // Adds the plan of least price. Returns the result of the search on the priced problem.
  PlanResult search(const Price& price) {
    PlanOptions options = options_;
    options.machine = {};
    if (moves()) {
      options.planner.clear();
      options.schedule_class = "persistent";
    } else if (options.schedule_class.empty() && fastest_.planner == "chain") {
      options.schedule_class = fastest_.schedule_class;  // so that the bound of time holds, too
    }
    PlanResult found = reprise::plan(priced(problem_, power_, price), options);
    if (found.plan) add(*found.plan);
    return found;
  }

  // Adds the fastest plan for channels that are slower than they are: it copies less.
  void search_slower_channels(int64_t factor) {
    PlanOptions options = options_;
    for (Channel& channel : options.machine.channels) {
      channel.bytes_per_second = std::max<int64_t>(1, channel.bytes_per_second / factor);
    }
    const PlanResult found = reprise::plan(problem_, options);
    if (found.plan) add(*found.plan);
  }

 private:
  void add(Plan plan) {
    plan.problem = problem_id(problem_);
    plan.time = simulate(graph_, plan.actions, options_.machine).time;
    plan.budget = fastest_.budget;
    plan.baseline = fastest_.baseline;
    plan.machine_sha256 = fastest_.machine_sha256;
    if (fastest_.plan) {
      plan.lower_bound = fastest_.lower_bound;
      plan.schedule_class = fastest_.schedule_class;
      if (plan.time < plan.lower_bound) return;  // It is of another class.
    } else {
      plan.lower_bound = Nanos();
    }
    plan.termination =
        plan.time == plan.lower_bound ? Termination::kOptimal : Termination::kFeasible;
    std::string faults;
    for (const Violation& one : verify(graph_, plan, plan.budget, plan.problem, options_.machine)) {
      faults += "\n  " + one.message;
    }
    if (!faults.empty()) {
      throw InternalError("a plan for energy of '" + plan.problem.name + "' is invalid:" + faults);
    }
    points_.push_back({energy_of(graph_, plan.actions, power_, options_.machine), std::move(plan)});
  }

  const Problem& problem_;
  const Graph graph_;
  const Power& power_;
  PlanOptions options_;
  bool same_ = false;
  PlanResult fastest_;
  std::vector<EnergyPoint> points_;
};

Price energy_price(const Power& power) {
  return [&power](Nanos time, int64_t dynamic_mw) { return time * (power.static_mw + dynamic_mw); };
}

bool takes_less(const EnergyPoint& a, const EnergyPoint& b) {
  const auto key = [](const EnergyPoint& p) { return std::pair(p.use.total(), p.use.time); };
  return key(a) < key(b);
}

// Searches the ends: the fastest plan and that of least energy. Returns the bound on the energy.
template <class Problem>
std::pair<Picojoules, std::string> search_ends(EnergySearch<Problem>& search, const Power& power) {
  const PlanResult& fastest = search.fastest();
  const Picojoules background = Picojoules(fastest.lower_bound.count()) * power.static_mw;
  if (search.same() && !search.moves()) {
    return {background + Picojoules(fastest.lower_bound.count()) * power.dynamic_mw,
            fastest.schedule_class};
  }
  const Picojoules bound = background + least_dynamic_energy(search.graph(), power);
  const PlanResult frugal = search.search(energy_price(power));
  if (!search.moves()) {
    const bool known = frugal.plan && frugal.schedule_class == fastest.schedule_class;
    const Picojoules priced(known ? frugal.lower_bound.count() : 0);
    return {std::max(priced, bound), fastest.schedule_class};
  }
  search.search_slower_channels(4);
  return {bound, fastest.schedule_class};
}

template <class Problem>
EnergyPlan plan_of_least(const Problem& problem, const Power& power, const PlanOptions& options) {
  EnergySearch<Problem> search(problem, power, options, options.machine.channels.empty() ? 2 : 3);
  EnergyPlan found;
  found.result = search.fastest();
  const auto [bound, bound_class] = search_ends(search, power);
  if (search.points().empty()) return found;
  const EnergyPoint& best =
      *std::min_element(search.points().begin(), search.points().end(), takes_less);
  found.result.termination = best.plan.termination;
  found.result.planner = best.plan.planner;
  found.result.plan = best.plan;
  found.use = best.use;
  found.plain = baseline_energy(search.graph(), power);
  found.fastest = std::min_element(search.points().begin(), search.points().end(),
                                   [](const EnergyPoint& a, const EnergyPoint& b) {
                                     return a.use.time < b.use.time;
                                   })
                      ->use;
  found.lower_bound = bound;
  found.bound_class = bound_class;
  if (best.use.total() < bound) {
    throw InternalError("a plan of '" + best.plan.problem.name + "' takes less than its bound");
  }
  return found;
}

// Returns the plans that no other one beats in both, times ascending.
std::vector<EnergyPoint> unbeaten(std::vector<EnergyPoint> points) {
  std::sort(points.begin(), points.end(), [](const EnergyPoint& a, const EnergyPoint& b) {
    return std::pair(a.use.time, a.use.total()) < std::pair(b.use.time, b.use.total());
  });
  std::vector<EnergyPoint> result;
  for (EnergyPoint& point : points) {
    if (result.empty() || point.use.total() < result.back().use.total()) {
      result.push_back(std::move(point));
    }
  }
  return result;
}

// Searches between neighbours, the widest pair first, until nothing new appears.
template <class Problem>
std::vector<EnergyPoint> curve_of(const Problem& problem, const Power& power,
                                  const PlanOptions& options, size_t most) {
  EnergySearch<Problem> search(problem, power, options, static_cast<int64_t>(2 * most));
  search_ends(search, power);
  if (search.moves() || search.same()) return unbeaten(search.points());
  std::vector<std::pair<Nanos, Nanos>> done;
  std::vector<EnergyPoint> curve = unbeaten(search.points());
  // Prices are sums of shares of plain training's time and energy, in units of a trillionth.
  const EnergyUse plain = baseline_energy(search.graph(), power);
  const auto share = [](double part, double whole) { return whole > 0 ? part / whole : 0.0; };
  while (curve.size() < most) {
    size_t widest = 0;
    double width = -1;
    for (size_t k = 0; k + 1 < curve.size(); ++k) {
      const std::pair pair(curve[k].use.time, curve[k + 1].use.time);
      if (std::find(done.begin(), done.end(), pair) != done.end()) continue;
      const auto wide = static_cast<double>((pair.second - pair.first).count());
      if (wide > width) std::tie(width, widest) = std::pair(wide, k);
    }
    if (width < 0 || done.size() >= 2 * most) break;
    const EnergyUse a = curve[widest].use, b = curve[widest + 1].use;
    done.emplace_back(a.time, b.time);
    const auto total = static_cast<double>(plain.total().count());
    const auto time = static_cast<double>(plain.time.count());
    const double by_time = share(static_cast<double>((a.total() - b.total()).count()), total);
    const double by_energy = share(static_cast<double>((b.time - a.time).count()), time);
    const double norm = 1e12 / (by_time + by_energy);
    search.search([&](Nanos ns, int64_t dynamic_mw) {
      const auto count = static_cast<double>(ns.count());
      const double joules = count * static_cast<double>(power.static_mw + dynamic_mw);
      return Nanos(static_cast<int64_t>(
          norm * (by_time * share(count, time) + by_energy * share(joules, total))));
    });
    curve = unbeaten(search.points());
  }
  return curve;
}

// A join is planned as a graph; the plan names the join.
Plan of_join(Plan plan, const Join& join) {
  plan.problem = problem_id(join);
  return plan;
}

}  // namespace

EnergyPlan plan_for_energy(const Chain& chain, const Power& power, const PlanOptions& options) {
  return plan_of_least(chain, power, options);
}

EnergyPlan plan_for_energy(const Graph& graph, const Power& power, const PlanOptions& options) {
  return plan_of_least(graph, power, options);
}

EnergyPlan plan_for_energy(const Join& join, const Power& power, const PlanOptions& options) {
  EnergyPlan found = plan_of_least(lower(join), power, options);
  if (found.result.plan) found.result.plan = of_join(std::move(*found.result.plan), join);
  return found;
}

std::vector<EnergyPoint> energy_curve(const Chain& chain, const Power& power,
                                      const PlanOptions& options, size_t most) {
  return curve_of(chain, power, options, most);
}

std::vector<EnergyPoint> energy_curve(const Graph& graph, const Power& power,
                                      const PlanOptions& options, size_t most) {
  return curve_of(graph, power, options, most);
}

std::vector<EnergyPoint> energy_curve(const Join& join, const Power& power,
                                      const PlanOptions& options, size_t most) {
  std::vector<EnergyPoint> points = curve_of(lower(join), power, options, most);
  for (EnergyPoint& point : points) point.plan = of_join(std::move(point.plan), join);
  return points;
}

}  // namespace reprise
