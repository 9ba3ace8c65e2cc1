#include "check/pipeline_structure.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "model/pipeline_order.h"

namespace reprise::internal::check {
namespace {

constexpr int32_t kNoDevice = -1;

// A MessageEnds has the positions of a message's actions in the orders of its two devices. -1 stands
// for an action that is not there.
struct MessageEnds {
  int64_t send = -1, wait = -1, receive = -1;
};

// PartActions are the same of a part for a micro-batch.
struct PartActions {
  int64_t forward = -1;
  int64_t backward = -1;  // or its input_gradient
  int64_t weights = -1;   // its weight_gradient
};

class StructureReader {
 public:
  StructureReader(const Pipeline& pipeline, const PipelinePlan& plan, const ReportFault& report)
      : pipeline_(pipeline), plan_(plan), report_(report) {}

  void read() {
    if (!check_devices() || !check_parts()) return;
    messages_.emplace(pipeline_, plan_);
    parts_.assign(plan_.parts.size(), std::vector<PartActions>(micro_batches()));
    ends_.resize(static_cast<size_t>(messages_->count()));
    find_links();
    for (size_t d = 0; d < plan_.devices.size(); ++d) read_order(static_cast<int32_t>(d));
    check_complete();
    check_links();
  }

 private:
  void fault(ViolationKind kind, int32_t device, int64_t action, const std::string& message) {
    report_(kind, device, action, message);
  }

  bool check_devices() {
    if (plan_.devices.size() != pipeline_.devices.size()) {
      fault(ViolationKind::kPart, kNoDevice, -1,
            fmt::format("the plan has {} devices, and the problem has {}", plan_.devices.size(),
                        pipeline_.devices.size()));
      return false;
    }
    bool fine = true;
    for (size_t d = 0; d < plan_.devices.size(); ++d) {
      if (plan_.devices[d].name == pipeline_.devices[d].name) continue;
      fault(ViolationKind::kPart, static_cast<int32_t>(d), -1,
            fmt::format("device {} of the plan is \"{}\", and that of the problem is \"{}\"", d,
                        plan_.devices[d].name, pipeline_.devices[d].name));
      fine = false;
    }
    return fine;
  }

  bool check_parts() {
    const auto stages = static_cast<int64_t>(pipeline_.chain.stages.size());
    int64_t next = 0;
    bool fine = true;
    const auto refuse = [&](const std::string& message) {
      fault(ViolationKind::kPart, kNoDevice, -1, message);
      fine = false;
    };
    for (size_t q = 0; q < plan_.parts.size(); ++q) {
      const PipelinePart& part = plan_.parts[q];
      if (part.device < 0 || static_cast<size_t>(part.device) >= plan_.devices.size()) {
        refuse(fmt::format("part {} lies on no device of the plan", q));
      }
      if (part.first_stage != next || part.stages < 1 || part.stages > stages - next) {
        refuse(
            fmt::format("part {} has {} stages from stage {} on; the next stage of the chain is "
                        "{}, and {} are left",
                        q, part.stages, part.first_stage, next, stages - next));
        return false;
      }
      next += part.stages;
      check_plans(q, refuse);
    }
    if (next != stages) {
      refuse(fmt::format("the parts have {} stages, and the chain has {}", next, stages));
    }
    return fine;
  }

  template <class Refuse>
  void check_plans(size_t q, const Refuse& refuse) const {
    const PipelinePart& part = plan_.parts[q];
    if (static_cast<int64_t>(part.plan_of.size()) != pipeline_.micro_batches) {
      refuse(fmt::format("part {} names plans for {} micro-batches, and there are {}", q,
                         part.plan_of.size(), pipeline_.micro_batches));
      return;
    }
    for (size_t m = 0; m < part.plan_of.size(); ++m) {
      if (part.plan_of[m] >= 0 && static_cast<size_t>(part.plan_of[m]) < part.plans.size())
        continue;
      refuse(
          fmt::format("part {} has no plan {}, which micro-batch {} names", q, part.plan_of[m], m));
      return;
    }
  }

  size_t micro_batches() const { return static_cast<size_t>(pipeline_.micro_batches); }

