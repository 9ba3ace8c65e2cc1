#include "reprise/report/energy.h"

#include <fmt/format.h>

#include "io/writer.h"
#include "report/energy_json.h"
#include "report/table.h"

namespace reprise {

namespace report {

void write_energy_use(io::Writer& writer, const char* key, const EnergyUse& use) {
  writer.key(key)
      .open_object(io::Layout::kInline)
      .field("time_ns", use.time)
      .field("total_pj", use.total().count())
      .field("background_pj", use.background.count())
      .field("runs_pj", use.runs.count())
      .field("copies_pj", use.copies.count())
      .close();
}

void write_energy(io::Writer& writer, const EnergyReport& energy) {
  writer.key("energy").open_object();
  write_energy_use(writer, "plan", energy.use);
  write_energy_use(writer, "plain", energy.plain);
  if (energy.fastest) write_energy_use(writer, "fastest", *energy.fastest);
  if (energy.lower_bound) {
    writer.field("lower_bound_pj", energy.lower_bound->count())
        .field("bound_class", energy.bound_class);
  }
  writer.close();
}

}  // namespace report

namespace {

std::string energy_heading(const std::string& text, const TextOptions& options) {
  return options.color ? "\x1b[1m" + text + "\x1b[0m\n" : text + "\n";
}

}  // namespace

EnergyReport energy_report(const EnergyPlan& plan) {
  return {plan.use, plan.plain, plan.fastest, plan.lower_bound, plan.bound_class};
}

std::string energy_text(const EnergyReport& energy, const TextOptions& options) {
  report::Table table;
  table.column("", report::Align::kLeft)
      .column("", report::Align::kRight)
      .column("", report::Align::kLeft);
  const EnergyUse& use = energy.use;
  const Picojoules total = use.total();
  table.row({"energy of a step", format_energy(total),
             fmt::format("{} against plain {}",
                         report::relative_change(total.count(), energy.plain.total().count()),
                         format_energy(energy.plain.total()))});
  const auto part = [&](const char* name, Picojoules amount) {
    table.row({name, format_energy(amount), report::share(amount.count(), total.count())});
  };
  part("  static power", use.background);
  part("  runs", use.runs);
  if (use.copies > Picojoules()) part("  copies", use.copies);
  if (energy.lower_bound) {
    const bool reached = total == *energy.lower_bound;
    table.row(
        {"lower bound", format_energy(*energy.lower_bound),
         reached ? "reached: the least of " + energy.bound_class
                 : fmt::format("the plan is {} above it, of {}",
                               report::relative_change(total.count(), energy.lower_bound->count()),
                               energy.bound_class)});
  }
  if (energy.fastest) {
    table.row(
        {"fastest plan", format_energy(energy.fastest->total()),
         fmt::format("in {}; this plan takes {} of energy and {} of time against it",
                     format_duration(energy.fastest->time),
                     report::relative_change(total.count(), energy.fastest->total().count()),
                     report::relative_change(use.time.count(), energy.fastest->time.count()))});
  }
  return energy_heading("Energy", options) + table.text();
}

std::string energy_curve_text(const std::vector<EnergyPoint>& points, const EnergyUse& plain,
                              const TextOptions& options) {
  report::Table table;
  for (const char* name : {"time", "over plain", "energy", "over plain ", "peak"}) {
    table.column(name, report::Align::kRight);
  }
  for (const EnergyPoint& point : points) {
    table.row({format_duration(point.use.time),
               report::relative_change(point.use.time.count(), plain.time.count()),
               format_energy(point.use.total()),
               report::relative_change(point.use.total().count(), plain.total().count()),
               format_bytes(point.plan.peak)});
  }
  return energy_heading("Time and energy within the budget", options) + table.text() +
         fmt::format("  plain training: {}, {}\n", format_duration(plain.time),
                     format_energy(plain.total()));
}

std::string energy_curve_json(const std::vector<EnergyPoint>& points, const EnergyUse& plain) {
  io::Writer writer;
  writer.open_object();
  report::write_energy_use(writer, "plain", plain);
  writer.key("points").open_array();
  for (const EnergyPoint& point : points) {
    writer.open_object();
    writer.field("peak_bytes", point.plan.peak);
    report::write_energy_use(writer, "energy", point.use);
    writer.close();
  }
  writer.close().close();
  return writer.take();
}

}  // namespace reprise
