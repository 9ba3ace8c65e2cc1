// Reads and writes the format reprise.runlog.
#include "io/formats.h"
#include "reprise/io/json.h"

namespace reprise {
namespace io {

namespace {

StepCost read_step(const Element& element) {
  Object object(element);
  StepCost step;
  step.peak = object.required("peak_bytes").bytes();
  step.time = object.required("time_ns").nanos();
  object.finish();
  return step;
}

void write_step(Writer& writer, const char* key, const StepCost& step) {
  writer.key(key)
      .open_object(Layout::kInline)
      .field("peak_bytes", step.peak)
      .field("time_ns", step.time)
      .close();
}

RunLogEntry read_entry(const Element& element) {
  Object object(element);
  RunLogEntry entry;
  entry.action = object.required("action").integer();
  entry.op = object.required("op").string();
  entry.variant = object.required("variant").string();
  entry.planned_bytes = object.required("planned_bytes").bytes();
  entry.measured_bytes = object.required("measured_bytes").bytes();
  entry.planned_time = object.required("planned_ns").nanos();
  entry.measured_time = object.required("measured_ns").nanos();
  object.finish();
  return entry;
}

void write_entry(Writer& writer, const RunLogEntry& entry) {
  if (entry.action < 0) {
    throw InputError("cannot write a run log: an action has the position " +
                     std::to_string(entry.action));
  }
  writer.open_object(Layout::kInline)
      .field("action", entry.action)
      .field("op", entry.op)
      .field("variant", entry.variant)
      .field("planned_bytes", entry.planned_bytes)
      .field("measured_bytes", entry.measured_bytes)
      .field("planned_ns", entry.planned_time)
      .field("measured_ns", entry.measured_time)
      .close();
}

}  // namespace

RunLog read_run_log(const Element& root) {
  Object object(root);
  read_header(object, kRunLogFormat);
  RunLog log;
  log.problem = read_problem_id(object.required("problem"));
  log.device = object.required("device").string();
  const Element steps = object.required("steps");
  log.steps = steps.integer();
  if (log.steps < 1) steps.fail("must be at least 1: a log is of steps that ran");
  log.planned = read_step(object.required("planned"));
  log.measured = read_step(object.required("measured"));
  const Element actions = object.required("actions");
  log.actions.reserve(actions.array_size());
  actions.for_each([&](const Element& element) {
    const RunLogEntry entry = read_entry(element);
    if (!log.actions.empty() && entry.action <= log.actions.back().action) {
      Object(element).required("action").fail("positions must ascend");
    }
    log.actions.push_back(entry);
  });
  object.finish();
  return log;
}

}  // namespace io

std::string to_json(const RunLog& log) {
  if (log.steps < 1) throw InputError("cannot write a run log of no steps");
  io::Writer writer;
  io::open_document(writer, io::kRunLogFormat);
  io::write_problem_id(writer.key("problem"), log.problem);
  writer.field("device", log.device).field("steps", log.steps);
  io::write_step(writer, "planned", log.planned);
  io::write_step(writer, "measured", log.measured);
  writer.key("actions").open_array();
  for (const RunLogEntry& entry : log.actions) io::write_entry(writer, entry);
  writer.close().close();
  return writer.take();
}

}  // namespace reprise
