#include "report/walk.h"

#include <algorithm>

#include "reprise/model/errors.h"

namespace reprise::report {

namespace {

size_t position(Holding holding) { return static_cast<size_t>(holding); }

class Walker {
 public:
  Walker(const Graph& graph, Walk& walk)
      : graph_(graph), walk_(walk), live_(graph.values.size(), 0), runs_(graph.ops.size(), 0) {
    held_[position(Holding::kFixed)] = graph.fixed;
    for (size_t v = 0; v < graph.values.size(); ++v) {
      if (starts_on_device(graph.values[v])) begin(static_cast<ValueIndex>(v));
    }
  }

  void step(const BoundAction& action) {
    const auto index = walk_.clock.size();
    const TimelineStep& step = walk_.timeline.steps[index];
    // Runs on the first device may begin later than the one before is over: a wait or a free is
    // between, or a value that the run gives back is being copied.
    if (walk_.timed && step.device == 0) now_ = static_cast<double>(step.start.count());
    walk_.clock.push_back(now_);
    switch (action.kind) {
      case ActionKind::kRun:
        return action.at == 0 ? run(action, index) : run_elsewhere(action, index);
      case ActionKind::kFree:
        if (action.at == 0) end(action.target);
        return;
      case ActionKind::kCopy:
      case ActionKind::kReceive:
        if (action.to == 0) begin(action.target);
        return;
      case ActionKind::kSend:
        return;
      case ActionKind::kWait:
        if (walk_.timed && step.device == 0) now_ += static_cast<double>(step.time.count());
        return;
    }
  }

  double now() const { return now_; }

 private:
  RunSpan begin_span(const BoundAction& action, size_t index) {
    const Op& op = graph_.ops[action.target];
    RunSpan moment;
    moment.action = static_cast<int64_t>(index);
    moment.op = action.target;
    moment.variant = action.variant;
    moment.purpose = purpose(op, runs_[action.target]++ > 0);
    return moment;
  }

  void run_elsewhere(const BoundAction& action, size_t index) {
    const TimelineStep& step = walk_.timeline.steps[index];
    RunSpan moment = begin_span(action, index);
    moment.start = static_cast<double>(step.start.count());
    moment.end = static_cast<double>((step.start + step.time).count());
    walk_.elsewhere.push_back(moment);
  }

  void run(const BoundAction& action, size_t index) {
    const Op& op = graph_.ops[action.target];
    const Variant& variant = op.variants[action.variant];
    RunSpan moment = begin_span(action, index);
    moment.start = now_;
    now_ += walk_.timed ? static_cast<double>(variant.time.count()) : 1.0;
    moment.end = now_;
    moment.held = run(variant);
    // The picture must not contradict the simulator.
    if (moment.total() != walk_.timeline.steps[index].during) {
      throw InternalError("a report counts other bytes than the simulator in action " +
                          std::to_string(index));
    }
    walk_.spans.push_back(moment);
  }

  static Purpose purpose(const Op& op, bool again) {
    if (again) return Purpose::kRecompute;
    if (op.phase == Phase::kLoss) return Purpose::kLoss;
    return op.phase == Phase::kForward ? Purpose::kForward : Purpose::kBackward;
  }

  // Takes the values that live on from here, and returns the bytes held while the run goes on.
  std::array<Bytes, kHoldings> run(const Variant& variant) {
    for (const ValueIndex value : variant.consumes) end(value);
    for (const auto& [written, read] : variant.reuses) end(read);
    std::array<Bytes, kHoldings> extra = {};
    for (const ValueIndex value : variant.writes) {
      const Value& written = graph_.values[value];
      if (live_[value]) {
        extra[position(holding_of(written.kind))] += written.bytes;
      } else {
        begin(value);
      }
    }
    extra[position(Holding::kWorkspace)] += variant.workspace;
    for (size_t h = 0; h < kHoldings; ++h) extra[h] += held_[h];
    return extra;
  }

  Bytes& level(ValueIndex value) { return held_[position(holding_of(graph_.values[value].kind))]; }
  void begin(ValueIndex value) {
    live_[value] = 1;
    level(value) += graph_.values[value].bytes;
  }
  void end(ValueIndex value) {
    live_[value] = 0;
    level(value) -= graph_.values[value].bytes;
  }

  const Graph& graph_;
  Walk& walk_;
  std::vector<char> live_;
  std::vector<int32_t> runs_;
  std::array<Bytes, kHoldings> held_;
  double now_ = 0;
};

}  // namespace

const char* to_string(Holding holding) {
  constexpr std::array<const char*, kHoldings> kNames = {
      "fixed", "input", "state", "gradient", "activation", "saved", "workspace"};
  return kNames[position(holding)];
}

Holding holding_of(ValueKind kind) {
  switch (kind) {
    case ValueKind::kInput:
      return Holding::kInput;
    case ValueKind::kSaved:
      return Holding::kSaved;
    case ValueKind::kGradient:
      return Holding::kGradient;
    case ValueKind::kState:
      return Holding::kState;
    case ValueKind::kActivation:
      break;
  }
  return Holding::kActivation;
}

const char* to_string(Purpose purpose) {
  constexpr std::array<const char*, kPurposes> kNames = {"forward", "loss", "recompute",
                                                         "backward"};
  return kNames[static_cast<size_t>(purpose)];
}

Bytes RunSpan::total() const {
  Bytes sum;
  for (const Bytes bytes : held) sum += bytes;
  return sum;
}

Walk walk(const Graph& graph, const std::vector<Action>& actions, const Machine& machine) {
  if (const auto placed = as_placed(graph, actions)) return walk(*placed, actions, machine);
  Walk result;
  result.timeline = simulate(graph, actions, machine);
  result.timed = result.timeline.time > Nanos(0);
  Walker walker(graph, result);
  for (const BoundAction& action : bind(graph, actions, machine)) walker.step(action);
  // Another device may be done last.
  const auto end = static_cast<double>(result.timeline.time.count());
  result.clock.push_back(result.timed ? std::max(walker.now(), end) : walker.now());
  const auto highest =
      std::max_element(result.spans.begin(), result.spans.end(),
                       [](const RunSpan& a, const RunSpan& b) { return a.total() < b.total(); });
  result.peak = static_cast<size_t>(highest - result.spans.begin());
  return result;
}

std::vector<RunSpan> thinned(const Walk& walk, size_t columns) {
  if (walk.spans.size() <= columns) return walk.spans;
  std::vector<RunSpan> result;
  const double width = walk.end() / static_cast<double>(columns);
  size_t first = 0;  // the first moment that reaches into the column
  for (size_t c = 0; c < columns; ++c) {
    const double start = width * static_cast<double>(c);
    const double end = c + 1 == columns ? walk.end() : width * static_cast<double>(c + 1);
    const auto before = [&](const RunSpan& m) { return m.start < start && m.end <= start; };
    while (first + 1 < walk.spans.size() && before(walk.spans[first])) ++first;
    size_t best = first;
    // Moments that take no time at the very end belong to the last column.
    for (size_t m = first + 1;
         m < walk.spans.size() && (walk.spans[m].start < end || c + 1 == columns); ++m) {
      if (walk.spans[m].total() > walk.spans[best].total()) best = m;
    }
    result.push_back(walk.spans[best]);
    result.back().start = start;
    result.back().end = end;
  }
  return result;
}

}  // namespace reprise::report
