#include "comparison.h"

#include <algorithm>

namespace reprise::bench {
namespace {

size_t best_periodic(const ModelResult& result, int64_t peak) {
  size_t best = 0;
  for (size_t s = 1; s < result.settings.size(); ++s) {
    const Setting& setting = result.settings[s];
    if (setting.kind != Kind::kPeriodic || setting.peak > peak) continue;
    if (best == 0 || median(setting.times) < median(result.settings[best].times)) best = s;
  }
  return best;
}

}  // namespace

std::vector<Comparison> comparisons(const ModelResult& result) {
  std::vector<Comparison> list;
  for (const Request& request : result.requests) {
    if (!request.periodic) continue;
    Comparison c{.request = &request,
                 .periodic = *request.periodic,
                 .best = best_periodic(result, request.budget),
                 .ratio = {}};
    if (request.setting) {
      const auto pairs =
          std::find_if(result.pairs.begin(), result.pairs.end(), [&](const PairedRun& run) {
            return run.reprise == *request.setting && run.periodic == c.best;
          });
      c.pairs = pairs != result.pairs.end();
      c.ratio =
          c.pairs ? pairs->ratios
                  : ratios(result.settings[*request.setting].times, result.settings[c.best].times);
    }
    list.push_back(c);
  }
  return list;
}

const char* verdict(const std::vector<double>& ratios) {
  if (quantile(ratios, 0.75) < 1) return "faster";
  if (quantile(ratios, 0.25) > 1) return "slower";
  return "same";
}

}  // namespace reprise::bench
