// Trains the parts of one network on several processes, without Python. The plan runs backwards in
// two where a stage can be split: gradients of inputs first, those of weights in the gaps. Every
// process compares its gradients with those of one process that accumulates.
//
//   torchrun --no-python --nproc-per-node 2 build/release/pipeline --planner zb_h1
//   build/release/pipeline          trains in this process alone
#include <reprise/runtime.h>
#include <torch/torch.h>

#include <cstdio>
#include <optional>
#include <string>

namespace rt = reprise::runtime;

namespace {

constexpr int64_t kMicroBatches = 8, kRows = 4096, kWidth = 128;

// Makes the whole network. A process of a larger program makes its own part only.
torch::nn::Sequential network() {
  torch::manual_seed(1);
  torch::nn::Sequential model;
  for (int block = 0; block < 4; ++block) {
    model->push_back(torch::nn::Linear(kWidth, 4 * kWidth));
    model->push_back(torch::nn::GELU());
    model->push_back(torch::nn::Linear(4 * kWidth, kWidth));
  }
  return model;
}

at::Tensor loss_of(const at::Tensor& output, const at::Tensor& target) {
  return (output - target).square().sum() / (kRows * kWidth);
}

// Returns whether the gradients are those of one process, bit by bit.
bool equals_one_process(const std::vector<at::Tensor>& parameters, size_t first,
                        const at::Tensor& x, const at::Tensor& y) {
  torch::nn::Sequential whole = network();
  const auto inputs = x.chunk(kMicroBatches), targets = y.chunk(kMicroBatches);
  for (size_t b = 0; b < inputs.size(); ++b) {
    loss_of(whole->forward(inputs[b]), targets[b]).backward();
  }
  const std::vector<at::Tensor> expected = whole->parameters();
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (!at::equal(parameters[p].grad(), expected[first + p].grad())) return false;
  }
  return true;
}

}  // namespace

int main(int count, char** arguments) {
  torch::set_num_threads(1);
  rt::install_cpu_allocator();
  std::optional<rt::ProcessGroup> group;
  if (rt::has_ranks()) group.emplace(rt::gloo_from_environment());
  const int rank = group ? group->rank() : 0, size = group ? group->size() : 1;
  std::string planner = "pipeline";
  if (count == 3 && std::string(arguments[1]) == "--planner") planner = arguments[2];

  torch::nn::Sequential model = network();
  const std::vector<rt::Stage> stages = rt::stages_of(model);
  const size_t each = stages.size() / static_cast<size_t>(size);
  const auto begin = stages.begin() + static_cast<std::ptrdiff_t>(each) * rank;
  const bool last = rank == size - 1;
  const std::vector<rt::Stage> part(
      begin, last ? stages.end() : begin + static_cast<std::ptrdiff_t>(each));
  std::vector<at::Tensor> mine;  // the parameters of this part
  size_t before = 0;             // those of the parts before
  for (size_t s = 0; s < stages.size(); ++s) {
    const auto parameters = stages[s].module->parameters();
    const auto own = static_cast<size_t>(begin - stages.begin());
    if (s < own) before += parameters.size();
    if (s >= own && s < own + part.size()) {
      mine.insert(mine.end(), parameters.begin(), parameters.end());
    }
  }

  torch::manual_seed(2);
  const at::Tensor x = torch::randn({kRows, kWidth}), y = torch::randn({kRows, kWidth});
  bool equal = false;
  {
    rt::PipelinedStepOptions options{.micro_batches = kMicroBatches,
                                     .planner = planner,
                                     .time_limit = reprise::Nanos(1'000'000'000)};
    if (rank == 0) options.sample = {x.narrow(0, 0, kRows / kMicroBatches)};
    if (last) {
      options.loss = [](const rt::Tensors& out, const rt::Tensors& in) {
        return loss_of(out[0], in[0]);
      };
      options.target = {y.narrow(0, 0, kRows / kMicroBatches)};
    }
    if (group) options.group = group->name();
    rt::PipelinedStep step = rt::pipeline({part}, options);
    at::Tensor losses;
    for (int number = 0; number < 3; ++number) {
      for (const at::Tensor& parameter : mine) parameter.mutable_grad().reset();
      losses = step.run(rank == 0 ? rt::Tensors{x} : rt::Tensors{},
                        last ? rt::Tensors{y} : rt::Tensors{});
    }
    equal = equals_one_process(mine, before, x, y);
    size_t split = 0;
    for (const reprise::PipelineAction& action :
         step.plan().devices[static_cast<size_t>(rank)].order) {
      if (action.kind == reprise::PipelineActionKind::kInputGradient) ++split;
    }
    const rt::PipelinedStepReport& report = step.last_step();
    std::printf("rank %d: planner %s, %zu backwards in two, peak %lld bytes, predicted %lld\n",
                rank, planner.c_str(), split, static_cast<long long>(report.measured_peak.count()),
                static_cast<long long>(report.predicted_peak.count()));
    if (losses.defined()) std::printf("rank %d: loss %.6f\n", rank, losses.sum().item<double>());
    std::printf("rank %d: gradients %s those of one process\n", rank,
                equal ? "equal" : "DIFFER FROM");
  }
  if (group) group->barrier();
  return equal ? 0 : 1;
}
