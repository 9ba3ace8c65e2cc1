#include "device_models.h"

#include <cstring>

namespace reprise::runtime::testing {
namespace {

struct SelfAttentionImpl : nn::Module {
  nn::LayerNorm norm{nn::LayerNormOptions({32})};
  nn::Linear qkv{32, 96}, out{32, 32};
  SelfAttentionImpl() {
    register_module("norm", norm);
    register_module("qkv", qkv);
    register_module("out", out);
  }
  at::Tensor forward(const at::Tensor& x) {
    const int64_t batch = x.size(0), length = x.size(1);
    const auto parts =
        qkv(norm(x)).view({batch, length, 3, 4, 8}).permute({2, 0, 3, 1, 4}).unbind(0);
    const at::Tensor y =
        at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0, true);
    return x + torch::dropout(out(y.transpose(1, 2).reshape(x.sizes())), 0.1, is_training());
  }
};
TORCH_MODULE(SelfAttention);

std::vector<Stage> attention_stages() {
  return {layer("tokens", nn::Embedding(50, 32)),
          layer("first", SelfAttention()),
          layer("up", nn::Linear(32, 128)),
          layer("gelu", nn::GELU()),
          layer("down", nn::Linear(128, 32)),
          layer("second", SelfAttention()),
          {"head", nullptr, [](const Tensors& x) { return Tensors{x.at(0).mean(1)}; }},
          layer("classes", nn::Linear(32, 10))};
}

}  // namespace

at::Tensor DeviceModel::loss(const at::Tensor& output) const {
  return torch::cross_entropy_loss(output, target.narrow(0, 0, output.size(0)));
}
Loss DeviceModel::loss_of_any_batch() const {
  return [copy = *this](const Tensors& out) { return copy.loss(out.at(0)); };
}
at::Tensor DeviceModel::plain_loss() const { return loss(run_plain(stages, {input}).at(0)); }
StepFunction DeviceModel::step() const {
  return [copy = *this](const Tensors& in) {
    const at::Tensor value =
        torch::cross_entropy_loss(run_plain(copy.stages, {in.at(0)}).at(0), in.at(1));
    value.backward();
    return Tensors{value};
  };
}
Tensors DeviceModel::parameters() const { return parameters_of(stages); }
void DeviceModel::drop_gradients() const {
  for (const at::Tensor& each : parameters()) each.mutable_grad() = at::Tensor();
}
void DeviceModel::move_to(c10::Device to) {
  for (const Stage& stage : stages) {
    if (stage.module) stage.module->to(to);
  }
  input = input.to(to);
  target = target.to(to);
  device = to;
}

DeviceModel make_device_model(const std::string& name, c10::Device device) {
  at::manual_seed(1);
  DeviceModel model;
  if (name == "dense") {
    model.stages = dense_stages(6);
    model.stages.push_back(layer("classes", nn::Linear(64, 10)));
    model.input = at::randn({301, 64});
  } else if (name == "conv") {
    model.stages = conv_stages();
    model.input = at::randn({5, 3, 16, 16});
  } else {
    model.stages = attention_stages();
    model.input = at::randint(50, {3, 24});
  }
  model.target = at::randint(10, {model.input.size(0)});
  model.move_to(device);
  return model;
}

MeasureOptions once() {
  return {.min_repeats = 1, .max_repeats = 1, .min_time = Nanos(0), .output_held = false};
}

std::string reports() {
  std::string all;
  for (const std::string& each : sim::take_reports()) all += each + "\n";
  return all;
}

void seed_device(c10::Device device, uint64_t value) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  generator.set_current_seed(value);
}

Tensors everything(const DeviceModel& model, const at::Tensor& loss) {
  Tensors all = {loss.detach().cpu()};
  for (const at::Tensor& each : model.parameters()) {
    all.push_back(each.grad().defined() ? each.grad().cpu() : at::Tensor());
  }
  for (const at::Tensor& each : buffers_of(model.stages)) all.push_back(each.cpu());
  all.push_back(at::globalContext().defaultGenerator(model.device).get_state());
  return all;
}

Tensors plain_result(const std::string& name) {
  const DeviceModel model = make_device_model(name, c10::kCPU);
  seed_device(c10::kCPU, 11);
  at::Tensor loss;
  for (int step = 0; step < 2; ++step) {
    model.drop_gradients();
    loss = model.plain_loss();
    loss.backward();
  }
  return everything(model, loss);
}

int first_difference(const Tensors& a, const Tensors& b) {
  for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    if (i >= a.size() || i >= b.size() || a[i].defined() != b[i].defined())
      return static_cast<int>(i);
    if (!a[i].defined()) continue;
    const at::Tensor x = a[i].contiguous(), y = b[i].contiguous();
    if (x.sizes() != y.sizes() || x.dtype() != y.dtype() ||
        std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) != 0) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

}  // namespace reprise::runtime::testing
