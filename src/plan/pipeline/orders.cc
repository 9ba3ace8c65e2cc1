#include "plan/pipeline/orders.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "plan/pipeline/bound.h"

namespace reprise::internal::pipeline {
namespace {

PipelineAction compute(PipelineActionKind kind, size_t part, int64_t micro_batch) {
  return {kind, static_cast<int32_t>(part), static_cast<int32_t>(micro_batch)};
}

Orders empty_orders(const Pipeline& pipeline) { return Orders(pipeline.devices.size()); }

// Runs `forwards` of them, then a backward and a forward in turn, then the rest.
void alternate(const std::vector<PipelineAction>& forwards,
               const std::vector<PipelineAction>& backwards, size_t first,
               std::vector<PipelineAction>& order) {
  first = std::min(first, forwards.size());
  order.insert(order.end(), forwards.begin(), forwards.begin() + static_cast<int64_t>(first));
  for (size_t k = 0; k < backwards.size(); ++k) {
    order.push_back(backwards[k]);
    if (first + k < forwards.size()) order.push_back(forwards[first + k]);
  }
}

}  // namespace

Orders gpipe_order(const Pipeline& pipeline, const Layout& layout) {
  Orders orders = empty_orders(pipeline);
  for (size_t q = 0; q < layout.parts(); ++q) {
    auto& order = orders[layout.device[q]];
    for (int64_t m = 0; m < pipeline.micro_batches; ++m) {
      order.push_back(compute(PipelineActionKind::kForward, q, m));
    }
  }
  for (size_t q = layout.parts(); q-- > 0;) {
    auto& order = orders[layout.device[q]];
    for (int64_t m = 0; m < pipeline.micro_batches; ++m) {
      order.push_back(compute(PipelineActionKind::kBackward, q, m));
    }
  }
  return orders;
}

Orders one_f_one_b_order(const Pipeline& pipeline, const Layout& layout, int64_t less) {
  Orders orders = empty_orders(pipeline);
  for (size_t q = 0; q < layout.parts(); ++q) {
    std::vector<PipelineAction> forwards, backwards;
    for (int64_t m = 0; m < pipeline.micro_batches; ++m) {
      forwards.push_back(compute(PipelineActionKind::kForward, q, m));
      backwards.push_back(compute(PipelineActionKind::kBackward, q, m));
    }
    const int64_t flight = std::max<int64_t>(1, static_cast<int64_t>(layout.parts() - q) - less);
    alternate(forwards, backwards, static_cast<size_t>(flight), orders[layout.device[q]]);
  }
  return orders;
}

Orders interleaved_order(const Pipeline& pipeline, const Layout& layout, int64_t extra) {
  Orders orders = empty_orders(pipeline);
  const auto devices =
      static_cast<size_t>(1 + *std::max_element(layout.device.begin(), layout.device.end()));
  const auto group = static_cast<int64_t>(devices);
  for (size_t d = 0; d < devices; ++d) {
    std::vector<size_t> mine;
    for (size_t q = d; q < layout.parts(); q += devices) mine.push_back(q);
    std::vector<PipelineAction> forwards, backwards;
    for (int64_t begin = 0; begin < pipeline.micro_batches; begin += group) {
      const int64_t end = std::min(begin + group, pipeline.micro_batches);
      for (size_t c = 0; c < mine.size(); ++c) {
        for (int64_t m = begin; m < end; ++m) {
          forwards.push_back(compute(PipelineActionKind::kForward, mine[c], m));
          backwards.push_back(compute(PipelineActionKind::kBackward, mine[mine.size() - 1 - c], m));
        }
      }
    }
    const auto before =
        static_cast<int64_t>((mine.size() - 1) * devices + 2 * (devices - 1 - d)) + 1 + extra;
    alternate(forwards, backwards, static_cast<size_t>(before), orders[d]);
  }
  return orders;
}

Orders delayed_weights_order(const Pipeline& pipeline, const Layout& layout,
                             const std::vector<int64_t>& in_flight) {
  Orders orders = empty_orders(pipeline);
  const int64_t count = pipeline.micro_batches;
  for (size_t q = 0; q < layout.parts(); ++q) {
    auto& order = orders[layout.device[q]];
    const auto warm_up = std::min(static_cast<int64_t>(layout.parts() - q), count);
    const int64_t delay = in_flight[q] - static_cast<int64_t>(layout.parts() - q);
    for (int64_t m = 0; m < warm_up; ++m) {
      order.push_back(compute(PipelineActionKind::kForward, q, m));
    }
    for (int64_t m = 0; m < count + delay; ++m) {
      if (m < count) order.push_back(compute(PipelineActionKind::kInputGradient, q, m));
      if (m >= delay && m - delay < count) {
        order.push_back(compute(PipelineActionKind::kWeightGradient, q, m - delay));
      }
      if (m + warm_up < count)
        order.push_back(compute(PipelineActionKind::kForward, q, m + warm_up));
    }
  }
  return orders;
}

namespace {

// A ZeroBubble is a simulation of one part a device that decides what a device runs when it is
// free.
class ZeroBubble {
 public:
  ZeroBubble(const Pipeline& pipeline, const Layout& layout, const std::vector<PartTimes>& times,
             const std::vector<int64_t>& in_flight)
      : pipeline_(pipeline), layout_(layout), times_(times), in_flight_(in_flight) {
    const size_t parts = layout.parts();
    states_.resize(parts);
    orders_ = empty_orders(pipeline);
    messages_.resize(parts);
    for (size_t q = 0; q + 1 < parts; ++q) {
      const auto boundary = layout.cuts[q + 1];
      messages_[q].forward = message_between(pipeline, layout.device[q], layout.device[q + 1],
                                             boundary_bytes(pipeline.chain, boundary));
      messages_[q + 1].backward =
          message_between(pipeline, layout.device[q + 1], layout.device[q],
                          boundary_gradient_bytes(pipeline.chain, boundary));
    }
    for (PartState& state : states_) {
      state.activations.assign(static_cast<size_t>(pipeline.micro_batches), kNever);
      state.gradients.assign(static_cast<size_t>(pipeline.micro_batches), kNever);
    }
    std::ranges::fill(states_.front().activations, Nanos(0));
  }

