#include "train_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <vector>

#include "reprise/io/json.h"
#include "reprise/model/errors.h"

namespace reprise::cli {
namespace {

const char* name_of(training::TrainMode mode) {
  switch (mode) {
    case training::TrainMode::kAuto:
      break;
    case training::TrainMode::kChain:
      return "chain";
    case training::TrainMode::kGraph:
      return "graph";
    case training::TrainMode::kOnline:
      return "online";
  }
  throw InternalError("a training has no mode");
}

double percent(int64_t part, int64_t whole) {
  return whole == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

std::string milliseconds(Nanos time) {
  return fmt::format("{:.1f} ms", static_cast<double>(time.count()) / 1e6);
}

std::string overhead(Nanos time, Nanos plain) {
  return fmt::format("{:+.1f} %", percent(time.count(), plain.count()) - 100);
}

void row(std::string& text, const std::string& what, const std::string& plain,
         const std::string& planned, const std::string& note = "") {
  text += fmt::format("  {:<24}{:>18}{:>18}  {}\n", what, plain, planned, note);
}

std::string with_commas(int64_t number) {
  std::string digits = std::to_string(number), text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

// Says how far each approximate alternative is off, beside what it states.
void add_approximate_rows(std::string& text, const training::TrainReport& report,
                          const TrainLabels& labels) {
  for (const training::ApproximateUse& use : report.approximate) {
    const std::string bound = fmt::format("{} the {:.2g} that it states, of the largest element",
                                          use.within_bounds ? "of" : "NOT WITHIN", use.bound);
    row(text, use.alternative, "-", fmt::format("{:.2g} off", use.error),
        fmt::format("{}; {} values, kept in {:.1f} % of their bytes", bound, use.values,
                    percent(use.kept.count(), use.plain.count())));
  }
  if (!report.approximate_difference) return;
  const std::string forward = *report.approximate_forward_equal ? "equal" : "not equal";
  row(text, "with the codecs", "-", fmt::format("{:.1g} off", *report.approximate_difference),
      fmt::format("{}, of their largest element; loss, buffers, random state {}",
                  labels.consumes_gradients ? "parameters" : "gradients", forward));
}

}  // namespace

std::string train_report_text(const training::TrainReport& report, const TrainLabels& labels) {
  const bool plain = report.plain_peak.has_value();
  // This is plain training of the whole batch, as far as it is known.
  const Baseline& baseline =
      report.tried.empty() ? report.plan.baseline : report.tried.front().result.baseline;
  const int64_t whole = plain ? report.plain_peak->count() : baseline.peak.count();
  const bool online = report.online.has_value();
  const auto of_whole = [&](double share, const char* note) {
    return whole == 0 ? std::string() : fmt::format("{:.1f} %{}", share, note);
  };
  std::string text = fmt::format("\n{} on {}, {} steps in {} mode\n\n", labels.model, report.data,
                                 report.steps, name_of(report.mode));
  if (report.went_on_after > 0) {
    row(text, "went on after step", "-", std::to_string(report.went_on_after));
  }
  if (report.ranks > 1) {
    row(text, "processes", "-", std::to_string(report.ranks), "the rows below are those of rank 0");
  }
  row(text, "", "plain", "Reprise");
  if (!labels.has_budget) {
    row(text, "budget, bytes", "-", "none");
  } else {
    row(text, "budget, bytes", "-", with_commas(report.budget.count()),
        of_whole(percent(report.budget.count(), whole), " of the plain peak"));
  }
  if (!online) row(text, "peak predicted, bytes", "-", with_commas(report.predicted_peak.count()));
  row(text, "peak measured, bytes", plain ? with_commas(report.plain_peak->count()) : "-",
      with_commas(report.measured_peak.count()),
      online               ? "no plan predicts it"
      : report.peaks_equal ? "as predicted, to the byte"
                           : "NOT as predicted");
  if (report.captured && report.captured->served > 0) {
    const runtime::CapturedStepReport& step = *report.captured;
    row(text, "arena, bytes", "-", with_commas(step.arena_height.count()),
        fmt::format("{:.2f} % above the live bytes; {} allocations in place a step, {} elsewhere",
                    percent(step.arena_height.count(), step.arena_live_bytes.count()) - 100,
                    step.served, report.fallbacks));
  }
  if (report.moved && !report.moved->choice.empty()) text += "  " + report.moved->choice + "\n";
  if (report.moved && !report.machine.channels.empty()) {
    const training::MovedInStep& step = *report.moved;
    const Channel &out = report.machine.channels.at(0), &in = report.machine.channels.at(1);
    row(text, "moved to the disk a step", "-", format_bytes(step.out),
        fmt::format("and {} back; the step waited {} for it; {:.2f} GB/s out and {:.2f} back{}",
                    format_bytes(step.in), milliseconds(step.waited),
                    static_cast<double>(out.bytes_per_second) / 1e9,
                    static_cast<double>(in.bytes_per_second) / 1e9,
                    in.shares >= 0 ? ", in turns" : ""));
  }
  if (report.homed_state_bytes > Bytes(0)) {
    row(text, "optimizer's state", "-", format_bytes(report.homed_state_bytes),
        "on the disk between the steps");
  }
  if (report.homed_parameters_bytes > Bytes(0)) {
    row(text, "parameters", "-", format_bytes(report.homed_parameters_bytes),
        "on the disk between the steps");
  }
  if (whole > 0) {
    row(text, "memory saved", "-",
        of_whole(100 - percent(report.measured_peak.count(), whole), ""));
  }
  if (report.plain_time) {
    row(text, "step, side by side", milliseconds(*report.plain_time),
        milliseconds(*report.planned_time),
        fmt::format("{}, medians of {} pairs in turn, before training",
                    overhead(*report.planned_time, *report.plain_time), report.timed_pairs));
  }
  if (const std::optional<Plan>& plan = report.plan.plan) {
    row(text, "step, predicted", milliseconds(baseline.time), milliseconds(plan->time),
        overhead(plan->time, baseline.time));
    row(text, "lower bound", "-", milliseconds(plan->lower_bound),
        fmt::format("{}, {} schedules", to_string(plan->termination), plan->schedule_class));
  }
  if (online) {
    row(text, "evictions, re-runs", "-",
        fmt::format("{}, {}", report.online->evictions, report.online->reruns),
        fmt::format("in the last step, of {} operations", report.online->calls));
  }
  if (report.tried.size() > 1 || report.parts > 1) {
    std::vector<int64_t> tried;
    for (const runtime::PartsTried& parts : report.tried) tried.push_back(parts.parts);
    row(text, "micro-batches", "1", std::to_string(report.parts),
        fmt::format("tried: {}", fmt::join(tried, ", ")));
  }
  if (report.gradients_equal) {
    const std::string what = labels.consumes_gradients ? "parameters" : "gradients";
    const std::string to = (report.parts > 1 ? ", to accumulation by hand" : "") +
                           std::string(report.approximate.empty() ? "" : ", without the codecs");
    if (report.largest_difference) {
      row(text, "first step", "-", fmt::format("{:.1g} off", *report.largest_difference),
          fmt::format("loss, {}, of their largest element{}: rounding is allowed; {:.1g} if each "
                      "parameter moves by its last bit",
                      what, to, *report.last_bit_difference));
    } else {
      row(text, "first step", "-", *report.gradients_equal ? "equal" : "DIFFERENT",
          fmt::format("loss, {}{}, buffers, random state, bit by bit{}", what,
                      labels.consumes_gradients ? ", optimizer state" : "", to));
    }
  }
  add_approximate_rows(text, report, labels);
  row(text, "step, in training", "-", milliseconds(report.step_time));
  row(text, "loss, first to last", "-",
      fmt::format("{:.3f} to {:.3f}", report.first_loss, report.last_loss));
  if (report.accuracy) {
    row(text, "accuracy", "-", fmt::format("{:.1f} %", 100 * *report.accuracy),
        fmt::format("on {} test samples", report.tested));
  }
  return text;
}

nlohmann::ordered_json train_report_json(const training::TrainReport& report,
                                         const TrainLabels& labels) {
  nlohmann::ordered_json json = {{"model", labels.model},
                                 {"data", report.data},
                                 {"mode", name_of(report.mode)},
                                 {"steps", report.steps},
                                 {"went_on_after", report.went_on_after},
                                 {"stopped", report.stopped},
                                 {"budget_bytes", report.budget.count()},
                                 {"measured_peak_bytes", report.measured_peak.count()},
                                 {"step_ns", report.step_time.count()},
                                 {"first_loss", report.first_loss},
                                 {"last_loss", report.last_loss}};
  if (report.plain_peak) {
    json["plain_peak_bytes"] = report.plain_peak->count();
  }
  if (report.plain_time) {
    json["plain_step_ns"] = report.plain_time->count();
    json["compared_step_ns"] = report.planned_time->count();
  }
  if (report.ranks > 1) json["ranks"] = report.ranks;
  if (report.gradients_equal) json["gradients_equal"] = *report.gradients_equal;
  if (report.largest_difference) {
    json["largest_difference"] = *report.largest_difference;
    json["last_bit_difference"] = *report.last_bit_difference;
  }
  for (const training::ApproximateUse& use : report.approximate) {
    json["approximate"].push_back({{"alternative", use.alternative},
                                   {"values", use.values},
                                   {"plain_bytes", use.plain.count()},
                                   {"kept_bytes", use.kept.count()},
                                   {"error", use.error},
                                   {"bound", use.bound},
                                   {"within_bounds", use.within_bounds}});
  }
  if (report.approximate_difference) {
    json["approximate_forward_equal"] = *report.approximate_forward_equal;
    json["approximate_difference"] = *report.approximate_difference;
  }
  json["micro_batches"] = report.parts;
  if (report.captured) {
    json["arena_bytes"] = report.captured->arena_height.count();
    json["arena_live_bytes"] = report.captured->arena_live_bytes.count();
    json["arena_served"] = report.captured->served;
    json["arena_fallbacks"] = report.fallbacks;
  }
  if (report.moved) {
    json["moved_out_bytes"] = report.moved->out.count();
    json["moved_in_bytes"] = report.moved->in.count();
    json["waited_ns"] = report.moved->waited.count();
    if (!report.moved->choice.empty()) json["offload_choice"] = report.moved->choice;
    json["machine"] = nlohmann::ordered_json::parse(to_json(report.machine));
    if (report.homed_state_bytes > Bytes(0)) {
      json["optimizer_state_away_bytes"] = report.homed_state_bytes.count();
    }
    if (report.homed_parameters_bytes > Bytes(0)) {
      json["parameters_away_bytes"] = report.homed_parameters_bytes.count();
    }
  }
  if (report.accuracy) {
    json["accuracy"] = *report.accuracy;
    json["test_samples"] = report.tested;
  }
  if (report.online) {
    json["evictions"] = report.online->evictions;
    json["reruns"] = report.online->reruns;
  }
  if (!report.plan.plan) return json;
  json["predicted_peak_bytes"] = report.predicted_peak.count();
  json["peaks_equal"] = report.peaks_equal;
  const Plan& plan = *report.plan.plan;
  json["plan"] = {{"planner", plan.planner},
                  {"termination", to_string(plan.termination)},
                  {"schedule_class", plan.schedule_class},
                  {"peak_bytes", plan.peak.count()},
                  {"time_ns", plan.time.count()},
                  {"lower_bound_ns", plan.lower_bound.count()},
                  {"baseline_peak_bytes", plan.baseline.peak.count()},
                  {"baseline_time_ns", plan.baseline.time.count()}};
  return json;
}

std::string step_text(const training::TrainStep& step) {
  std::string text = fmt::format("step {}/{}  loss {:.4f}  {}  peak {}", step.number, step.of,
                                 step.loss, milliseconds(step.time), format_bytes(step.peak));
  if (step.budget != Budget().resolve(step.peak)) text += " of " + format_bytes(step.budget);
  return text;
}

}  // namespace reprise::cli
