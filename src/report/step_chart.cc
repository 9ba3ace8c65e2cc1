#include "report/step_chart.h"

#include <fmt/format.h>

#include <cmath>

#include "report/axis.h"
#include "report/markup.h"

namespace reprise::report {

namespace {

// Sizes are pixels.
constexpr double kWidth = 960;
constexpr double kLeft = 78;
constexpr double kRight = 14;
constexpr double kTop = 12;
constexpr double kBottom = 36;
constexpr double kPlotWidth = kWidth - kLeft - kRight;

}  // namespace

std::string coordinate(double value) {
  const double tenths = std::round(value * 10);
  return std::fmod(tenths, 10) == 0 ? fmt::format("{:.0f}", tenths / 10)
                                    : fmt::format("{:.1f}", tenths / 10);
}

StepChart::StepChart(std::string_view title, std::string_view description, TimeScale time,
                     double height)
    : title_(title), description_(description), time_(time), height_(height) {}

void StepChart::bytes_axis(double top) {
  top_ = top;
  const AxisUnit unit = byte_unit(top);
  const Axis axis = {0, top, kTop + height_, kTop, unit, nice_step(top, unit.size, 5)};
  for (const double value : axis.ticks()) {
    const double at = axis.pixel(value);
    frame_ += fmt::format("<path d=\"M{} {:.1f}h{}\" class=\"grid\"/>", kLeft, at, kPlotWidth);
    labels_ +=
        fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}{}</text>", kLeft - 8,
                    at + 4, axis.label(value), value == 0 ? "" : fmt::format(" {}", unit.name));
  }
  frame_ += '\n';
  labels_ += '\n';
}

void StepChart::margin_label(double y, std::string_view text) {
  labels_ += fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", kLeft - 8,
                         kTop + y / kHigh * height_ + 4, escaped(text));
}

void StepChart::level_line(double bytes, std::string_view text, const char* style) {
  plot_ += fmt::format("<path d=\"M0 {}H{}\" class=\"level {}\"/>\n", y(bytes), kWide, style);
  labels_ +=
      fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\" class=\"on-plot\">{}</text>\n",
                  kWidth - kRight - 6, kTop + y_units(bytes) / kHigh * height_ - 5, escaped(text));
}

std::string StepChart::time_axis() const {
  const AxisUnit unit = time_.timed ? time_unit(time_.end) : AxisUnit{"runs", 1};
  const Axis axis = {
      0, time_.end, kLeft, kLeft + kPlotWidth, unit, nice_step(time_.end, unit.size, 8)};
  const double base = kTop + height_;
  std::string svg = "<g class=\"time-axis\">";
  for (const double value : axis.ticks()) {
    const double at = axis.pixel(value);
    svg += fmt::format("<path d=\"M{:.1f} {:.1f}v5\" class=\"axis\"/>", at, base);
    svg +=
        fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}{}</text>", at,
                    base + 19, axis.label(value), value == 0 ? "" : fmt::format(" {}", unit.name));
  }
  return svg + "</g>\n";
}

std::string StepChart::take() {
  std::string svg = fmt::format(
      "<div class=\"scroll\" tabindex=\"0\" role=\"group\" aria-label=\"{}\">"
      "<svg class=\"chart\" viewBox=\"0 0 {} {}\" role=\"img\" data-end=\"{:.0f}\" "
      "data-timed=\"{}\" "
      "data-base=\"{}\"",
      escaped(title_), kWidth, kTop + height_ + kBottom, time_.end, time_.timed ? 1 : 0,
      kTop + height_);
  if (!hover_.empty()) svg += fmt::format(" data-hover=\"{}\"", escaped(hover_));
  svg += fmt::format("><title>{}</title><desc>{}</desc>\n", escaped(title_), escaped(description_));
  svg += frame_;
  svg += fmt::format(
      "<svg class=\"plot\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" viewBox=\"0 0 {} {}\" "
      "preserveAspectRatio=\"none\">\n",
      kLeft, kTop, kPlotWidth, height_, kWide, kHigh);
  svg += plot_ + "</svg>\n" + labels_;
  svg += fmt::format("<path d=\"M{} {}V{}H{}\" class=\"axis\"/>\n", kLeft, kTop, kTop + height_,
                     kWidth - kRight);
  return svg + time_axis() + "</svg></div>\n";
}

}  // namespace reprise::report
