#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "report/markup.h"
#include "report/step_pictures.h"
#include "reprise/pack/pack.h"
#include "reprise/pack/plan_blocks.h"

namespace reprise::report {

namespace {

struct Placed {
  size_t block = 0;
  double x = 0, y = 0, width = 0, height = 0;  // units of the plot

  double area() const { return width * height; }
};

// Ticks of plan_blocks() are half actions.
double at_tick(const Walk& walk, int64_t tick) {
  const auto last = static_cast<int64_t>(walk.clock.size()) - 1;
  return walk.clock[std::min((tick + 1) / 2, last)];
}

Holding holding_in(const Graph& graph, const BlockOwner& owner) {
  if (owner.value < 0) return Holding::kWorkspace;
  return holding_of(graph.values[owner.value].kind);
}

std::string tip(const Graph& graph, const BlockOwner& owner, const Block& block, Bytes offset,
                const std::vector<std::string>& names) {
  std::string text = owner.value < 0 ? "workspace" : shortened(graph.values[owner.value].id, 80);
  if (owner.op >= 0) text += " of " + names[owner.op];
  if (owner.temporary && owner.value >= 0) text += " (second copy)";
  return fmt::format("{}: {} at {}", text, format_bytes(block.bytes), format_bytes(offset));
}

class Arena {
 public:
  Arena(const Graph& graph, const std::vector<Action>& actions, const Walk& walk,
        const std::vector<std::string>& names, TimeScale time, const Machine& machine)
      : graph_(graph),
        names_(names),
        blocks_(plan_blocks(graph, actions, machine)),
        owners_(block_owners(graph, actions, machine)),
        // A picture needs no search beyond the first heuristics, which nearly always reach the
        // bound.
        packing_(pack(blocks_, {.steps = 5'000'000, .time_limit = Nanos(2'000'000'000)})),
        chart_("Arena: offsets of all blocks over the step",
               fmt::format("{} bytes high.", packing_.height.count()), time, kHeight) {
    chart_.bytes_axis(std::max(1.0, 1.04 * static_cast<double>(packing_.height.count())));
    place(walk);
  }

  ArenaPicture draw() {
    constexpr double kVisible = 0.25 * kPixelWide * kPixelHigh;
    size_t shown = 0;
    while (shown < std::min(placed_.size(), kMostBlocks) && placed_[shown].area() >= kVisible) {
      ++shown;
    }
    draw_unnamed(shown);
    draw_named(shown);
    return {chart_.take(), packing_.height, packing_.live_bytes, placed_.size(),
            placed_.size() - shown};
  }

 private:
  static constexpr double kHeight = 260;
  // Sizes of a pixel, in units of the plot.
  static constexpr double kPixelWide = StepChart::kWide / 870;
  static constexpr double kPixelHigh = StepChart::kHigh / kHeight;

  void place(const Walk& walk) {
    for (size_t b = 0; b < blocks_.size(); ++b) {
      if (blocks_[b].bytes == Bytes(0) || blocks_[b].begin == blocks_[b].end) continue;
      const double from = chart_.x_units(at_tick(walk, blocks_[b].begin));
      const double to = chart_.x_units(at_tick(walk, blocks_[b].end));
      const auto bottom = static_cast<double>(packing_.offsets[b].count());
      const double y = chart_.y_units(bottom + static_cast<double>(blocks_[b].bytes.count()));
      placed_.push_back({b, from, y, to - from, chart_.y_units(bottom) - y});
    }
    std::stable_sort(placed_.begin(), placed_.end(),
                     [](const Placed& a, const Placed& b) { return a.area() > b.area(); });
  }

  // Draws all blocks of one kind as one path.
  void draw_unnamed(size_t shown) {
    std::array<std::string, kHoldings> paths;
    for (size_t p = kMostNamedBlocks; p < shown; ++p) {
      const Placed& at = placed_[p];
      paths[static_cast<size_t>(holding_in(graph_, owners_[at.block]))] +=
          fmt::format("M{} {}h{}v{}h-{}Z", coordinate(at.x), coordinate(at.y), coordinate(at.width),
                      coordinate(at.height), coordinate(at.width));
    }
    for (size_t h = 0; h < kHoldings; ++h) {
      if (paths[h].empty()) continue;
      chart_.draw(fmt::format("<path d=\"{}\" class=\"block kind-{}\"/>\n", paths[h],
                              to_string(static_cast<Holding>(h))));
    }
  }

  void draw_named(size_t shown) {
    for (size_t p = 0; p < std::min(shown, kMostNamedBlocks); ++p) {
      const Placed& at = placed_[p];
      const BlockOwner& owner = owners_[at.block];
      // An edge would hide a block that is hardly wider than the edge.
      const bool edged = at.width > 3 * kPixelWide && at.height > 3 * kPixelHigh;
      chart_.draw(fmt::format(
          "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" class=\"block{} kind-{}\">"
          "<title>{}</title></rect>\n",
          coordinate(at.x), coordinate(at.y), coordinate(at.width), coordinate(at.height),
          edged ? " edged" : "", to_string(holding_in(graph_, owner)),
          escaped(tip(graph_, owner, blocks_[at.block], packing_.offsets[at.block], names_))));
    }
  }

  const Graph& graph_;
  const std::vector<std::string>& names_;
  std::vector<Block> blocks_;
  std::vector<BlockOwner> owners_;
  Packing packing_;
  StepChart chart_;
  std::vector<Placed> placed_;  // largest first
};

}  // namespace

ArenaPicture arena_picture(const Graph& graph, const std::vector<Action>& actions, const Walk& walk,
                           const std::vector<std::string>& names, TimeScale time,
                           const Machine& machine) {
  const size_t blocks = plan_blocks(graph, actions, machine).size();
  if (blocks > kMostPacked) return {.svg = "", .height = {}, .live = {}, .blocks = blocks};
  return Arena(graph, actions, walk, names, time, machine).draw();
}

}  // namespace reprise::report
