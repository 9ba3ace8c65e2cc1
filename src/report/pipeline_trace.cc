// Writes a pipeline in Chrome's trace event format, and its order in that of PyTorch's pipelining.
#include <fmt/format.h>

#include <string>

#include "report/markup.h"
#include "reprise/report/pipeline.h"

namespace reprise {
namespace {

using report::script_string;

constexpr int kDevices = 1, kLinks = 2;

std::string micros_of(Nanos time) {
  return fmt::format("{}.{:03}", time.count() / 1000, time.count() % 1000);
}

class PipelineTrace {
 public:
  PipelineTrace(const Pipeline& pipeline, const PipelinePlan& plan,
                const PipelineTimeline& timeline)
      : pipeline_(pipeline), plan_(plan), timeline_(timeline) {}

  std::string write() {
    name_process(kDevices, "devices: " + pipeline_.name);
    for (size_t d = 0; d < plan_.devices.size(); ++d) write_device(d);
    name_process(kLinks, "links: " + pipeline_.name);
    for (size_t l = 0; l < pipeline_.links.size(); ++l) {
      const Link& link = pipeline_.links[l];
      name_track(kLinks, l,
                 pipeline_.devices[link.from].name + " to " + pipeline_.devices[link.to].name);
    }
    for (const MessageTransfer& message : timeline_.messages) {
      slice(kLinks, static_cast<size_t>(message.link), message.start, message.end,
            fmt::format("{} {}.{}", to_string(message.message), message.part, message.micro_batch),
            to_string(message.message), fmt::format("\"bytes\":{}", message.bytes.count()));
    }
    return "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n" + events_ + "\n]}\n";
  }

 private:
  void event(const std::string& text) {
    if (!events_.empty()) events_ += ",\n";
    events_ += "{" + text + "}";
  }
  void name_process(int id, const std::string& name) {
    event(fmt::format(R"("ph":"M","pid":{},"tid":1,"name":"process_name","args":{{"name":{}}})", id,
                      script_string(name)));
  }
  void name_track(int process, size_t id, const std::string& name) {
    event(fmt::format(R"("ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":{}}})",
                      process, id + 1, script_string(name)));
  }
  void slice(int process, size_t track, Nanos start, Nanos end, const std::string& name,
             const std::string& category, const std::string& arguments) {
    event(fmt::format(R"("ph":"X","pid":{},"tid":{},"ts":{},"dur":{},"name":{},"cat":"{}",)"
                      R"("args":{{{}}})",
                      process, track + 1, micros_of(start), micros_of(end - start),
                      script_string(name), category, arguments));
  }

  void write_device(size_t d) {
    name_track(kDevices, d, plan_.devices[d].name);
    for (size_t a = 0; a < plan_.devices[d].order.size(); ++a) {
      const PipelineAction& action = plan_.devices[d].order[a];
      const PipelineStep& step = timeline_.devices[d].steps[a];
      if (!is_compute(action.kind) && step.start == step.end) continue;
      slice(kDevices, d, step.start, step.end,
            fmt::format("{} {}.{}", to_string(action.kind), action.part, action.micro_batch),
            to_string(action.kind), fmt::format("\"action\":{}", a));
    }
  }

  const Pipeline& pipeline_;
  const PipelinePlan& plan_;
  const PipelineTimeline& timeline_;
  std::string events_;
};

char letter_of(PipelineActionKind kind) {
  switch (kind) {
    case PipelineActionKind::kForward:
      return 'F';
    case PipelineActionKind::kBackward:
      return 'B';
    case PipelineActionKind::kInputGradient:
      return 'I';
    case PipelineActionKind::kWeightGradient:
      return 'W';
    case PipelineActionKind::kReceive:
    case PipelineActionKind::kSend:
    case PipelineActionKind::kWait:
      return 0;
  }
  return 0;
}

}  // namespace

std::string pipeline_trace(const Pipeline& pipeline, const PipelinePlan& plan,
                           const PipelineTimeline& timeline) {
  return PipelineTrace(pipeline, plan, timeline).write();
}

std::string pytorch_order(const PipelinePlan& plan) {
  std::string text;
  for (const DevicePlan& device : plan.devices) {
    std::string line;
    for (const PipelineAction& action : device.order) {
      const char letter = letter_of(action.kind);
      if (letter == 0) continue;
      line +=
          fmt::format("{}{}{}{}", line.empty() ? "" : ",", action.part, letter, action.micro_batch);
    }
    text += line + "\n";
  }
  return text;
}

}  // namespace reprise
