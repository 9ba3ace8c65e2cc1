// loss_bound() bounds the time of every plan of a chain, with copies and re-runs of any kind, by a
// look at the loss.
//
// The backward still needs the tensors that a stage saved, and its output if it will be read. While
// the loss runs, these bytes are in one of three places:
// - on the device;
// - only elsewhere: their copy out was over before the loss began, and their copy back starts behind
//   the loss;
// - nowhere: the stage runs forward once more.
//
// Let D be the bytes that the backward needs beyond the room on the device, and O <= D the bytes that
// are elsewhere. Let R(D - O) be the least time to run stages again that give D - O bytes, where parts
// of stages may be taken (a fractional knapsack). Let F and B be the least times of all forwards and
// all backwards, and bo and bi the bandwidths out of and into the device. Then
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
