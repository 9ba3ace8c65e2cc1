#include "report/frontier_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "report/axis.h"
#include "report/markup.h"
#include "reprise/model/errors.h"

namespace reprise::report {

namespace {

// The names are those of the report's style sheet (page_style.cc).
constexpr const char* kOwnStyle =
    "<style>text{fill:#2b2b2b}.panel{fill:#fbfbf8;stroke:#d9d9d4}.grid{stroke:#d9d9d4}"
    ".axis{stroke:#2b2b2b;fill:none}.curve{stroke:#1f5fa8;stroke-width:2;fill:none}"
    ".compared0{stroke:#2f9479;stroke-width:1.6;stroke-dasharray:7 4;fill:none}"
    ".compared1{stroke:#8a6d1a;stroke-width:1.6;stroke-dasharray:2 4;fill:none}"
    ".bound{stroke:#1f5fa8;stroke-width:1.2;stroke-dasharray:2 3;fill:none}"
    ".mark{stroke:#2b2b2b;stroke-dasharray:5 4;fill:none}.nothing{fill:#d9d9d4;fill-opacity:.55}"
    ".plain{fill:#b3261e;stroke:#b3261e}.periodic{fill:#fbfbf8;stroke:#8a6d1a}"
    ".chosen{fill:#1f5fa8;stroke:#2b2b2b}.point{stroke-width:1.8}</style>\n";

// A Picture collects the parts of the drawing.
class Picture {
 public:
  Picture(const Frontier& frontier, const Baseline& baseline,
          std::span<const FrontierPoint> periodic, const SvgOptions& options,
          const FrontierExtras& extras)
      : frontier_(frontier),
        baseline_(baseline),
        periodic_(periodic),
        options_(options),
        extras_(extras) {
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
    if (extras_.chosen) include(*extras_.chosen);
    for (const Bytes mark : options_.marks) {
      most_bytes = std::max(most_bytes, static_cast<double>(mark.count()));
    }
    // A curve that is much slower would squeeze the one that the picture is about.
    const double limit =
        std::max(1.5 * static_cast<double>(baseline_.time.count()), most + 0.6 * (most - least));
    for (const ComparedCurve& other : options_.compared) {
      for (const FrontierPoint& point : other.points) {
        if (static_cast<double>(point.time.count()) <= limit) include(point);
      }
    }

    const double span = std::max({most - least, 0.05 * most, 1.0});
    const double right = std::max(most_bytes, 1.0) * 1.06;
    const AxisUnit bytes = byte_unit(right);
    const AxisUnit time = time_unit(most);
    x_ = {0, right, 78, options_.width - 78.0, bytes, nice_step(right, bytes.size, 7)};
    y_ = {std::max(0.0, least - 0.08 * span),
          most + 0.08 * span,
          options_.height - 58.0,
          72,
          time,
          0};
    y_.step = nice_step(y_.to - y_.from, time.size, 6);
  }

  void text(double x, double y, const char* anchor, const std::string& content,
            const std::string& extra = "") {
    svg_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y,
                        anchor, extra, escaped(content));
  }

  void draw_frame() {
    svg_ += fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
        "height=\"{1}\" role=\"img\" font-family=\"system-ui, sans-serif\" font-size=\"12\"{2}>\n",
        options_.width, options_.height, extras_.own_style ? "" : " class=\"chart\"");
    const std::string title = options_.title.empty() ? frontier_.problem.name : options_.title;
    svg_ += "<title>" + escaped("Time of a step for every budget: " + title) + "</title>\n";
    if (extras_.own_style) {
      svg_ += kOwnStyle;
      svg_ += fmt::format(
          "<rect x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"6\" class=\"panel\"/>\n",
          options_.width - 1, options_.height - 1);
      text(x_.start, 26, "start", title, " font-size=\"15\" font-weight=\"600\"");
    }
    text((x_.start + x_.end) / 2, options_.height - 16.0, "middle",
         fmt::format("budget ({})", x_.unit.name));
    text(x_.start, y_.end - 10, "end", fmt::format("time ({})", y_.unit.name));
    text(options_.width - 10.0, y_.end - 10, "end", "against plain");
  }

  void draw_ticks() {
    for (const double value : x_.ticks()) {
      svg_ += fmt::format("<path d=\"M{0:.1f} {1:.1f}V{2:.1f}\" class=\"grid\"/>\n",
                          x_.pixel(value), y_.start, y_.end);
      text(x_.pixel(value), y_.start + 17, "middle", x_.label(value));
    }
    for (const double value : y_.ticks()) {
      const double y = y_.pixel(value);
      svg_ +=
          fmt::format("<path d=\"M{:.1f} {:.1f}H{:.1f}\" class=\"grid\"/>\n", x_.start, y, x_.end);
      text(x_.start - 8, y + 4, "end", y_.label(value));
      const auto plain = static_cast<double>(baseline_.time.count());
      if (plain > 0) {
        text(x_.end + 8, y + 4, "start", fmt::format("{:+.3g} %", 100 * (value / plain - 1)));
      }
    }
    svg_ += fmt::format("<path d=\"M{0:.1f} {1:.1f}V{2:.1f}H{3:.1f}\" class=\"axis\"/>\n", x_.start,
                        y_.end, y_.start, x_.end);
  }

