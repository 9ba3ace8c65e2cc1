#include <algorithm>
#include <numeric>

#include "plan/place/devices/starts.h"

namespace reprise::internal::devices {
namespace {

// Joins runs to groups, each of at most so much time.
class Clusters {
 public:
  explicit Clusters(std::vector<int64_t> times) : times_(std::move(times)), root_(times_.size()) {
    std::iota(root_.begin(), root_.end(), size_t{0});
  }

  size_t of(size_t run) {
    while (root_[run] != run) run = root_[run] = root_[root_[run]];
    return run;
  }
  void join(size_t a, size_t b, int64_t most) {
    const size_t one = std::min(of(a), of(b)), other = std::max(of(a), of(b));
    if (one == other || times_[one] + times_[other] > most) return;
    times_[one] += times_[other];
    root_[other] = one;
  }

 private:
  std::vector<int64_t> times_;  // by run that is a root
  std::vector<size_t> root_;
};

struct Edge {
  int64_t bytes;
  size_t from, to;
};

// Returns what runs hand to others, the largest first.
std::vector<Edge> edges_of(const Ground& ground, const Sequence& runs) {
  std::vector<int64_t> writer(ground.graph.values.size(), -1);
  std::vector<Edge> edges;
  for (size_t r = 0; r < runs.size(); ++r) {
    for (const ValueIndex v : ground.variant(runs[r]).reads) {
      const int64_t from = writer[v];
      if (from >= 0) edges.push_back({ground.bytes(v), static_cast<size_t>(from), r});
    }
    for (const ValueIndex v : ground.variant(runs[r]).writes) {
      writer[v] = static_cast<int64_t>(r);
    }
  }
  std::stable_sort(edges.begin(), edges.end(),
                   [](const Edge& a, const Edge& b) { return a.bytes > b.bytes; });
  return edges;
}

}  // namespace

Sequence by_clusters(const Ground& ground) {
  Sequence runs = plain_runs(ground.graph);
  std::vector<int32_t> devices;
  for (size_t m = 0; m < ground.machine.memories.size(); ++m) {
    if (computes(ground.machine, static_cast<int32_t>(m))) {
      devices.push_back(static_cast<int32_t>(m));
    }
  }
  std::vector<int64_t> times;
  for (const Run& run : runs) times.push_back(ground.variant(run).time.count());
  const int64_t share = std::accumulate(times.begin(), times.end(), int64_t{0}) /
                        static_cast<int64_t>(devices.size());
  Clusters clusters(times);
  for (const Edge& edge : edges_of(ground, runs)) clusters.join(edge.from, edge.to, share);

  // Add up the time of each cluster on each device. A run without a twin there stays where it is.
  std::vector<std::vector<int64_t>> there(runs.size(), std::vector<int64_t>(devices.size(), 0));
  std::vector<size_t> roots;
  for (size_t r = 0; r < runs.size(); ++r) {
    const size_t root = clusters.of(r);
    if (root == r) roots.push_back(r);
    for (size_t d = 0; d < devices.size(); ++d) {
      const int32_t twin = twin_on(ground, runs[r], devices[d]);
      if (twin >= 0) there[root][d] += ground.variant({runs[r].op, twin}).time.count();
    }
  }
  std::stable_sort(roots.begin(), roots.end(),
                   [&](size_t a, size_t b) { return there[a][0] > there[b][0]; });
  std::vector<int64_t> load(devices.size(), 0);
  std::vector<size_t> place(runs.size(), 0);  // by root
  for (const size_t root : roots) {
    for (size_t d = 1; d < devices.size(); ++d) {
      const size_t now = place[root];
      if (load[d] + there[root][d] < load[now] + there[root][now]) place[root] = d;
    }
    load[place[root]] += there[root][place[root]];
  }
  for (size_t r = 0; r < runs.size(); ++r) {
    const int32_t twin = twin_on(ground, runs[r], devices[place[clusters.of(r)]]);
    if (twin >= 0) runs[r].variant = twin;
  }
  return runs;
}

}  // namespace reprise::internal::devices