  void find_links() {
    for (int64_t k = 0; k < messages_->count(); k += pipeline_.micro_batches) {
      if (!messages_->is_there(k) || messages_->link(k) >= 0) continue;
      const int32_t part = messages_->sending_part(k);
      fault(ViolationKind::kUnmatched, kNoDevice, -1,
            fmt::format("part {} sends to part {}, and there is no link from \"{}\" to \"{}\"",
                        part, part + (messages_->is_gradient(k) ? -1 : 1),
                        plan_.devices[messages_->sender(k)].name,
                        plan_.devices[messages_->receiver(k)].name));
    }
  }

  void read_order(int32_t device) {
    const std::vector<PipelineAction>& order = plan_.devices[device].order;
    last_forward_.assign(plan_.parts.size(), -1);
    last_weights_.assign(plan_.parts.size(), -1);
    last_sums_.assign(plan_.parts.size(), -1);
    for (size_t a = 0; a < order.size(); ++a) {
      read_action(device, static_cast<int64_t>(a), order[a]);
    }
  }

  void read_action(int32_t device, int64_t position, const PipelineAction& action) {
    const auto wrong = [&](ViolationKind kind, const std::string& message) {
      fault(kind, device, position, message);
    };
    if (action.part < 0 || static_cast<size_t>(action.part) >= plan_.parts.size()) {
      return wrong(ViolationKind::kUnknownId, "there is no such part");
    }
    if (action.micro_batch < 0 || action.micro_batch >= pipeline_.micro_batches) {
      return wrong(ViolationKind::kUnknownId, "there is no such micro-batch");
    }
    if (plan_.parts[action.part].device != device) {
      return wrong(ViolationKind::kUnknownId, "the part lies on another device");
    }
    if (is_compute(action.kind)) return read_compute(position, action, wrong);
    read_message(position, action, wrong);
  }

  // Returns whether a run is the backward of a stage with weights whose gradients it makes at once.
  bool sums_weights(const PartRun& run) const {
    const auto stage = static_cast<size_t>(run.stage);
    if (run.phase != Phase::kBackward || stage >= pipeline_.chain.stages.size()) {
      return false;  // lower() finds what is wrong with it
    }
    const Stage& on = pipeline_.chain.stages[stage];
    if (on.weight_gradient == Bytes(0)) return false;
    return std::ranges::any_of(on.options, [&](const StageOption& option) {
      return option.name == run.variant && weight_part(pipeline_, stage, option) == nullptr;
    });
  }

  // Returns whether the input gradient of a part sums gradients of weights, of stages that are not
  // split.
  bool sums_in_input_gradient(size_t part, int32_t micro_batch) {
    const PipelinePart& own = plan_.parts[part];
    const int32_t plan = own.plan_of[micro_batch];
    const auto [known, fresh] = sums_.try_emplace({part, plan}, false);
    if (fresh) {
      const std::vector<PartRun>& runs = own.plans[plan].backward;
      known->second =
          std::ranges::any_of(runs, [&](const PartRun& run) { return sums_weights(run); });
    }
    return known->second;
  }

  template <class Wrong>
  void read_compute(int64_t position, const PipelineAction& action, const Wrong& wrong) {
    const auto q = static_cast<size_t>(action.part);
    PartActions& actions = parts_[q][action.micro_batch];
    const auto set = [&](int64_t& place) {
      if (place >= 0) {
        wrong(ViolationKind::kRepeatedRun, fmt::format("action {} did that already", place));
      } else {
        place = position;
      }
    };
    const auto in_order = [&](int64_t& last, const char* what) {
      if (action.micro_batch < last) {
        wrong(ViolationKind::kOrder,
              fmt::format("{} of micro-batch {} came before it", what, last));
      }
      last = std::max<int64_t>(last, action.micro_batch);
    };
    switch (action.kind) {
      case PipelineActionKind::kForward:
        in_order(last_forward_[q], "the forward");
        return set(actions.forward);
      case PipelineActionKind::kBackward:
        in_order(last_weights_[q], "the weight gradients");
        if (sums_in_input_gradient(q, action.micro_batch)) {
          in_order(last_sums_[q], "the input gradient");
        }
        set(actions.backward);
        return set(actions.weights);
      case PipelineActionKind::kInputGradient:
        if (sums_in_input_gradient(q, action.micro_batch)) {
          in_order(last_sums_[q], "the input gradient");
        }
        return set(actions.backward);
      case PipelineActionKind::kWeightGradient:
        in_order(last_weights_[q], "the weight gradients");
        if (actions.backward < 0)
          wrong(ViolationKind::kOrder, "the input_gradient is not before it");
        return set(actions.weights);
      default:
        return;
    }
  }

