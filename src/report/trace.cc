// This file writes Chrome's trace event format. Perfetto reads it as legacy JSON. The slices of a
// track must nest; runs that follow each other do, and so do the copies of a channel. Times are
// microseconds, written with three decimals so that no nanosecond is lost.
#include <fmt/format.h>

#include "report/channels.h"
#include "report/facts.h"
#include "report/markup.h"

namespace reprise {

namespace {

using report::channel_name;
using report::Facts;
using report::kHoldings;
using report::RunSpan;
using report::script_string;

constexpr int kPlanned = 1;
constexpr int kMeasured = 2;

std::string micros(int64_t nanos) { return fmt::format("{}.{:03}", nanos / 1000, nanos % 1000); }

class Trace {
 public:
  explicit Trace(const Facts& facts) : facts_(facts) {}

  std::string write() {
    const std::string& name = facts_.input.problem.id.name;
    process(kPlanned, "planned: " + name);
    for (const RunSpan& moment : facts_.plan.spans) planned(moment);
    devices();
    waits();
    channels();
    const Timeline& timeline = facts_.plan.timeline;
    counter(kPlanned, timeline.time.count(),
            timeline.steps.empty() ? timeline.initial : timeline.steps.back().after);
    if (const RunLog* log = facts_.run_log()) {
      process(kMeasured, fmt::format("measured on {}: {}", log->device, name));
      measured(*log);
    }
    return "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n" + events_ + "\n]}\n";
  }

 private:
  void event(const std::string& text) {
    if (!events_.empty()) events_ += ",\n";
    events_ += "{" + text + "}";
  }

  void process(int id, const std::string& name) {
    event(fmt::format(R"("ph":"M","pid":{},"tid":1,"name":"process_name","args":{{"name":{}}})", id,
                      script_string(name)));
    track(id, 1, "schedule");
  }

  void track(int process, int id, const std::string& name) {
    event(fmt::format(R"("ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":{}}})",
                      process, id, script_string(name)));
  }

  void counter(int process, int64_t at, Bytes bytes) {
    event(fmt::format(R"("ph":"C","pid":{},"name":"device bytes","ts":{},"args":{{"bytes":{}}})",
                      process, micros(at), bytes.count()));
  }

  void slice(int process, const RunSpan& moment, int64_t start, int64_t time, Bytes bytes) {
    run(process, 1, moment, start, time, fmt::format(R"(,"bytes":{})", bytes.count()));
    counter(process, start, bytes);
  }

  void run(int process, int track, const RunSpan& moment, int64_t start, int64_t time,
           const std::string& more) {
    const Op& op = facts_.graph.ops[moment.op];
    event(fmt::format(R"("ph":"X","pid":{},"tid":{},"ts":{},"dur":{},"name":{},"cat":"{}",)"
                      R"("args":{{"action":{},"variant":{}{}}})",
                      process, track, micros(start), micros(time),
                      script_string(facts_.names[moment.op]), to_string(moment.purpose),
                      moment.action, script_string(op.variants[moment.variant].name), more));
  }

  // Gives each device beside the first one a track with its runs. The tracks stand behind those of
  // the channels.
  void devices() {
    const Machine& machine = facts_.input.machine;
    for (size_t m = 1; m < machine.memories.size(); ++m) {
      if (!computes(machine, static_cast<int32_t>(m))) continue;
      track(kPlanned, track_of_device(static_cast<int32_t>(m)), machine.memories[m].name);
    }
    for (const RunSpan& moment : facts_.plan.elsewhere) {
      const TimelineStep& step = facts_.plan.timeline.steps[moment.action];
      run(kPlanned, track_of_device(step.device), moment, step.start.count(), step.time.count(),
          {});
    }
  }

  void planned(const RunSpan& moment) {
    const TimelineStep& step = facts_.plan.timeline.steps[moment.action];
    const int64_t start = step.start.count();
    slice(kPlanned, moment, start, step.time.count(), moment.total());
    std::string kinds;
    for (size_t h = 0; h < kHoldings; ++h) {
      kinds += fmt::format(R"({}"{}":{})", h == 0 ? "" : ",",
                           to_string(static_cast<report::Holding>(h)), moment.held[h].count());
    }
    event(fmt::format(R"("ph":"C","pid":{},"name":"bytes by kind","ts":{},"args":{{{}}})", kPlanned,
                      micros(start), kinds));
  }

  // Shows on the track of a device what its runs wait for.
  void waits() {
    const std::vector<Action>& actions = facts_.input.plan.actions;
    for (size_t a = 0; a < actions.size(); ++a) {
      const TimelineStep& step = facts_.plan.timeline.steps[a];
      if (actions[a].kind != ActionKind::kWait || step.time == Nanos(0)) continue;
      event(fmt::format(R"("ph":"X","pid":{},"tid":{},"ts":{},"dur":{},"name":{},"cat":"wait",)"
                        R"("args":{{"action":{}}})",
                        kPlanned, track_of_device(step.device), micros(step.start.count()),
                        micros(step.time.count()), script_string("wait for " + actions[a].id), a));
    }
  }

  // Gives each channel a track with its copies. Channels that take turns have their own tracks, too.
  void channels() {
    const Machine& machine = facts_.input.machine;
    for (size_t c = 0; c < machine.channels.size(); ++c) {
      track(kPlanned, track_of(c), channel_name(machine, c));
    }
    for (const Transfer& transfer : facts_.plan.timeline.transfers) {
      const Value& value = facts_.graph.values[transfer.value];
      event(fmt::format(
          R"("ph":"X","pid":{},"tid":{},"ts":{},"dur":{},"name":{},"cat":"copy",)"
          R"("args":{{"action":{},"bytes":{},"queued_ns":{}}})",
          kPlanned, track_of(static_cast<size_t>(transfer.channel)), micros(transfer.start.count()),
          micros((transfer.end - transfer.start).count()), script_string(value.id), transfer.action,
          value.bytes.count(), (transfer.start - transfer.issued).count()));
    }
  }

  static int track_of(size_t channel) { return static_cast<int>(channel) + 2; }
  int track_of_device(int32_t memory) const {
    return memory == 0 ? 1 : track_of(facts_.input.machine.channels.size()) + memory;
  }

  // Runs stand end to end, because a log has no times between them.
  void measured(const RunLog& log) {
    size_t moment = 0;
    Nanos at;
    for (const RunLogEntry& entry : log.actions) {
      while (facts_.plan.spans[moment].action != entry.action) ++moment;
      slice(kMeasured, facts_.plan.spans[moment], at.count(), entry.measured_time.count(),
            entry.measured_bytes);
      at += entry.measured_time;
    }
  }

  const Facts& facts_;
  std::string events_;
};

}  // namespace

std::string chrome_trace(const ReportInput& input) {
  const Facts facts(input);
  return Trace(facts).write();
}

}  // namespace reprise
