#include "runtime/saved/saved_optimizer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "reprise/model/errors.h"
#include "runtime/saved/optimizer_fields.h"

namespace reprise::runtime::internal::saved {
namespace {

namespace optim = torch::optim;

// Options that Python's optimizers have beside LibTorch's, and that change no result.
constexpr std::array<std::string_view, 4> kWithoutEffect = {"foreach", "fused", "initial_lr",
                                                            "capturable"};

optim::OptimizerOptions& options_of_group(optim::Optimizer& optimizer,
                                          optim::OptimizerParamGroup& group) {
  return group.has_options() ? group.options() : optimizer.defaults();
}

void write_option(io::Writer& writer, const Field& field) {
  writer.key(field.name);
  if (const auto* number = std::get_if<double*>(&field.at)) {
    write_float(writer, **number);
  } else if (const auto* flag = std::get_if<bool*>(&field.at)) {
    writer.value(**flag);
  } else {
    const auto& [first, second] = *std::get<std::tuple<double, double>*>(field.at);
    writer.open_object(io::Layout::kInline).key("tuple").open_array(io::Layout::kInline);
    write_float(writer, first);
    write_float(writer, second);
    writer.close().close();
  }
}

void plan_option(const io::Element& saved, const Field& field, Assignments& todo) {
  if (auto* const* number = std::get_if<double*>(&field.at)) {
    todo.push_back([to = *number, value = read_float(saved)] { *to = value; });
  } else if (auto* const* flag = std::get_if<bool*>(&field.at)) {
    todo.push_back([to = *flag, value = saved.boolean()] { *to = value; });
  } else {
    const auto inside = tagged(saved, "tuple");
    if (!inside || inside->array_size() != 2) saved.fail("must be a tuple of two numbers");
    const std::vector<io::Element> both = inside->elements();
    todo.push_back([to = std::get<std::tuple<double, double>*>(field.at),
                    value = std::tuple(read_float(both[0]), read_float(both[1]))] { *to = value; });
  }
}

bool is_off(const io::Element& element) {
  const io::NodeType type = element.document().type(element.index());
  return type == io::NodeType::kNull || (type == io::NodeType::kBoolean && !element.boolean());
}

void plan_options(const io::Element& saved, const OptimizerKind& kind,
                  optim::OptimizerOptions& options, Assignments& todo) {
  const std::vector<Field> fields = kind.options(options);
  io::Object object(saved);
  for (const Field& field : fields) plan_option(object.required(field.name), field, todo);
  for (const auto& [name, index] : object.members()) {
    const auto same = [&, key = name](const Field& field) { return field.name == key; };
    if (std::any_of(fields.begin(), fields.end(), same)) continue;
    const io::Element element(saved.document(), index);
    const bool of_adamw = name == "decoupled_weight_decay" && kind.name == std::string("AdamW");
    const bool harmless =
        std::find(kWithoutEffect.begin(), kWithoutEffect.end(), name) != kWithoutEffect.end();
    if (!is_off(element) && !of_adamw && !harmless) {
      element.fail(
          fmt::format("the saved optimizer has the option {}, which torch::optim::{} does "
                      "not have",
                      name, kind.name));
    }
  }
}

std::vector<std::string> names_of(const std::vector<at::Tensor>& parameters,
                                  const ParameterNames& names) {
  std::vector<std::string> all;
  for (const at::Tensor& parameter : parameters) {
    all.push_back(names.at(parameter.unsafeGetTensorImpl()));
  }
  return all;
}

// Returns the names of the model's parameters, and numbers for the optimizer's other ones.
ParameterNames with_numbers(const optim::Optimizer& optimizer, ParameterNames names) {
  int64_t number = 0;
  for (const optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      names.emplace(parameter.unsafeGetTensorImpl(), fmt::format("#{}", number));
      ++number;
    }
  }
  return names;
}

// Adds to `todo` what loads the state of one parameter.
void plan_state(const StateFile& file, const io::Element& saved, const OptimizerKind& kind,
                optim::Optimizer& optimizer, const at::Tensor& parameter, Assignments& todo) {
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  std::shared_ptr<optim::OptimizerParamState> made = kind.make_state();
  const bool is_there = found != optimizer.state().end();
  optim::OptimizerParamState& state = is_there ? *found->second : *made;
  io::Object object(saved);
  for (const Field& field : kind.state(state)) {
    const std::optional<io::Element> element = object.optional(field.name);
    if (auto* const* count = std::get_if<int64_t*>(&field.at)) {
      if (!element) saved.fail("has no " + field.name);
      const at::Tensor number = read_tensor(file.tensors(), file.tensor(*element));
      if (number.numel() != 1) element->fail("must be one number");
      todo.push_back([to = *count, value = number.to(at::kDouble).item<double>()] {
        *to = static_cast<int64_t>(value);
      });
      continue;
    }
    at::Tensor* const to = std::get<at::Tensor*>(field.at);
    if (!element || is_off(*element)) {
      todo.push_back([to] { *to = at::Tensor(); });
      continue;
    }
    const TensorEntry& entry = file.tensor(*element);
    if (entry.shape != parameter.sizes().vec()) {
      element->fail("the shape is not that of the parameter");
    }
    todo.push_back([to, &file, &entry, parameter] {
      const at::NoGradGuard no_grad;
      const bool fits = to->defined() && difference(entry, *to).empty();
      if (!fits)
        *to = at::empty_like(parameter, parameter.options().dtype(scalar_type(entry.type)));
      read_into(file.tensors(), entry, *to);
    });
  }
  object.finish();
  if (is_there) return;
  todo.push_back([&optimizer, key = parameter.unsafeGetTensorImpl(), made] {
    optimizer.state()[key] = made->clone();
  });
}

}  // namespace