  void draw_infeasible() {
    const double end = x_.pixel(static_cast<double>(frontier_.points.front().budget.count()));
    if (end - x_.start < 1) return;
    svg_ += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
        "class=\"nothing\"/>\n",
        x_.start, y_.end, end - x_.start, y_.start - y_.end);
    if (end - x_.start > 60) {
      text((x_.start + end) / 2, (y_.start + y_.end) / 2, "middle", "no plan");
    }
  }

  void draw_curve() {
    if (has_bound()) {
      steps(frontier_.points, "bound", [](const FrontierPoint& at) { return at.lower_bound; });
    }
    const auto time = [](const FrontierPoint& at) { return at.time; };
    for (size_t k = 0; k < options_.compared.size(); ++k) {
      steps(options_.compared[k].points, compared_style(k).c_str(), time);
    }
    steps(frontier_.points, "curve", time);
  }

  static std::string compared_style(size_t k) { return fmt::format("compared{}", k % 2); }

  bool has_bound() const {
    return extras_.bounds &&
           std::any_of(frontier_.points.begin(), frontier_.points.end(),
                       [](const FrontierPoint& at) { return at.lower_bound < at.time; });
  }

  // Points above the picture are left out, and the path comes from its top.
  template <class Time>
  void steps(std::span<const FrontierPoint> points, const char* style, const Time& time) {
    std::string path;
    bool above = false;
    for (const FrontierPoint& at : points) {
      const double x = x_.pixel(static_cast<double>(at.budget.count()));
      if (static_cast<double>(time(at).count()) > y_.to) {
        above = true;
        continue;
      }
      if (path.empty() && above) path = fmt::format("M{:.1f} {:.1f}", x, y_.end);
      const double y = std::min(y_.start, y_.pixel(static_cast<double>(time(at).count())));
      path +=
          path.empty() ? fmt::format("M{:.1f} {:.1f}", x, y) : fmt::format("H{:.1f}V{:.1f}", x, y);
    }
    if (path.empty()) return;
    path += fmt::format("H{:.1f}", x_.end);
    svg_ += fmt::format("<path d=\"{}\" class=\"{}\"/>\n", path, style);
  }

  // Draws a line up to the curve and a line to the time axis. A budget without a plan gets a line
  // to the top.
  void draw_marks() {
    for (const Bytes mark : options_.marks) {
      const double x = x_.pixel(static_cast<double>(mark.count()));
      const FrontierPoint* best = nullptr;
      for (const FrontierPoint& at : frontier_.points) {
        if (at.budget <= mark) best = &at;
      }
      const double y = best == nullptr ? y_.end : y_.pixel(static_cast<double>(best->time.count()));
      const std::string across = best == nullptr ? "" : fmt::format("H{:.1f}", x_.end);
      svg_ += fmt::format("<path d=\"M{:.1f} {:.1f}V{:.1f}{}\" class=\"mark\"/>\n", x, y_.start, y,
                          across);
      text(x + 4, y_.start - 6, "start", format_bytes(mark));
      if (best != nullptr) point(*best, "chosen", "budget");
    }
  }

  void point(const FrontierPoint& at, const char* style, const char* name) {
    svg_ += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4.5\" class=\"point "
        "{}\"><title>{}</title></circle>\n",
        x_.pixel(static_cast<double>(at.budget.count())),
        y_.pixel(static_cast<double>(at.time.count())), style,
        escaped(fmt::format("{}: {}, {}", name, format_bytes_exact(at.budget),
                            format_duration(at.time))));
  }

  void draw_points() {
    for (const FrontierPoint& at : periodic_) point(at, "periodic", "periodic");
    point({.budget = baseline_.peak,
           .peak = baseline_.peak,
           .time = baseline_.time,
           .lower_bound = baseline_.time},
          "plain", "plain training");
    if (!extras_.chosen) return;
    point(*extras_.chosen, "chosen", "this plan");
    const double x = x_.pixel(static_cast<double>(extras_.chosen->budget.count()));
    const double y = y_.pixel(static_cast<double>(extras_.chosen->time.count()));
    // The curve descends, so there is room below it, on the left.
    text(x - 9, y + 18, "end", "this plan", " font-weight=\"600\"");
  }

  void draw_legend() {
    double x = x_.start;
    const double y = 46;
    const auto entry = [&](const std::string& mark, const std::string& name) {
      svg_ += mark;
      text(x + 28, y + 4, "start", name);
      x += 44 + 6.6 * static_cast<double>(name.size());
    };
    const auto line = [&](const char* style) {
      return fmt::format("<path d=\"M{:.1f} {:.1f}h20\" class=\"{}\"/>\n", x, y, style);
    };
    const auto dot = [&](const char* style) {
      return fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4.5\" class=\"point {}\"/>\n",
                         x + 18, y, style);
    };
    entry(line("curve"), "planner " + shortened(frontier_.planner, 24));
    if (has_bound()) entry(line("bound"), "lower bound");
    entry(dot("plain"), "plain training");
    for (size_t k = 0; k < options_.compared.size(); ++k) {
      entry(line(compared_style(k).c_str()), shortened(options_.compared[k].name, 24));
    }
    if (!periodic_.empty()) entry(dot("periodic"), "periodic checkpoints");
  }

  const Frontier& frontier_;
  const Baseline& baseline_;
  std::span<const FrontierPoint> periodic_;
  const SvgOptions& options_;
  const FrontierExtras& extras_;
  Axis x_, y_;
  std::string svg_;
};

}  // namespace

std::string frontier_picture(const Frontier& frontier, const Baseline& baseline,
                             std::span<const FrontierPoint> periodic, const SvgOptions& options,
                             const FrontierExtras& extras) {
  if (frontier.points.empty()) {
    throw InputError("a frontier without points cannot be drawn: no plan was found");
  }
  return Picture(frontier, baseline, periodic, options, extras).draw();
}

}  // namespace reprise::report
