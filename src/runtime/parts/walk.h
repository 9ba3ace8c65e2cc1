// A PartWalk is one step of a rank of a pipeline: the order of its actions, and the messages under way.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "reprise/model/pipeline.h"
#include "reprise/runtime/pipeline.h"
#include "runtime/chain/pipeline_part.h"
#include "runtime/distributed/ranks.h"

namespace reprise::runtime::internal::parts {

using OwnParts = std::map<int32_t, std::unique_ptr<chain::PipelinePart>>;  // by number

// A StepData is what a rank is given for one step. Tensors are by micro-batch.
struct StepData {
  std::vector<Tensors> inputs;   // on the rank of the first part
  std::vector<Tensors> targets;  // on the rank of the last part
  at::Tensor losses = {};        // room for them, on the rank of the last part
};

class PartWalk {
 public:
  // `ranks` is null if this process has all parts. `last` is the number of the last part.
  PartWalk(distributed::Ranks* ranks, const OwnParts& parts, int32_t last, const PipelineLoss& loss,
       StepData data)
      : ranks_(ranks), parts_(parts), last_(last), loss_(loss), data_(std::move(data)) {}

  // Walks the actions of this rank.
  void run(const std::vector<PipelineAction>& order);

 private:
  // A message that comes to or goes from a part.
  using Message =
      std::tuple<bool, MessageKind, int32_t, int32_t>;  // comes, kind, part, micro-batch

  void forward(int32_t part, int32_t batch);
  void backward(int32_t part, int32_t batch, bool split);
  void receive(const PipelineAction& action);
  void send(const PipelineAction& action);
  void arrive(MessageKind kind, int32_t part, int32_t batch);
  chain::PipelinePart& own(int32_t part) const { return *parts_.at(part); }
  bool has(int32_t part) const { return parts_.count(part) != 0; }
  int rank_of(int32_t part) const { return static_cast<int>(part) % ranks_->size(); }

  distributed::Ranks* ranks_;
  const OwnParts& parts_;
  int32_t last_;
  const PipelineLoss& loss_;
  StepData data_;
  size_t messages_ = 0;
  std::map<Message, size_t> under_way_;  // the number that `ranks_` knows it by
};

}  // namespace reprise::runtime::internal::parts
