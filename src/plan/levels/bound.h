// loss_bound() bounds the time of every plan of a chain, with copies and re-runs of any kind, by a
// look at the loss.
//
// While the loss runs, what the backward still needs of a stage (what the stage saved, and its
// output if it will be read) is on the device; or only elsewhere, and then its copy out was over
// before the loss began and its copy back starts behind it; or it is gone, and the stage runs forward
// once more. Let D be the bytes needed beyond the room on the device, O <= D those that are elsewhere,
// and R(D - O) the least time to run stages again that give D - O bytes, where parts of stages may be
// taken (a fractional knapsack). With F and B the least times of all forwards and all backwards, and
// bo and bi the bandwidths out of and into the device,
//
//   T >= loss + min over O of  max(F, O / bo) + max(B + R(D - O), O / bi).
//
// The function of O is convex, so that a search by thirds finds its minimum. This is the bound of one
// instant of Checkmate-like models, with the time of the channels.
#pragma once

#include <cstdint>

#include "reprise/model/chain.h"
#include "reprise/model/machine.h"
#include "reprise/model/units.h"

namespace reprise::internal::levels {

// `budget` is the whole budget of the device. O(stages * log). The result is at least the least time
// of any plan without a limit on memory, and exactly that where the bound gives no more.
Nanos loss_bound(const Chain& chain, const Machine& machine, Bytes budget);

}  // namespace reprise::internal::levels
