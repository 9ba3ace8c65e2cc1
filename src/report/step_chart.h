// A StepChart is a picture with the step's time from left to right. All charts of a page share one
// axis, so that a script can zoom them together. The drawing stands in an inner <svg class="plot">
// of 10000 x 1000 units.
#pragma once

#include <string>
#include <string_view>

namespace reprise::report {

struct TimeScale {
  double end = 1;     // nanoseconds, or runs
  bool timed = true;  // see Walk::timed
};

// Returns an integer if one decimal says no more.
std::string coordinate(double value);

class StepChart {
 public:
  // The title and the description are for readers who do not see the picture. `height` is that of
  // the plot, in pixels.
  StepChart(std::string_view title, std::string_view description, TimeScale time, double height);

  // The axis on the left counts bytes from 0 to `top`.
  void bytes_axis(double top);
  // Puts a word into the left margin; `y` is in units of the plot.
  void margin_label(double y, std::string_view text);
  // Draws a dashed line across at `bytes`, with a word at its end.
  void level_line(double bytes, std::string_view text, const char* style);

  // These functions return units of the plot, as text.
  std::string x(double time) const { return coordinate(x_units(time)); }
  std::string y(double bytes) const { return coordinate(y_units(bytes)); }
  double x_units(double time) const { return kWide * time / time_.end; }
  double y_units(double bytes) const { return kHigh * (1 - bytes / top_); }

  void draw(std::string_view svg) { plot_ += svg; }
  // Names the data in the page that a script shows at the pointer.
  void hover(std::string_view key) { hover_ = key; }
  std::string take();

  static constexpr double kWide = 10000, kHigh = 1000;

 private:
  std::string time_axis() const;

  std::string title_, description_, hover_;
  TimeScale time_;
  double height_;
  double top_ = 1;
  std::string plot_, frame_, labels_;
};

}  // namespace reprise::report
