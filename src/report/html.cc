// This file puts the parts of the page together.
#include <fmt/format.h>

#include <algorithm>

#include "io/formats.h"
#include "report/channels.h"
#include "report/markup.h"
#include "report/page.h"
#include "report/page_assets.h"
#include "reprise/check/simulate.h"
#include "reprise/check/verify.h"

namespace reprise {

namespace {

using report::escaped;
using report::Facts;

// Returns the hash as a source expression of a content security policy: 'sha256-<base64>'.
std::string hash_source(std::string_view text) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const std::string hex = io::sha256_hex(text);
  std::string bits;
  for (const char c : hex) {
    const int digit = c <= '9' ? c - '0' : c - 'a' + 10;
    for (int b = 3; b >= 0; --b) bits += static_cast<char>('0' + (digit >> b & 1));
  }
  while (bits.size() % 6 != 0) bits += '0';
  std::string base64;
  for (size_t b = 0; b < bits.size(); b += 6) {
    base64 += kDigits[std::stoul(bits.substr(b, 6), nullptr, 2)];
  }
  while (base64.size() % 4 != 0) base64 += '=';
  return "'sha256-" + base64 + "'";
}

std::string head(const std::string& name) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
      "style-src 'unsafe-inline'; script-src {}\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n"
      "<meta name=\"generator\" content=\"reprise " REPRISE_VERSION
      "\">\n"
      "<title>{} · Reprise report</title>\n<style>{}</style>\n</head>\n<body>\n",
      hash_source(report::page_script()), escaped(report::shortened(name, 200)),
      report::page_style());
}

// Adds a point and drops those that are no better than it.
void add_point(std::vector<FrontierPoint>& points, const FrontierPoint& point) {
  for (const FrontierPoint& other : points) {
    if (other.budget <= point.budget && other.time <= point.time) return;
  }
  std::erase_if(points, [&](const FrontierPoint& other) {
    return other.budget >= point.budget && other.time >= point.time;
  });
  const auto behind = std::ranges::upper_bound(points, point.budget, {}, &FrontierPoint::budget);
  points.insert(behind, point);
}

// The curve of a graph or of a machine consists of plans that were found in a short time. The plan
// of the page belongs to it.
Frontier searched_curve(const ReportInput& input, const PlanOptions& options) {
  const Graph graph = input.problem.graph();
  Frontier curve =
      std::visit([&](const auto& model) { return frontier(model, options); }, input.problem.model);
  const Plan& plan = input.plan;
  if (plan.schedule_class == curve.schedule_class &&
      verify(graph, plan, plan.budget, input.machine).empty()) {
    const Timeline timeline = simulate(graph, plan, input.machine);
    add_point(curve.points, {timeline.peak, timeline.peak, timeline.time, plan.lower_bound});
  }
  return curve;
}

}  // namespace

std::string report_html(const ReportInput& input) {
  const Facts facts(input);
  std::string page = head(input.problem.id.name);
  page += report::page_header(facts) + "<main>\n";
  page += report::memory_section(facts);
  page += report::schedule_section(facts);
  page += report::channels_section(facts);
  page += report::frontier_section(facts);
  page += report::decisions_section(facts);
  page += report::measured_section(facts);
  page += report::arena_section(facts);
  page += report::notes_section(facts);
  page += "</main>\n" + report::page_footer(facts);
  page += "<script type=\"application/json\" id=\"reprise-data\">" + report::hover_data(facts) +
          "</script>\n";
  page += "<script>" + std::string(report::page_script()) + "</script>\n</body>\n</html>\n";
  return page;
}

void add_curves(ReportInput& input, const PlanOptions& options) {
  const Chain* chain = input.problem.chain();
  const bool moves = !input.machine.channels.empty();
  PlanOptions asked = options;
  asked.machine = input.machine;
  if (moves) asked.time_limit = Nanos(options.time_limit.count() / 2);
  if (!input.frontier) {
    const bool exact = chain != nullptr && !moves;
    Frontier curve = exact ? frontier(*chain, asked) : searched_curve(input, asked);
    curve.problem = input.problem.id;
    if (!curve.points.empty()) input.frontier = std::move(curve);
  }
  if (moves) {
    if (input.compared.empty()) input.compared = compared_curves(input.problem, asked);
    return;
  }
  if (chain == nullptr || !input.periodic.empty()) return;
  PlanOptions simple = options;
  simple.planner = "periodic";
  simple.schedule_class.clear();
  simple.time_limit = Nanos(options.time_limit.count() / 10);
  input.periodic = frontier(*chain, simple).points;
}

}  // namespace reprise
