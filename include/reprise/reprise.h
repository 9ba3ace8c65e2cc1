// This header includes everything of the core: plan on values and files, without a framework.
#pragma once

#include "reprise/check/energy.h"      // IWYU pragma: export
#include "reprise/check/explain.h"     // IWYU pragma: export
#include "reprise/check/pipeline.h"    // IWYU pragma: export
#include "reprise/check/replicas.h"    // IWYU pragma: export
#include "reprise/check/simulate.h"    // IWYU pragma: export
#include "reprise/check/verify.h"      // IWYU pragma: export
#include "reprise/io/json.h"           // IWYU pragma: export
#include "reprise/io/tensors.h"        // IWYU pragma: export
#include "reprise/model/chain.h"       // IWYU pragma: export
#include "reprise/model/errors.h"      // IWYU pragma: export
#include "reprise/model/graph.h"       // IWYU pragma: export
#include "reprise/model/join.h"        // IWYU pragma: export
#include "reprise/model/lower.h"       // IWYU pragma: export
#include "reprise/model/machine.h"     // IWYU pragma: export
#include "reprise/model/pipeline.h"    // IWYU pragma: export
#include "reprise/model/plan.h"        // IWYU pragma: export
#include "reprise/model/power.h"       // IWYU pragma: export
#include "reprise/model/units.h"       // IWYU pragma: export
#include "reprise/pack/pack.h"         // IWYU pragma: export
#include "reprise/pack/plan_blocks.h"  // IWYU pragma: export
#include "reprise/plan/energy.h"       // IWYU pragma: export
#include "reprise/plan/pipeline.h"     // IWYU pragma: export
#include "reprise/plan/plan.h"         // IWYU pragma: export
#include "reprise/plan/registry.h"     // IWYU pragma: export
#include "reprise/report/pipeline.h"   // IWYU pragma: export
#include "reprise/report/report.h"     // IWYU pragma: export
#include "reprise/run/bookkeeping.h"   // IWYU pragma: export
#include "reprise/run/interpreter.h"   // IWYU pragma: export