  Orders run() {
    while (step()) {
    }
    return std::move(orders_);
  }

 private:
  static constexpr Nanos kNever{std::numeric_limits<int64_t>::max()};

  struct PartState {
    Nanos now;
    int64_t forwards = 0, inputs = 0, weights = 0;  // how many have run
    std::vector<Nanos> activations, gradients;      // by micro-batch: when they are there
  };
  struct Messages {
    Nanos forward, backward;
  };

  Nanos ready(const std::vector<Nanos>& times, int64_t micro_batch) const {
    return micro_batch < pipeline_.micro_batches ? times[micro_batch] : kNever;
  }

  // A Choice is the next action of the part and its start: the action that can begin first. Where
  // several can, the order is input gradient, forward, weight gradient.
  struct Choice {
    Nanos start = kNever;
    PipelineActionKind kind = PipelineActionKind::kForward;
  };
  Choice choose(size_t q) const {
    const PartState& state = states_[q];
    Choice best;
    const auto offer = [&](Nanos at, PipelineActionKind kind) {
      if (at == kNever) return;
      const Nanos start = std::max(at, state.now);
      if (start < best.start) best = {start, kind};
    };
    if (state.inputs < state.forwards) {
      offer(ready(state.gradients, state.inputs), PipelineActionKind::kInputGradient);
    }
    if (state.forwards - state.weights < in_flight_[q]) {
      offer(ready(state.activations, state.forwards), PipelineActionKind::kForward);
    }
    if (state.weights < state.inputs) offer(state.now, PipelineActionKind::kWeightGradient);
    return best;
  }

  bool step() {
    size_t part = layout_.parts();
    Choice best;
    for (size_t q = 0; q < layout_.parts(); ++q) {
      const Choice choice = choose(q);
      if (choice.start < best.start) best = choice, part = q;
    }
    if (part == layout_.parts()) return false;
    perform(part, best);
    return true;
  }

  void perform(size_t q, const Choice& choice) {
    PartState& state = states_[q];
    int64_t micro_batch = 0;
    Nanos time;
    switch (choice.kind) {
      case PipelineActionKind::kForward:
        micro_batch = state.forwards++;
        time = times_[q].forward;
        break;
      case PipelineActionKind::kInputGradient:
        micro_batch = state.inputs++;
        time = times_[q].input_gradient;
        break;
      default:
        micro_batch = state.weights++;
        time = times_[q].weight_gradient;
        break;
    }
    state.now = choice.start + time;
    const auto m = static_cast<size_t>(micro_batch);
    if (choice.kind == PipelineActionKind::kForward) {
      if (layout_.last(q)) {
        state.gradients[m] = state.now;
      } else {
        states_[q + 1].activations[m] = state.now + messages_[q].forward;
      }
    }
    if (choice.kind == PipelineActionKind::kInputGradient && q > 0) {
      states_[q - 1].gradients[m] = state.now + messages_[q].backward;
    }
    orders_[layout_.device[q]].push_back(compute(choice.kind, q, micro_batch));
  }

  const Pipeline& pipeline_;
  const Layout& layout_;
  const std::vector<PartTimes>& times_;
  const std::vector<int64_t>& in_flight_;
  std::vector<PartState> states_;
  std::vector<Messages> messages_;
  Orders orders_;
};

}  // namespace

Orders zero_bubble_order(const Pipeline& pipeline, const Layout& layout,
                         const std::vector<PartTimes>& times,
                         const std::vector<int64_t>& in_flight) {
  return ZeroBubble(pipeline, layout, times, in_flight).run();
}

}  // namespace reprise::internal::pipeline