void write_optimizer(io::Writer& writer, optim::Optimizer& optimizer, const ParameterNames& known,
                     NamedTensors& tensors) {
  const OptimizerKind& kind = kind_of(optimizer);
  const ParameterNames names = with_numbers(optimizer, known);
  writer.open_object().field("class", kind.name).key("groups").open_array();
  for (optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    writer.open_object().key("parameters").open_array();
    for (const std::string& name : names_of(group.params(), names)) writer.value(name);
    writer.close().key("options").open_object();
    for (const Field& field : kind.options(options_of_group(optimizer, group))) {
      write_option(writer, field);
    }
    writer.close().close();
  }
  writer.close().key("state").open_object();
  for (const optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const auto state = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (state == optimizer.state().end()) continue;
      const std::string& name = names.at(parameter.unsafeGetTensorImpl());
      writer.key(name).open_object();
      for (const Field& field : kind.state(*state->second)) {
        at::Tensor tensor;
        if (auto* const* count = std::get_if<int64_t*>(&field.at)) {
          tensor = at::scalar_tensor(**count, at::TensorOptions(at::kLong));
        } else {
          tensor = *std::get<at::Tensor*>(field.at);
        }
        if (!tensor.defined()) continue;
        tensors.emplace_back("optimizer." + name + "." + field.name, tensor);
        writer.key(field.name);
        write_tensor_name(writer, tensors.back().first);
      }
      writer.close();
    }
  }
  writer.close().close();
}

void plan_optimizer(const StateFile& file, const io::Element& saved, optim::Optimizer& optimizer,
                    const ParameterNames& known, Assignments& todo) {
  const OptimizerKind& kind = kind_of(optimizer);
  const ParameterNames names = with_numbers(optimizer, known);
  io::Object object(saved);
  const std::string name = object.required("class").string();
  if (name != kind.name) {
    saved.fail(fmt::format("the state is that of the optimizer {}, and the program has {}", name,
                           kind.name));
  }
  const std::vector<io::Element> groups = object.required("groups").elements();
  if (groups.size() != optimizer.param_groups().size()) {
    saved.fail(fmt::format("the saved optimizer has {} groups of parameters, and the program's {}",
                           groups.size(), optimizer.param_groups().size()));
  }
  io::Object states(object.required("state"));
  for (size_t g = 0; g < groups.size(); ++g) {
    optim::OptimizerParamGroup& group = optimizer.param_groups()[g];
    io::Object row(groups[g]);
    std::vector<std::string> theirs;
    row.required("parameters").for_each([&](const io::Element& each) {
      theirs.push_back(each.string());
    });
    const std::vector<std::string> ours = names_of(group.params(), names);
    if (theirs != ours) {
      groups[g].fail(
          fmt::format("group {} of the saved optimizer has the parameters {}, and the "
                      "program's {}",
                      g, fmt::join(theirs, ", "), fmt::join(ours, ", ")));
    }
    plan_options(row.required("options"), kind, options_of_group(optimizer, group), todo);
    for (size_t p = 0; p < ours.size(); ++p) {
      const auto state = states.optional(ours[p]);
      const at::Tensor& parameter = group.params()[p];
      if (state) {
        plan_state(file, *state, kind, optimizer, parameter, todo);
      } else {
        todo.push_back(
            [&optimizer, key = parameter.unsafeGetTensorImpl()] { optimizer.state().erase(key); });
      }
    }
  }
}

}  // namespace reprise::runtime::internal::saved
