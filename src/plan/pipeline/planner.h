// Declares the planners of pipelines, one function for each row of the registry.
#pragma once

#include "reprise/plan/pipeline.h"

namespace reprise::internal::pipeline {

PipelineAnswer gpipe(const PipelineProblem& problem);
PipelineAnswer one_f_one_b(const PipelineProblem& problem);
PipelineAnswer interleaved(const PipelineProblem& problem);
PipelineAnswer adapipe(const PipelineProblem& problem);
PipelineAnswer cheapest_stages(const PipelineProblem& problem);
PipelineAnswer joint(const PipelineProblem& problem);
PipelineAnswer zero_bubble(const PipelineProblem& problem);

}  // namespace reprise::internal::pipeline
