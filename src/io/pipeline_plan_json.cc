// Reads and writes the format reprise.pipeline_plan.
#include <charconv>
#include <limits>
#include <string_view>
#include <unordered_map>

#include "io/formats.h"
#include "reprise/io/json.h"

namespace reprise {
namespace io {

namespace {

constexpr std::pair<const char*, PipelineActionKind> kPipelineActions[] = {
    {"forward", PipelineActionKind::kForward},
    {"backward", PipelineActionKind::kBackward},
    {"input_gradient", PipelineActionKind::kInputGradient},
    {"weight_gradient", PipelineActionKind::kWeightGradient},
    {"receive", PipelineActionKind::kReceive},
    {"send", PipelineActionKind::kSend},
    {"wait", PipelineActionKind::kWait},
};

constexpr std::pair<const char*, MessageKind> kMessages[] = {
    {"activation", MessageKind::kActivation},
    {"gradient", MessageKind::kGradient},
};

int32_t read_position(const Element& element) {
  const int64_t number = element.integer();
  if (number > std::numeric_limits<int32_t>::max()) element.fail("is too large");
  return static_cast<int32_t>(number);
}

PipelineAction read_pipeline_action(const Element& element) {
  const std::vector<Element> parts = element.elements();
  if (parts.empty()) element.fail("an action is [\"forward\", part, micro-batch] or the like");
  PipelineAction action;
  action.kind = parts[0].word(kPipelineActions);
  const bool compute = is_compute(action.kind);
  if (parts.size() != (compute ? 3u : 4u)) {
    element.fail(compute ? "must be [" + quoted(to_string(action.kind)) + ", part, micro-batch]"
                         : "must be [" + quoted(to_string(action.kind)) +
                               ", \"activation\" or \"gradient\", part, micro-batch]");
  }
  if (!compute) action.message = parts[1].word(kMessages);
  action.part = read_position(parts[parts.size() - 2]);
  action.micro_batch = read_position(parts.back());
  return action;
}

PartRun read_part_run(const Element& element) {
  const std::vector<Element> parts = element.elements();
  if (parts.size() != 2) element.fail("a run is [op, variant]");
  // This is the only place that reads what name_of() writes.
  PartRun run{Phase::kLoss, 0, parts[1].string()};
  const std::string_view op = parts[0].text();
  if (op.starts_with('F')) run.phase = Phase::kForward;
  if (op.starts_with('B')) run.phase = Phase::kBackward;
  if (run.phase != Phase::kLoss) {
    std::from_chars(op.data() + 1, op.data() + op.size(), run.stage);
  }
  if (name_of(run) != op) parts[0].fail("must be \"loss\", or F or B with the number of a stage");
  return run;
}

std::vector<PartRun> read_part_runs(const Element& element) {
  std::vector<PartRun> runs;
  runs.reserve(element.array_size());
  element.for_each([&](const Element& run) { runs.push_back(read_part_run(run)); });
  return runs;
}

PartPlan read_part_plan(const Element& element) {
  Object object(element);
  PartPlan plan;
  plan.forward = read_part_runs(object.required("forward"));
  plan.backward = read_part_runs(object.required("backward"));
  object.finish();
  return plan;
}

DevicePlan read_device_plan(const Element& element) {
  Object object(element);
  DevicePlan device;
  device.name = object.required("name").string();
  device.budget = object.required("budget_bytes").bytes();
  device.peak = object.required("peak_bytes").bytes();
  const Element order = object.required("order");
  device.order.reserve(order.array_size());
  order.for_each(
      [&](const Element& action) { device.order.push_back(read_pipeline_action(action)); });
  object.finish();
  return device;
}

PipelinePart read_part(const Element& element,
                       const std::unordered_map<std::string_view, int32_t>& devices) {
  Object object(element);
  PipelinePart part;
  const Element device = object.required("device");
  const auto found = devices.find(device.text());
  if (found == devices.end()) device.fail("the plan has no device " + io::quoted(device.text()));
  part.device = found->second;
  part.first_stage = read_position(object.required("first_stage"));
  part.stages = read_position(object.required("stages"));
  object.required("plans").for_each(
      [&](const Element& plan) { part.plans.push_back(read_part_plan(plan)); });
  object.required("plan_of").for_each(
      [&](const Element& position) { part.plan_of.push_back(read_position(position)); });
  object.finish();
  return part;
}

void write_pipeline_action(Writer& writer, const PipelineAction& action) {
  writer.open_array(Layout::kInline).value(to_string(action.kind));
  if (!is_compute(action.kind)) writer.value(to_string(action.message));
  writer.value(int64_t{action.part}).value(int64_t{action.micro_batch}).close();
}

void write_part_runs(Writer& writer, const std::vector<PartRun>& runs) {
  writer.open_array(Layout::kInline);
  for (const PartRun& run : runs) {
    writer.open_array(Layout::kInline).value(name_of(run)).value(run.variant).close();
  }
  writer.close();
}

int32_t require_device(const PipelinePlan& plan, const PipelinePart& part) {
  if (part.device >= 0 && static_cast<size_t>(part.device) < plan.devices.size()) {
    return part.device;
  }
  throw InputError("cannot write a plan with a part on a device that it does not have");
}

void write_parts(Writer& writer, const PipelinePlan& plan) {
  writer.key("parts").open_array();
  for (const PipelinePart& part : plan.parts) {
    writer.open_object()
        .field("device", plan.devices[require_device(plan, part)].name)
        .field("first_stage", int64_t{part.first_stage})
        .field("stages", int64_t{part.stages});
    writer.key("plans").open_array();
    for (const PartPlan& one : part.plans) {
      writer.open_object();
      write_part_runs(writer.key("forward"), one.forward);
      write_part_runs(writer.key("backward"), one.backward);
      writer.close();
    }
    writer.close().key("plan_of").open_array(Layout::kInline);
    for (const int32_t position : part.plan_of) writer.value(int64_t{position});
    writer.close().close();
  }
  writer.close();
}

}  // namespace

PipelinePlan read_pipeline_plan(const Element& root) {
  Object object(root);
  read_header(object, kPipelinePlanFormat);
  PipelinePlan plan;
  plan.problem = read_problem_id(object.required("problem"), kPipelineFormat);
  plan.planner = object.required("planner").string();
  plan.termination = read_termination(object.required("termination"));
  plan.schedule_class = object.required("schedule_class").string();
  plan.time = object.required("time_ns").nanos();
  plan.lower_bound = object.required("lower_bound_ns").nanos();
  plan.baseline = read_baseline(object.required("baseline"));
  if (const auto search = object.optional("search")) plan.search = read_search(*search);
  const Element devices = object.required("devices");
  std::unordered_map<std::string_view, int32_t> names;
  devices.for_each([&](const Element& device) {
    if (plan.devices.size() >= kMostDevices) device.fail("there are too many devices");
    plan.devices.push_back(read_device_plan(device));
  });
  for (size_t d = 0; d < plan.devices.size(); ++d) {
    if (names.emplace(plan.devices[d].name, static_cast<int32_t>(d)).second) continue;
    devices.fail("two devices are named " + io::quoted(plan.devices[d].name));
  }
  object.required("parts").for_each(
      [&](const Element& part) { plan.parts.push_back(read_part(part, names)); });
  object.finish();
  return plan;
}

}  // namespace io

std::string to_json(const PipelinePlan& plan) {
  io::Writer writer;
  io::open_document(writer, io::kPipelinePlanFormat);
  io::write_problem_id(writer.key("problem"), plan.problem, io::kPipelineFormat);
  writer.field("planner", plan.planner)
      .field("termination", to_string(plan.termination))
      .field("schedule_class", plan.schedule_class)
      .field("time_ns", plan.time)
      .field("lower_bound_ns", plan.lower_bound);
  io::write_baseline(writer.key("baseline"), plan.baseline);
  if (plan.search) io::write_search(writer.key("search"), *plan.search);
  writer.key("devices").open_array();
  for (const DevicePlan& device : plan.devices) {
    writer.open_object()
        .field("name", device.name)
        .field("budget_bytes", device.budget)
        .field("peak_bytes", device.peak);
    writer.key("order").open_array();
    for (const PipelineAction& action : device.order) io::write_pipeline_action(writer, action);
    writer.close().close();
  }
  writer.close();
  io::write_parts(writer, plan);
  writer.close();
  return writer.take();
}

PipelinePlan parse_pipeline_plan(std::string_view text, const std::string& name) {
  const io::Document document(text, name);
  return io::read_pipeline_plan({document, 0});
}

PipelinePlan load_pipeline_plan(const std::filesystem::path& path) {
  return parse_pipeline_plan(read_file(path), path.string());
}

}  // namespace reprise
