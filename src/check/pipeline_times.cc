#include "check/pipeline_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace reprise::internal::check {
namespace {

class ClockWalk {
 public:
  ClockWalk(const Pipeline& pipeline, const PipelinePlan& plan, const PipelineStructure& structure,
            const std::vector<std::vector<Nanos>>& times)
      : pipeline_(pipeline), plan_(plan), structure_(structure), times_(times) {
    const size_t devices = plan.devices.size(), messages = structure.messages.size();
    next_.assign(devices, 0);
    now_.assign(devices, Nanos(0));
    result_.steps.resize(devices);
    sent_.resize(messages);
    posted_.resize(messages);
    ended_.resize(messages);
    result_.messages.resize(messages);
    link_next_.assign(pipeline.links.size(), 0);
    link_free_.assign(pipeline.links.size(), Nanos(0));
    role_.resize(devices);
    for (size_t d = 0; d < devices; ++d) role_[d].assign(plan.devices[d].order.size(), -1);
    for (size_t k = 0; k < messages; ++k) note_message(k);
    size_t begin = 0;
    for (size_t l = 0; l < link_next_.size(); ++l) {
      link_next_[l] = begin;
      begin = std::max(begin, structure.link_ends[l]);
    }
  }

  PipelineTimes walk() {
    // A device is looked at again when something that it may wait for has happened.
    std::vector<size_t> work;
    for (size_t d = plan_.devices.size(); d-- > 0;) work.push_back(d);
    while (!work.empty()) {
      const size_t device = work.back();
      work.pop_back();
      advance(device, work);
    }
    report_stuck();
    return std::move(result_);
  }

 private:
  void note_message(size_t k) {
    const MessageEnds& ends = structure_.messages[k];
    const auto message = static_cast<int64_t>(k);
    const auto sender = static_cast<size_t>(ends.sender);
    const auto receiver = static_cast<size_t>(ends.receiver);
    role_[sender][ends.send] = message;
    role_[sender][ends.wait] = message;
    role_[receiver][ends.receive] = message;
    // The compute action that reads the message.
    const bool activation = ends.message == MessageKind::kActivation;
    const auto reader = static_cast<size_t>(ends.part + (activation ? 1 : -1));
    const PartActions& actions = structure_.parts[reader][ends.micro_batch];
    role_[receiver][activation ? actions.forward : actions.backward] = message;
  }

  // Runs the device as far as it goes.
  void advance(size_t device, std::vector<size_t>& work) {
    const std::vector<PipelineAction>& order = plan_.devices[device].order;
    for (size_t& a = next_[device]; a < order.size(); ++a) {
      const int64_t message = role_[device][a];
      const auto k = static_cast<size_t>(std::max<int64_t>(message, 0));
      Nanos start = now_[device];
      switch (order[a].kind) {
        case PipelineActionKind::kSend:
          sent_[k] = start;
          carry(k, work);
          break;
        case PipelineActionKind::kReceive:
          posted_[k] = start;
          carry(k, work);
          break;
        case PipelineActionKind::kWait:
          if (!ended_[k]) return;
          now_[device] = std::max(start, *ended_[k]);
          break;
        default:
          if (message >= 0) {
            if (!ended_[k]) return;
            start = std::max(start, *ended_[k]);
          }
          now_[device] = start + times_[device][a];
          break;
      }
      result_.steps[device].push_back({start, now_[device]});
    }
  }

  // Lets the link of this message carry what is ready.
  void carry(size_t message, std::vector<size_t>& work) {
    const auto link = static_cast<size_t>(structure_.messages[message].link);
    for (size_t& k = link_next_[link]; k < structure_.link_ends[link]; ++k) {
      if (!sent_[k] || !posted_[k]) return;
      const MessageEnds& ends = structure_.messages[k];
      const Nanos start = std::max({*sent_[k], *posted_[k], link_free_[link]});
      const Nanos end = start + message_time(pipeline_.links[link], ends.bytes);
      result_.messages[k] = {.part = ends.part,
                             .micro_batch = ends.micro_batch,
                             .message = ends.message,
                             .link = ends.link,
                             .bytes = ends.bytes,
                             .sent = *sent_[k],
                             .posted = *posted_[k],
                             .start = start,
                             .end = end};
      ended_[k] = link_free_[link] = end;
      work.push_back(static_cast<size_t>(ends.sender));
      work.push_back(static_cast<size_t>(ends.receiver));
    }
  }

  void report_stuck() {
    bool any = false;
    std::vector<int64_t> stuck(plan_.devices.size(), -1);
    std::vector<std::string> why(plan_.devices.size());
    for (size_t d = 0; d < plan_.devices.size(); ++d) {
      if (next_[d] == plan_.devices[d].order.size()) continue;
      any = true;
      stuck[d] = static_cast<int64_t>(next_[d]);
      const auto k = static_cast<size_t>(role_[d][next_[d]]);
      why[d] = reason(k);
    }
    if (!any) return;
    result_.stuck = std::move(stuck);
    result_.why = std::move(why);
  }

  std::string reason(size_t message) const {
    const MessageEnds& ends = structure_.messages[message];
    const std::string what = fmt::format("the {} of part {} for micro-batch {}",
                                         to_string(ends.message), ends.part, ends.micro_batch);
    const std::string& sender = plan_.devices[ends.sender].name;
    const std::string& receiver = plan_.devices[ends.receiver].name;
    if (!sent_[message]) return fmt::format("waits for {}, which {} does not send", what, sender);
    if (!posted_[message]) {
      return fmt::format("waits for {}, for which {} makes no room", what, receiver);
    }
    return fmt::format("waits for {}, behind a message that the link from {} to {} cannot carry",
                       what, sender, receiver);
  }

  const Pipeline& pipeline_;
  const PipelinePlan& plan_;
  const PipelineStructure& structure_;
  const std::vector<std::vector<Nanos>>& times_;
  PipelineTimes result_;
  std::vector<size_t> next_;  // by device
  std::vector<Nanos> now_;    // by device: when the actions before the next one are over
  // By device and action: the message that it hands over, makes room for, waits for or reads; or -1.
  std::vector<std::vector<int64_t>> role_;
  std::vector<std::optional<Nanos>> sent_, posted_, ended_;  // by message
  std::vector<size_t> link_next_;
  std::vector<Nanos> link_free_;
};

}  // namespace

PipelineTimes times_of(const Pipeline& pipeline, const PipelinePlan& plan,
                       const PipelineStructure& structure,
                       const std::vector<std::vector<Nanos>>& times) {
  return ClockWalk(pipeline, plan, structure, times).walk();
}

}  // namespace reprise::internal::check
