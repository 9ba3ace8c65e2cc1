#include "reprise/report/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "reprise/model/errors.h"
#include "reprise/report/text.h"

namespace reprise {

namespace {

constexpr const char* kCurveColor = "#1f5fa8";
constexpr const char* kPlainColor = "#b3261e";
constexpr const char* kPeriodicColor = "#8a6d1a";
constexpr const char* kInk = "#2b2b2b";
constexpr const char* kFaintInk = "#d9d9d4";

struct AxisUnit {
  const char* name;
  double size;
};

constexpr std::array<AxisUnit, 5> kByteUnits = {
    {{"B", 1}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}}};
constexpr std::array<AxisUnit, 4> kTimeUnits = {{{"ns", 1}, {"µs", 1e3}, {"ms", 1e6}, {"s", 1e9}}};

// The largest unit in which `value` is at least 1.
template <size_t n>
AxisUnit unit_for(double value, const std::array<AxisUnit, n>& units) {
  AxisUnit best = units[0];
  for (const AxisUnit& unit : units) {
    if (value >= unit.size) best = unit;
  }
  return best;
}

struct Axis {
  double from, to;    // of the data, in bytes or nanoseconds
  double start, end;  // pixels
  AxisUnit unit;
  double step;  // between ticks

  double pixel(double value) const { return start + (value - from) / (to - from) * (end - start); }
};

// 1, 2 or 5 times a power of ten units, for about `ticks` ticks.
double nice_step(double span, double unit, int ticks) {
  const double rough = span / unit / ticks;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (rough <= factor * power) return factor * power * unit;
  }
  return 10.0 * power * unit;
}

