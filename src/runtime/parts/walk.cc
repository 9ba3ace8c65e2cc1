#include "runtime/parts/walk.h"

#include <fmt/format.h>

#include <utility>

#include "reprise/model/errors.h"

namespace reprise::runtime::internal::parts {

void PartWalk::run(const std::vector<PipelineAction>& order) {
  for (const PipelineAction& action : order) {
    switch (action.kind) {
      case PipelineActionKind::kForward:
        forward(action.part, action.micro_batch);
        break;
      case PipelineActionKind::kBackward:
        backward(action.part, action.micro_batch, /*split=*/false);
        break;
      case PipelineActionKind::kInputGradient:
        backward(action.part, action.micro_batch, /*split=*/true);
        break;
      case PipelineActionKind::kWeightGradient:
        own(action.part).weight_gradient(action.micro_batch);
        break;
      case PipelineActionKind::kReceive:
        receive(action);
        break;
      case PipelineActionKind::kSend:
        send(action);
        break;
      case PipelineActionKind::kWait: {
        const Message key{false, action.message, action.part, action.micro_batch};
        ranks_->wait(under_way_.at(key));
        under_way_.erase(key);
        own(action.part).sent(action.micro_batch, action.message);
        break;
      }
    }
  }
}

void PartWalk::forward(int32_t part, int32_t batch) {
  arrive(MessageKind::kActivation, part, batch);
  if (part == 0) {
    own(part).give(batch, data_.inputs.at(batch));
  } else if (has(part - 1)) {
    own(part).take_input_from(own(part - 1), batch);
  }
  own(part).forward(batch);
}

void PartWalk::backward(int32_t part, int32_t batch, bool split) {
  arrive(MessageKind::kGradient, part, batch);
  Loss loss;
  at::Tensor value;
  if (part == last_) {
    loss = [&](const Tensors& outputs) { return loss_(outputs, data_.targets.at(batch)); };
    value = data_.losses.narrow(0, batch, 1);
  } else if (has(part + 1)) {
    own(part).take_gradient_from(own(part + 1), batch);
  }
  if (split) {
    own(part).input_gradient(batch, loss, value);
  } else {
    own(part).backward(batch, loss, value);
  }
}

void PartWalk::receive(const PipelineAction& action) {
  const bool activation = action.message == MessageKind::kActivation;
  const int sender = rank_of(activation ? action.part - 1 : action.part + 1);
  const size_t number = under_way_[{true, action.message, action.part, action.micro_batch}] =
      messages_++;
  for (const at::Tensor& room : own(action.part).receive(action.micro_batch, action.message)) {
    ranks_->start_receive(number, room, sender,
                          fmt::format("the {} of micro-batch {} for part {}",
                                      to_string(action.message), action.micro_batch, action.part));
  }
}

void PartWalk::send(const PipelineAction& action) {
  const bool activation = action.message == MessageKind::kActivation;
  const int receiver = rank_of(activation ? action.part + 1 : action.part - 1);
  const size_t number = under_way_[{false, action.message, action.part, action.micro_batch}] =
      messages_++;
  for (const at::Tensor& tensor : own(action.part).message(action.micro_batch, action.message)) {
    ranks_->start_send(number, tensor, receiver,
                       fmt::format("room for the {} of micro-batch {} of part {}",
                                   to_string(action.message), action.micro_batch, action.part));
  }
}

void PartWalk::arrive(MessageKind kind, int32_t part, int32_t batch) {
  const auto coming = under_way_.find({true, kind, part, batch});
  if (coming == under_way_.end()) return;
  ranks_->wait(coming->second);
  under_way_.erase(coming);
}

}  // namespace reprise::runtime::internal::parts
