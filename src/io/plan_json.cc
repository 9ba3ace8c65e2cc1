// Reads and writes the formats reprise.plan and reprise.frontier.
#include "io/formats.h"
#include "reprise/io/json.h"

namespace reprise {
namespace io {

namespace {

std::string read_memory_name(const Element& element) {
  const std::string name = element.string();
  if (name.empty()) element.fail("a memory has a name");
  return name;
}

std::vector<int64_t> read_after(const Element& element) {
  Object object(element);
  std::vector<int64_t> after;
  object.required("after").for_each(
      [&](const Element& position) { after.push_back(position.integer()); });
  object.finish();
  if (after.empty()) element.fail("\"after\" names at least one action");
  return after;
}

// A send and a receive are written as a copy is.
Action read_copy(const Element& element, const std::vector<Element>& parts, ActionKind kind) {
  if (parts.size() != 4 && (parts.size() != 5 || kind != ActionKind::kCopy)) {
    const char* const verb = to_string(kind);
    element.fail(std::string("a ") + verb + " is [\"" + verb + "\", value, from, to]");
  }
  Action action{kind, parts[1].string(), {}};
  action.at = read_memory_name(parts[2]);
  action.to = read_memory_name(parts[3]);
  if (parts.size() == 5) action.after = read_after(parts[4]);
  return action;
}

// Version 1 has runs and frees on the device only.
Action read_action(const Element& element, int64_t version) {
  const std::vector<Element> parts = element.elements();
  if (parts.empty()) element.fail("an action is [\"run\", op, variant] or [\"free\", value]");
  const std::string_view verb = parts[0].text();
  if (verb == "run") {
    if (parts.size() != 3) element.fail("a run is [\"run\", op, variant]");
    return {ActionKind::kRun, parts[1].string(), parts[2].string()};
  }
  if (verb == "free") {
    if (parts.size() == 2) return {ActionKind::kFree, parts[1].string(), {}};
    if (version < 2) element.fail("a free is [\"free\", value]");
    if (parts.size() != 3) element.fail("a free is [\"free\", value] or [\"free\", value, memory]");
    return {ActionKind::kFree, parts[1].string(), {}, read_memory_name(parts[2])};
  }
  if (version < 2) parts[0].fail("must be \"run\" or \"free\", is " + quoted(verb));
  for (const ActionKind kind : {ActionKind::kCopy, ActionKind::kSend, ActionKind::kReceive}) {
    if (verb == to_string(kind)) return read_copy(element, parts, kind);
  }
  if (verb == "wait") {
    if (parts.size() != 3) element.fail("a wait is [\"wait\", value, memory]");
    return {ActionKind::kWait, parts[1].string(), {}, read_memory_name(parts[2])};
  }
  parts[0].fail("must be \"run\", \"free\", \"copy\", \"wait\", \"send\" or \"receive\", is " +
                quoted(verb));
}

std::string read_machine_hash(const Element& element) {
  Object object(element);
  const Element hash = object.required("sha256");
  std::string text = hash.string();
  if (!is_sha256(text)) hash.fail("must be 64 lower-case hexadecimal digits");
  object.finish();
  return text;
}

void write_memory(Writer& writer, const Action& action, const std::string& name) {
  if (name.empty()) {
    throw InputError(std::string("cannot write a ") + to_string(action.kind) + " of " +
                     io::quoted(action.id) + " without the names of its memories");
  }
  writer.value(name);
}

void write_action(Writer& writer, const Action& action) {
  writer.open_array(Layout::kInline).value(to_string(action.kind)).value(action.id);
  switch (action.kind) {
    case ActionKind::kRun:
      writer.value(action.variant);
      break;
    case ActionKind::kFree:
      if (!action.at.empty()) writer.value(action.at);
      break;
    case ActionKind::kCopy:
    case ActionKind::kSend:
    case ActionKind::kReceive:
      write_memory(writer, action, action.at);
      write_memory(writer, action, action.to);
      if (!action.after.empty()) {
        writer.open_object(Layout::kInline).key("after").open_array(Layout::kInline);
        for (const int64_t position : action.after) writer.value(position);
        writer.close().close();
      }
      break;
    case ActionKind::kWait:
      write_memory(writer, action, action.at);
      break;
  }
  writer.close();
}

FrontierPoint read_point(const Element& element) {
  Object object(element);
  FrontierPoint point;
  point.budget = object.required("budget_bytes").bytes();
  point.peak = object.required("peak_bytes").bytes();
  point.time = object.required("time_ns").nanos();
  point.lower_bound = object.required("lower_bound_ns").nanos();
  object.finish();
  return point;
}

}  // namespace

Plan read_plan(const Element& root) {
  Object object(root);
  const int64_t version = read_header(object, kPlanFormat, kPlanVersion);
  Plan plan;
  plan.problem = read_problem_id(object.required("problem"));
  plan.planner = object.required("planner").string();
  plan.termination = read_termination(object.required("termination"));
  plan.schedule_class = object.required("schedule_class").string();
  plan.budget = object.required("budget_bytes").bytes();
  plan.peak = object.required("peak_bytes").bytes();
  plan.time = object.required("time_ns").nanos();
  plan.lower_bound = object.required("lower_bound_ns").nanos();
  plan.baseline = read_baseline(object.required("baseline"));
  if (const auto search = object.optional("search")) plan.search = read_search(*search);
  if (version >= 2) plan.machine_sha256 = read_machine_hash(object.required("machine"));
  const Element actions = object.required("actions");
  plan.actions.reserve(actions.array_size());
  actions.for_each(
      [&](const Element& action) { plan.actions.push_back(read_action(action, version)); });
  object.finish();
  return plan;
}

Frontier read_frontier(const Element& root) {
  Object object(root);
  read_header(object, kFrontierFormat);
  Frontier frontier;
  frontier.problem = read_problem_id(object.required("problem"));
  frontier.planner = object.required("planner").string();
  if (const auto name = object.optional("schedule_class")) {
    frontier.schedule_class = name->string();
  }
  object.required("points").for_each([&](const Element& element) {
    const FrontierPoint point = read_point(element);
    if (!frontier.points.empty()) {
      if (point.budget <= frontier.points.back().budget) element.fail("budgets must ascend");
      if (point.time >= frontier.points.back().time) element.fail("times must descend");
    }
    frontier.points.push_back(point);
  });
  object.finish();
  return frontier;
}

}  // namespace io

std::string to_json(const Plan& plan) {
  io::Writer writer;
  const bool with_machine = !plan.machine_sha256.empty();
  if (!with_machine && moves_values(plan)) {
    throw InputError("cannot write a plan that moves values without the hash of its machine");
  }
  if (with_machine && !io::is_sha256(plan.machine_sha256)) {
    throw InputError("cannot write the hash " + io::quoted(plan.machine_sha256) +
                     ": it must be 64 lower-case hexadecimal digits");
  }
  io::open_document(writer, io::kPlanFormat, with_machine ? io::kPlanVersion : io::kFormatVersion);
  io::write_problem_id(writer.key("problem"), plan.problem);
  writer.field("planner", plan.planner)
      .field("termination", to_string(plan.termination))
      .field("schedule_class", plan.schedule_class)
      .field("budget_bytes", plan.budget)
      .field("peak_bytes", plan.peak)
      .field("time_ns", plan.time)
      .field("lower_bound_ns", plan.lower_bound);
  io::write_baseline(writer.key("baseline"), plan.baseline);
  if (plan.search) io::write_search(writer.key("search"), *plan.search);
  if (with_machine) {
    writer.key("machine")
        .open_object(io::Layout::kInline)
        .field("sha256", plan.machine_sha256)
        .close();
  }
  writer.key("actions").open_array();
  for (const Action& action : plan.actions) io::write_action(writer, action);
  writer.close().close();
  return writer.take();
}

std::string to_json(const Frontier& frontier) {
  io::Writer writer;
  io::open_document(writer, io::kFrontierFormat);
  io::write_problem_id(writer.key("problem"), frontier.problem);
  writer.field("planner", frontier.planner);
  if (!frontier.schedule_class.empty()) writer.field("schedule_class", frontier.schedule_class);
  writer.key("points").open_array();
  for (const FrontierPoint& point : frontier.points) {
    writer.open_object(io::Layout::kInline)
        .field("budget_bytes", point.budget)
        .field("peak_bytes", point.peak)
        .field("time_ns", point.time)
        .field("lower_bound_ns", point.lower_bound)
        .close();
  }
  writer.close().close();
  return writer.take();
}

}  // namespace reprise
