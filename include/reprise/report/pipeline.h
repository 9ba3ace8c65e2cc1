// These functions show plans of pipelines: as text for people, as JSON for machines, as a Chrome
// trace, and as the order that PyTorch's pipelining runtime reads.
#pragma once

#include <string>
#include <vector>

#include "reprise/check/pipeline.h"
#include "reprise/model/pipeline.h"
#include "reprise/plan/pipeline.h"
#include "reprise/report/text.h"

namespace reprise {

// Says on one screen how good the plan is, and what each device and each part does in it.
std::string pipeline_text(const Pipeline& pipeline, const PipelinePlan& plan,
                          const PipelineTimeline& timeline, const TextOptions& options = {});

// Says why there is no plan: the device that has too little memory, its limit, and what was needed
// there. The text is one or two sentences, without advice. `result.plan` must be empty.
std::string explain_no_plan(const PipelineResult& result, const Pipeline& pipeline);

// The JSON leaves out the orders and the plans of the parts.
std::string pipeline_result_json(const Pipeline& pipeline, const PipelineResult& result);
std::string pipeline_violations_json(const std::vector<Violation>& violations,
                                     const PipelinePlan& plan);

// Returns a trace for chrome://tracing and ui.perfetto.dev: a row for the actions of each device, a
// row for each link.
std::string pipeline_trace(const Pipeline& pipeline, const PipelinePlan& plan,
                           const PipelineTimeline& timeline);

// Returns the order of the computations as torch.distributed.pipelining reads it from a CSV file: a
// line for each device, with actions such as "2F0" (part 2, forward, micro-batch 0), "2B0", "2I0"
// and "2W0". PyTorch adds the messages itself.
std::string pytorch_order(const PipelinePlan& plan);

// Returns the share of the time in which the devices of the plan's parts do not compute, in 0..1.
double bubble(const PipelinePlan& plan, const PipelineTimeline& timeline);

}  // namespace reprise