  template <class Wrong>
  void read_message(int64_t position, const PipelineAction& action, const Wrong& wrong) {
    const int64_t found = messages_->of(action);
    if (found < 0) {
      return wrong(ViolationKind::kUnmatched,
                   "there is no other part, or it lies on the same device: no message goes there");
    }
    MessageEnds& ends = ends_[found];
    int64_t& place = action.kind == PipelineActionKind::kReceive ? ends.receive
                     : action.kind == PipelineActionKind::kSend  ? ends.send
                                                                 : ends.wait;
    if (place >= 0) {
      return wrong(ViolationKind::kRepeatedRun, fmt::format("action {} did that already", place));
    }
    if (action.kind == PipelineActionKind::kWait && ends.send < 0) {
      wrong(ViolationKind::kOrder, "nothing was sent before it");
    }
    place = position;
  }

  void check_complete() {
    for (size_t q = 0; q < plan_.parts.size(); ++q) {
      const int32_t device = plan_.parts[q].device;
      for (size_t m = 0; m < micro_batches(); ++m) {
        const PartActions& actions = parts_[q][m];
        const auto missing = [&](int64_t place, const char* what) {
          if (place >= 0) return;
          fault(ViolationKind::kMissingRun, device, -1,
                fmt::format("the {} of part {} does not run for micro-batch {}", what, q, m));
        };
        missing(actions.forward, "forward");
        missing(actions.backward, "backward");
        if (actions.backward >= 0) missing(actions.weights, "weight gradient");
      }
    }
    for (int64_t k = 0; k < messages_->count(); ++k) {
      if (!messages_->is_there(k)) continue;
      const auto missing = [&](int64_t place, int32_t device, const char* what) {
        if (place >= 0) return;
        fault(ViolationKind::kUnmatched, device, -1,
              fmt::format("the {} of part {} for micro-batch {} has no {}",
                          to_string(messages_->kind(k)), messages_->sending_part(k),
                          messages_->micro_batch(k), what));
      };
      missing(ends_[k].send, messages_->sender(k), "send");
      missing(ends_[k].wait, messages_->sender(k), "wait");
      missing(ends_[k].receive, messages_->receiver(k), "receive");
    }
  }

  // Both ends of a link must have its messages in the same order: many transports match them by it.
  void check_links() {
    std::vector<int64_t> order;
    for (int64_t k = 0; k < messages_->count(); ++k) {
      if (messages_->is_there(k) && messages_->link(k) >= 0) order.push_back(k);
    }
    std::ranges::stable_sort(
        order, {}, [&](int64_t k) { return std::pair(messages_->link(k), ends_[k].send); });
    for (size_t n = 1; n < order.size(); ++n) {
      const int64_t k = order[n], before = order[n - 1];
      if (messages_->link(before) != messages_->link(k)) continue;
      if (ends_[k].receive < 0 || ends_[before].receive < ends_[k].receive) continue;
      fault(ViolationKind::kUnmatched, messages_->receiver(k), ends_[k].receive,
            fmt::format("the link from \"{}\" carries another message before this one, for which "
                        "room is made only later",
                        plan_.devices[messages_->sender(k)].name));
    }
  }

  const Pipeline& pipeline_;
  const PipelinePlan& plan_;
  const ReportFault& report_;
  std::vector<std::vector<PartActions>> parts_;  // by part and micro-batch
  std::optional<internal::PipelineMessages> messages_;
  std::vector<MessageEnds> ends_;  // by message
  // By part: the last micro-batch so far. Sums are those of stages that are not split.
  std::vector<int64_t> last_forward_, last_weights_, last_sums_;
  std::map<std::pair<size_t, int32_t>, bool> sums_;  // by part and plan: sums_in_input_gradient()
};

}  // namespace

void check_structure(const Pipeline& pipeline, const PipelinePlan& plan,
                     const ReportFault& report) {
  StructureReader(pipeline, plan, report).read();
}

}  // namespace reprise::internal::check