std::string escape(const std::string& text) {
  std::string result;
  for (const char c : printable(text)) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

// The picture while it grows.
class Picture {
 public:
  Picture(const Frontier& frontier, const Baseline& baseline,
          std::span<const FrontierPoint> periodic, const SvgOptions& options)
      : frontier_(frontier), baseline_(baseline), periodic_(periodic), options_(options) {
    scale_axes();
  }

  std::string draw() {
    draw_frame();
    draw_ticks();
    draw_infeasible();
    draw_curve();
    draw_marks();
    draw_points();
    draw_legend();
    svg_ += "</svg>\n";
    return std::move(svg_);
  }

 private:
  void scale_axes() {
    double most_bytes = static_cast<double>(baseline_.peak.count());
    double least = static_cast<double>(baseline_.time.count());
    double most = least;
    const auto include = [&](const FrontierPoint& point) {
      most_bytes = std::max(most_bytes, static_cast<double>(point.budget.count()));
      least = std::min(least, static_cast<double>(point.time.count()));
      most = std::max(most, static_cast<double>(point.time.count()));
    };
    std::for_each(frontier_.points.begin(), frontier_.points.end(), include);
    std::for_each(periodic_.begin(), periodic_.end(), include);
    for (const Bytes mark : options_.marks) {
      most_bytes = std::max(most_bytes, static_cast<double>(mark.count()));
    }

    const double span = std::max({most - least, 0.05 * most, 1.0});
    const double right = std::max(most_bytes, 1.0) * 1.06;
    const AxisUnit byte_unit = unit_for(right, kByteUnits);
    const AxisUnit time_unit = unit_for(most, kTimeUnits);
    x_ = {0, right, 78, options_.width - 78.0, byte_unit, nice_step(right, byte_unit.size, 7)};
    y_ = {std::max(0.0, least - 0.08 * span),
          most + 0.08 * span,
          options_.height - 58.0,
          72,
          time_unit,
          0};
    y_.step = nice_step(y_.to - y_.from, time_unit.size, 6);
  }

  void text(double x, double y, const char* anchor, const std::string& content,
            const std::string& extra = "") {
    svg_ +=
        fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" fill=\"{}\"{}>{}</text>\n",
                    x, y, anchor, kInk, extra, escape(content));
  }

  void draw_frame() {
    svg_ += fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
        "height=\"{1}\" role=\"img\" font-family=\"system-ui, sans-serif\" font-size=\"12\">\n",
        options_.width, options_.height);
    const std::string title = options_.title.empty() ? frontier_.problem.name : options_.title;
    svg_ += "<title>" + escape("Time of a step for every budget: " + title) + "</title>\n";
    svg_ += fmt::format(
        "<rect x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"6\" fill=\"#fbfbf8\" "
        "stroke=\"{}\"/>\n",
        options_.width - 1, options_.height - 1, kFaintInk);
    text(x_.start, 26, "start", title, " font-size=\"15\" font-weight=\"600\"");
    text((x_.start + x_.end) / 2, options_.height - 16.0, "middle",
         fmt::format("budget ({})", x_.unit.name));
    text(x_.start, y_.end - 10, "end", fmt::format("time ({})", y_.unit.name));
    text(options_.width - 10.0, y_.end - 10, "end", "against plain");
  }

  void draw_ticks() {
    for (int64_t k = 0; static_cast<double>(k) * x_.step <= x_.to; ++k) {
      const double value = static_cast<double>(k) * x_.step;
      svg_ += fmt::format("<path d=\"M{0:.1f} {1:.1f}V{2:.1f}\" stroke=\"{3}\"/>\n",
                          x_.pixel(value), y_.start, y_.end, kFaintInk);
      text(x_.pixel(value), y_.start + 17, "middle", fmt::format("{:g}", value / x_.unit.size));
    }
    const auto first = static_cast<int64_t>(std::ceil(y_.from / y_.step));
    for (int64_t k = first; static_cast<double>(k) * y_.step <= y_.to; ++k) {
      const double value = static_cast<double>(k) * y_.step;
      const double y = y_.pixel(value);
      svg_ += fmt::format("<path d=\"M{:.1f} {:.1f}H{:.1f}\" stroke=\"{}\"/>\n", x_.start, y,
                          x_.end, kFaintInk);
      text(x_.start - 8, y + 4, "end", fmt::format("{:g}", value / y_.unit.size));
      const auto plain = static_cast<double>(baseline_.time.count());
      if (plain > 0) {
        text(x_.end + 8, y + 4, "start", fmt::format("{:+.3g} %", 100 * (value / plain - 1)));
      }
    }
    svg_ +=
        fmt::format("<path d=\"M{0:.1f} {1:.1f}V{2:.1f}H{3:.1f}\" fill=\"none\" stroke=\"{4}\"/>\n",
                    x_.start, y_.end, y_.start, x_.end, kInk);
  }

  void draw_infeasible() {
    const double end = x_.pixel(static_cast<double>(frontier_.points.front().budget.count()));
    if (end - x_.start < 1) return;
    svg_ += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\" "
        "fill-opacity=\"0.55\"/>\n",
        x_.start, y_.end, end - x_.start, y_.start - y_.end, kFaintInk);
    if (end - x_.start > 60) {
      text((x_.start + end) / 2, (y_.start + y_.end) / 2, "middle", "no plan");
    }
  }

  void draw_curve() {
    const std::vector<FrontierPoint>& points = frontier_.points;
    std::string path;
    for (size_t i = 0; i < points.size(); ++i) {
      const double x = x_.pixel(static_cast<double>(points[i].budget.count()));
      const double y = y_.pixel(static_cast<double>(points[i].time.count()));
      path += i == 0 ? fmt::format("M{:.1f} {:.1f}", x, y) : fmt::format("H{:.1f}V{:.1f}", x, y);
    }
    path += fmt::format("H{:.1f}", x_.end);
    svg_ += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n", path,
                        kCurveColor);
  }

  // A line up to the curve and one to the time axis; to the top where the budget has no plan.
  void draw_marks() {
    for (const Bytes mark : options_.marks) {
      const double x = x_.pixel(static_cast<double>(mark.count()));
      const FrontierPoint* best = nullptr;
      for (const FrontierPoint& at : frontier_.points) {
        if (at.budget <= mark) best = &at;
      }
      const double y =
          best == nullptr ? y_.end : y_.pixel(static_cast<double>(best->time.count()));
      const std::string across = best == nullptr ? "" : fmt::format("H{:.1f}", x_.end);
      svg_ += fmt::format(
          "<path d=\"M{:.1f} {:.1f}V{:.1f}{}\" fill=\"none\" stroke=\"{}\" "
          "stroke-dasharray=\"5 4\"/>\n",
          x, y_.start, y, across, kInk);
      text(x + 4, y_.start - 6, "start", format_bytes(mark));
      if (best != nullptr) point(*best, kInk, kCurveColor, "budget");
    }
  }

  void point(const FrontierPoint& at, const char* color, const char* fill, const char* name) {
    svg_ += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4.5\" fill=\"{}\" stroke=\"{}\" "
        "stroke-width=\"1.8\"><title>{}</title></circle>\n",
        x_.pixel(static_cast<double>(at.budget.count())),
        y_.pixel(static_cast<double>(at.time.count())), fill, color,
        escape(fmt::format("{}: {}, {}", name, format_bytes_exact(at.budget),
                           format_duration(at.time))));
  }

  void draw_points() {
    for (const FrontierPoint& at : periodic_) point(at, kPeriodicColor, "#fbfbf8", "periodic");
    point({.budget = baseline_.peak,
           .peak = baseline_.peak,
           .time = baseline_.time,
           .lower_bound = baseline_.time},
          kPlainColor, kPlainColor, "plain training");
  }

  void draw_legend() {
    double x = x_.start;
    const double y = 46;
    const auto entry = [&](const std::string& mark, const std::string& name) {
      svg_ += mark;
      text(x + 28, y + 4, "start", name);
      x += 44 + 6.6 * static_cast<double>(name.size());
    };
    entry(fmt::format("<path d=\"M{:.1f} {:.1f}h20\" stroke=\"{}\" stroke-width=\"2\"/>\n", x, y,
                      kCurveColor),
          "planner " + frontier_.planner);
    entry(fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4.5\" fill=\"{}\"/>\n", x + 18, y,
                      kPlainColor),
          "plain training");
    if (periodic_.empty()) return;
    entry(fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4.5\" fill=\"none\" stroke=\"{}\" "
                      "stroke-width=\"1.8\"/>\n",
                      x + 18, y, kPeriodicColor),
          "periodic checkpoints");
  }

  const Frontier& frontier_;
  const Baseline& baseline_;
  std::span<const FrontierPoint> periodic_;
  const SvgOptions& options_;
  Axis x_, y_;
  std::string svg_;
};

}  // namespace

std::string frontier_svg(const Frontier& frontier, const Baseline& baseline,
                         std::span<const FrontierPoint> periodic, const SvgOptions& options) {
  if (frontier.points.empty()) {
    throw InputError("a frontier without points cannot be drawn: no plan was found");
  }
  return Picture(frontier, baseline, periodic, options).draw();
}

}  // namespace reprise
