#include "model/pipeline_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <string>

namespace reprise::internal {

UnknownInOrder::UnknownInOrder(const PipelinePlace& at, const std::string& message)
    : InputError(message, {.pointer = fmt::format("/devices/{}/order/{}", at.device, at.action)}),
      place(at) {}

PipelineMessages::PipelineMessages(const Pipeline& pipeline, const PipelinePlan& plan)
    : plan_(plan), micro_batches_(pipeline.micro_batches) {
  for (size_t q = 0; q + 1 < plan.parts.size(); ++q) {
    const int32_t before = plan.parts[q].device, behind = plan.parts[q + 1].device;
    const bool crosses = before != behind;
    links_.push_back(crosses ? find_link(pipeline, before, behind) : kNone);
    links_.push_back(crosses ? find_link(pipeline, behind, before) : kNone);
  }
}

namespace {

class OrderWalk {
 public:
  OrderWalk(const Pipeline& pipeline, const PipelinePlan& plan, const PipelineMessages& messages)
      : plan_(plan),
        messages_(messages),
        next_(plan.devices.size(), 0),
        states_(static_cast<size_t>(messages.count())),
        queues_(pipeline.links.size()) {}

  std::vector<PipelinePlace> walk(std::vector<PipelineFlaw>& stuck) {
    // A device is looked at again when something that it may wait for has happened.
    for (auto d = static_cast<int32_t>(next_.size()); d-- > 0;) work_.push_back(d);
    while (!work_.empty()) {
      const int32_t device = work_.back();
      work_.pop_back();
      advance(device);
    }
    for (size_t d = 0; d < next_.size(); ++d) {
      const std::vector<PipelineAction>& order = plan_.devices[d].order;
      if (next_[d] == order.size()) continue;
      const PipelinePlace place{static_cast<int32_t>(d), static_cast<int64_t>(next_[d])};
      stuck.push_back({place, reason(messages_.of(order[next_[d]]))});
    }
    return std::move(places_);
  }

 private:
  struct State {
    bool sent = false, posted = false, carried = false;
  };

  // Runs the device as far as it goes.
  void advance(int32_t device) {
    const std::vector<PipelineAction>& order = plan_.devices[device].order;
    for (size_t& a = next_[device]; a < order.size(); ++a) {
      const int64_t message = messages_.of(order[a]);
      switch (order[a].kind) {
        case PipelineActionKind::kSend:
          states_[message].sent = true;
          queues_[messages_.link(message)].push_back(message);
          carry(message);
          break;
        case PipelineActionKind::kReceive:
          states_[message].posted = true;
          carry(message);
          break;
        default:
          if (message >= 0 && !states_[message].carried) return;
          break;
      }
      places_.push_back({device, static_cast<int64_t>(a)});
    }
  }

  // Lets the link of this message carry what is ready.
  void carry(int64_t message) {
    std::deque<int64_t>& queue = queues_[messages_.link(message)];
    for (; !queue.empty() && states_[queue.front()].posted; queue.pop_front()) {
      states_[queue.front()].carried = true;
      work_.push_back(messages_.sender(queue.front()));
      work_.push_back(messages_.receiver(queue.front()));
    }
  }

  std::string reason(int64_t message) const {
    const std::string what =
        fmt::format("the {} of part {} for micro-batch {}", to_string(messages_.kind(message)),
                    messages_.sending_part(message), messages_.micro_batch(message));
    const std::string& from = plan_.devices[messages_.sender(message)].name;
    const std::string& to = plan_.devices[messages_.receiver(message)].name;
    if (!states_[message].sent)
      return fmt::format("waits for {}, which {} does not send", what, from);
    if (!states_[message].posted) {
      return fmt::format("waits for {}, for which {} makes no room", what, to);
    }
    return fmt::format("waits for {}, behind a message that the link from {} to {} cannot carry",
                       what, from, to);
  }

  const PipelinePlan& plan_;
  const PipelineMessages& messages_;
  std::vector<size_t> next_;  // by device
  std::vector<State> states_;
  std::vector<std::deque<int64_t>> queues_;  // by link: what was handed over
  std::vector<int32_t> work_;
  std::vector<PipelinePlace> places_;
};

}  // namespace

std::vector<PipelinePlace> in_one_order(const Pipeline& pipeline, const PipelinePlan& plan,
                                        const PipelineMessages& messages,
                                        std::vector<PipelineFlaw>& stuck) {
  return OrderWalk(pipeline, plan, messages).walk(stuck);
}

}  // namespace reprise::internal
