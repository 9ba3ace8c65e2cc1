// Looks at the parts, the actions and the messages of a plan of a pipeline, before anybody runs it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "reprise/check/verify.h"
#include "reprise/model/pipeline.h"

namespace reprise::internal::check {

// Reports a fault: the kind, the device or -1, the action or -1, and the message.
using ReportFault = std::function<void(ViolationKind, int32_t, int64_t, const std::string&)>;

// Reports what is wrong with the parts, the actions and the messages. The pipeline must be valid.
void check_structure(const Pipeline& pipeline, const PipelinePlan& plan, const ReportFault& report);

}  // namespace reprise::internal::check
