#include "plan/graph/params.h"

#include <iterator>

namespace reprise::internal::graph {

namespace {

#define REPRISE_SWITCH(room, group, field)                                                 \
  {                                                                                        \
    room "." #field, [](GraphSearchParams& params) -> bool& { return params.group.field; } \
  }

constexpr Switch kSwitches[] = {
    REPRISE_SWITCH("graph", use, exact_first),
    REPRISE_SWITCH("graph", use, impossible),
    REPRISE_SWITCH("graph", use, segments_first),
    REPRISE_SWITCH("graph", use, dtr),
    REPRISE_SWITCH("bound", bound.use, instants),
    REPRISE_SWITCH("bound", bound.use, few_instants),
    REPRISE_SWITCH("bound", bound.use, cases),
    REPRISE_SWITCH("bound", bound.use, stretches),
    REPRISE_SWITCH("bound", bound.use, pairs),
    REPRISE_SWITCH("starts", starts.use, rungs),
    REPRISE_SWITCH("starts", starts.use, sections),
    REPRISE_SWITCH("starts", starts.use, seeds),
    REPRISE_SWITCH("starts", starts.use, cuts),
    REPRISE_SWITCH("starts", starts.use, prices),
    REPRISE_SWITCH("starts", starts.use, segments),
    REPRISE_SWITCH("starts", starts.use, mixes),
    REPRISE_SWITCH("starts", starts.use, put_off),
    REPRISE_SWITCH("starts", starts.use, cheapest_variants),
    REPRISE_SWITCH("search", search.use, rows),
    REPRISE_SWITCH("search", search.use, others),
    REPRISE_SWITCH("search", search.use, trades),
    REPRISE_SWITCH("search", search.use, variants),
    REPRISE_SWITCH("search", search.use, on_demand),
    REPRISE_SWITCH("search", search.use, early),
    REPRISE_SWITCH("search", search.use, realizations),
    REPRISE_SWITCH("search", search.use, put_off),
    REPRISE_SWITCH("search", search.use, repair),
    REPRISE_SWITCH("search", search.use, tune),
    REPRISE_SWITCH("search", search.use, hopeless),
    REPRISE_SWITCH("search", search.use, most_promising),
    REPRISE_SWITCH("search", search.use, fit),
    REPRISE_SWITCH("search", search.use, shrink),
    REPRISE_SWITCH("search", search.use, improve),
    REPRISE_SWITCH("search", search.use, later_courses),
    REPRISE_SWITCH("search", search.use, raised_price),
    REPRISE_SWITCH("search", search.use, elsewhere),
    REPRISE_SWITCH("search", search.use, stop_near),
    REPRISE_SWITCH("search", search.use, reject_by_time),
};

#undef REPRISE_SWITCH

// A switch without a row would not be tested. Every switch is one bool.
static_assert(std::size(kSwitches) * sizeof(bool) ==
              sizeof(GraphSwitches) + sizeof(bound::BoundSwitches) + sizeof(starts::StartSwitches) +
                  sizeof(search::SearchSwitches));

}  // namespace

std::span<const Switch> switches() { return kSwitches; }

}  // namespace reprise::internal::graph
