// This header includes everything of the runtime. It needs LibTorch.
#pragma once

#include "reprise/runtime/allocator.h"        // IWYU pragma: export
#include "reprise/runtime/approximate.h"      // IWYU pragma: export
#include "reprise/runtime/capture.h"          // IWYU pragma: export
#include "reprise/runtime/measure.h"          // IWYU pragma: export
#include "reprise/runtime/micro_batches.h"    // IWYU pragma: export
#include "reprise/runtime/miss.h"             // IWYU pragma: export
#include "reprise/runtime/nn.h"               // IWYU pragma: export
#include "reprise/runtime/offload.h"          // IWYU pragma: export
#include "reprise/runtime/online.h"           // IWYU pragma: export
#include "reprise/runtime/peer_error.h"       // IWYU pragma: export
#include "reprise/runtime/pipeline.h"         // IWYU pragma: export
#include "reprise/runtime/process_group.h"    // IWYU pragma: export
#include "reprise/runtime/random_mark.h"      // IWYU pragma: export
#include "reprise/runtime/region_compiler.h"  // IWYU pragma: export
#include "reprise/runtime/remat.h"            // IWYU pragma: export
#include "reprise/runtime/remat_join.h"       // IWYU pragma: export
#include "reprise/runtime/saved_state.h"      // IWYU pragma: export
#include "reprise/runtime/sequential.h"       // IWYU pragma: export
#include "reprise/runtime/stage.h"            // IWYU pragma: export
#include "reprise/runtime/train_step.h"       // IWYU pragma: export
