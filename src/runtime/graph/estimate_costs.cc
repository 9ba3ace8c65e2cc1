#include "runtime/graph/estimate_costs.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "runtime/graph/words.h"


namespace reprise::runtime::internal::graph {

namespace {

double bytes_of(const Work& work) {
  double bytes = 0;
  for (const Argument& argument : work.arguments) {
    for (const TensorRef& ref : argument.tensors) {
      if (ref.memory == step::Memory::kNone) continue;
      double elements = 1;
      for (const int64_t size : ref.geometry.sizes) elements *= static_cast<double>(size);
      bytes += elements * static_cast<double>(c10::elementSize(ref.geometry.dtype));
    }
  }
  return bytes;
}

bool are_alike(const Works& a, const Works& b) {
  return std::equal(a.all.begin(), a.all.end(), b.all.begin(), b.all.end(),
                    [](const Work& x, const Work& y) {
                      return x.name == y.name && x.arguments.size() == y.arguments.size() &&
                             x.made.size() == y.made.size();
                    });
}

struct Point {
  double bytes, cost;
};

// Returns the cost at `bytes` on the line through the two nearest points. Points of equal bytes have
// equal costs, but for noise.
double at(double bytes, std::vector<Point> points) {
  std::sort(points.begin(), points.end(), [&](const Point& a, const Point& b) {
    return std::abs(a.bytes - bytes) < std::abs(b.bytes - bytes);
  });
  const Point& first = points[0];
  const auto second = std::find_if(points.begin(), points.end(),
                                   [&](const Point& one) { return one.bytes != first.bytes; });
  if (bytes == first.bytes || second == points.end()) return first.cost;
  const double slope = (second->cost - first.cost) / (second->bytes - first.bytes);
  return std::max(0.0, first.cost + slope * (bytes - first.bytes));
}

}  // namespace

std::optional<WorkCosts> estimate_costs(const Works& works, const std::vector<KnownCosts>& known) {
  std::vector<const KnownCosts*> alike;
  for (const KnownCosts& one : known) {
    if (are_alike(*one.works, works)) alike.push_back(&one);
  }
  if (alike.size() < 2) return std::nullopt;
  WorkCosts found;
  for (size_t w = 0; w < works.all.size(); ++w) {
    const double bytes = bytes_of(works.all[w]);
    std::vector<Point> times, workspaces;
    WorkCost cost = alike[0]->costs->by_work[w];
    for (const KnownCosts* one : alike) {
      const double there = bytes_of(one->works->all[w]);
      const WorkCost& known_cost = one->costs->by_work[w];
      times.push_back({there, static_cast<double>(known_cost.time.count())});
      workspaces.push_back({there, static_cast<double>(known_cost.workspace.count())});
    }
    cost.time = Nanos(std::llround(at(bytes, times)));
    cost.workspace = Bytes(device::counted_bytes(std::llround(at(bytes, workspaces))));
    found.by_work.push_back(cost);
  }
  return found;
}

}  // namespace reprise::runtime::internal::graph
