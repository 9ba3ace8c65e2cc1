#include "plan/pipeline/messages.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace reprise::internal::pipeline {
namespace {

using Key = std::tuple<int32_t, int32_t, MessageKind>;  // the part that sends, micro-batch, kind
using Line = std::pair<int32_t, int32_t>;               // the devices of a link

class MessagePlacer {
 public:
  MessagePlacer(const Layout& layout, const Orders& orders, const Slack& slack)
      : layout_(layout), orders_(orders), slack_(slack), slots_(orders.size()) {
    for (size_t d = 0; d < orders.size(); ++d) slots_[d].resize(orders[d].size() + 1);
  }

  Orders place() {
    for (size_t d = 0; d < orders_.size(); ++d) note_sends(d);
    for (size_t d = 0; d < orders_.size(); ++d) note_needs(d);
    for (const auto& [line, messages] : lines_) place_receives(line, messages);
    Orders result(orders_.size());
    for (size_t d = 0; d < orders_.size(); ++d) write(d, result[d]);
    return result;
  }

 private:
  // A Slot has the actions that stand before a compute action, behind the sends of the previous
  // compute action.
  struct Slot {
    std::vector<PipelineAction> sends, waits, receives;
  };

  int32_t device_of(int64_t part) const { return layout_.device[part]; }
  bool exists(int64_t part) const {
    return part >= 0 && part < static_cast<int64_t>(layout_.parts());
  }

  // Returns the other part of the message that an action makes or reads, or -1.
  int64_t other_part(const PipelineAction& action, int64_t step) const {
    const int64_t other = action.part + step;
    if (!exists(other) || device_of(other) == device_of(action.part)) return -1;
    return other;
  }

  static bool gives_gradient(PipelineActionKind kind) {
    return kind == PipelineActionKind::kBackward || kind == PipelineActionKind::kInputGradient;
  }

  void note_sends(size_t d) {
    const std::vector<PipelineAction>& order = orders_[d];
    std::map<std::pair<int32_t, int32_t>, size_t>
        backward;  // its position, by part and micro-batch
    for (size_t a = 0; a < order.size(); ++a) {
      if (gives_gradient(order[a].kind)) backward[{order[a].part, order[a].micro_batch}] = a;
    }
    for (size_t a = 0; a < order.size(); ++a) {
      const PipelineAction& action = order[a];
      const bool forward = action.kind == PipelineActionKind::kForward;
      if (!forward && !gives_gradient(action.kind)) continue;
      const int64_t other = other_part(action, forward ? 1 : -1);
      if (other < 0) continue;
      const MessageKind kind = forward ? MessageKind::kActivation : MessageKind::kGradient;
      PipelineAction message = action;
      message.message = kind;
      message.kind = PipelineActionKind::kSend;
      slots_[d][a + 1].sends.push_back(message);
      message.kind = PipelineActionKind::kWait;
      size_t at = std::min(order.size(), a + 1 + static_cast<size_t>(slack_.late));
      if (forward) {
        const auto found = backward.find({action.part, action.micro_batch});
        if (found != backward.end()) at = std::min(at, std::max(found->second, a + 1));
      }
      slots_[d][at].waits.push_back(message);
      lines_[{static_cast<int32_t>(d), device_of(other)}].push_back(
          {action.part, action.micro_batch, kind});
    }
  }

  void note_needs(size_t d) {
    for (size_t a = 0; a < orders_[d].size(); ++a) {
      const PipelineAction& action = orders_[d][a];
      const bool forward = action.kind == PipelineActionKind::kForward;
      if (!forward && !gives_gradient(action.kind)) continue;
      const int64_t sender = other_part(action, forward ? -1 : 1);
      if (sender < 0) continue;
      const size_t early = std::min(a, static_cast<size_t>(slack_.early));
      needed_[{static_cast<int32_t>(sender), action.micro_batch,
               forward ? MessageKind::kActivation : MessageKind::kGradient}] = a - early;
    }
  }

  // A message that is sent later may not have its room made earlier.
  void place_receives(const Line& line, const std::vector<Key>& messages) {
    const auto d = static_cast<size_t>(line.second);
    std::vector<size_t> at(messages.size());
    size_t least = orders_[d].size();
    for (size_t k = messages.size(); k-- > 0;) {
      const auto found = needed_.find(messages[k]);
      if (found != needed_.end()) least = std::min(least, found->second);
      at[k] = least;
    }
    for (size_t k = 0; k < messages.size(); ++k) {
      const auto& [sender, micro_batch, kind] = messages[k];
      const int32_t receiver = kind == MessageKind::kActivation ? sender + 1 : sender - 1;
      slots_[d][at[k]].receives.push_back(
          {PipelineActionKind::kReceive, receiver, micro_batch, kind});
    }
  }

  void write(size_t d, std::vector<PipelineAction>& order) const {
    for (size_t a = 0; a <= orders_[d].size(); ++a) {
      const Slot& slot = slots_[d][a];
      order.insert(order.end(), slot.sends.begin(), slot.sends.end());
      order.insert(order.end(), slot.waits.begin(), slot.waits.end());
      order.insert(order.end(), slot.receives.begin(), slot.receives.end());
      if (a < orders_[d].size()) order.push_back(orders_[d][a]);
    }
  }

  const Layout& layout_;
  const Orders& orders_;
  const Slack& slack_;
  std::vector<std::vector<Slot>> slots_;  // by device, before each compute action and at the end
  std::map<Line, std::vector<Key>> lines_;
  std::map<Key, size_t> needed_;  // the compute action before which room is made at the latest
};

}  // namespace

Orders with_messages(const Layout& layout, const Orders& orders, const Slack& slack) {
  return MessagePlacer(layout, orders, slack).place();
}

}  // namespace reprise::internal::pipeline
